"""Limits of one client, identity by certificate, and protocols below MQTT."""

import contextlib
import datetime
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from access.identity.principal import CertificateFacts
from conf.edge_settings import EdgeSettings
from conf.limit_settings import PACKET_BYTES_MAX
from edge.clients.client import Client
from edge.limits_of_settings import edge_limits, hot_limits
from edge.login import certificate_facts
from edge.login.certificate_facts import CACHED_BYTES_MAX, shown_facts
from edge.node.limits import EdgeLimits
from mqtt.codec import encode_packet
from mqtt.packets import Connect, Disconnect, Publish, Pubrel, Subscribe, SubscriptionRequest, Unsubscribe, Will
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session, facts, with_clients
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import client_listener_context
from wire.messages.batches import PublishMessage, encode_message
from wire.messages.frames import FRAME_BYTES_MAX
from wire.messages.ranges import PARTITIONS_MAX


def payloads(session: Session) -> list[bytes]:
    return [packet.payload for packet in session.read() if isinstance(packet, Publish)]


def test_publish_rate_pauses_reading() -> None:
    """A burst of one second is allowed; then reading pauses for as long as the rate requires."""
    edge = Edge(publish_rate_max=100.0)
    publisher, other = edge.client("p"), edge.client("o")
    run = encode_packet(Publish("a", b"x"), 5)
    publisher.publish("a")
    publisher.send(run * 90)
    assert publisher.client.conn.parked == 0
    publisher.send(run * 110)  # two seconds' worth by now
    assert publisher.client.conn.parked != 0
    other.publish("a")
    assert other.client.conn.parked == 0
    for seconds, parked in ((1.0, True), (0.6, False)):
        edge.turn(seconds)
        assert (publisher.client.conn.parked != 0) is parked
    publisher.send(run * 40)
    assert publisher.client.conn.parked == 0


def test_user_properties_are_bounded_by_bytes() -> None:
    """0x97 in CONNACK and DISCONNECT; 5 000 small ones pass within the bound."""
    many: dict[int, object] = {PropertyId.USER_PROPERTY: [("key", "value")] * 5000}
    for bytes_max, code in ((8 * 1024, 0x97), (128 * 1024, 0)):
        edge = Edge(
            EdgeLimits(sys_interval_s=0, user_property_bytes_max=bytes_max, unauthenticated_bytes_max=128 * 1024)
        )
        session = edge.accept()
        session.send(Connect("c", properties=many))
        assert [packet.reason_code for packet in session.read()] == [code]
        assert session.closed is (code != 0)


@pytest.mark.parametrize("more", [0, 1])
def test_user_properties_are_bounded_by_their_number(more: int) -> None:
    """0x97 in each packet with user properties: CONNECT, its will, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT."""
    properties: dict[int, object] = {PropertyId.USER_PROPERTY: [("k", "v")] * (64 + more)}
    will = Will("w", b"", properties=properties)
    codes = [0x97] * more
    for packet in (Connect("c", properties=properties), Connect("c", will=will)):
        session = Edge(EdgeLimits(sys_interval_s=0, user_properties_max=64)).accept()
        session.send(packet)
        assert [answer.reason_code for answer in session.read()] == codes or not more
        assert session.closed is bool(more)
    for other in (
        Subscribe(1, [SubscriptionRequest("a")], properties),
        Unsubscribe(1, ["a"], properties),
        Disconnect(0, properties),
    ):
        session = Edge(EdgeLimits(sys_interval_s=0, user_properties_max=64)).client()
        session.send(other)
        assert [answer.reason_code for answer in session.read() if isinstance(answer, Disconnect)] == codes
    hot = Edge(EdgeLimits(sys_interval_s=0), user_properties_max=64)
    session = hot.client()
    session.send(Publish("a", b"", 1, packet_identifier=1, properties=properties))
    assert [isinstance(answer, Disconnect) for answer in session.read()] == [bool(more)]


def test_user_properties_of_subscribe_are_bounded() -> None:
    """A packet of an open session gets DISCONNECT 0x97."""
    session = Edge(EdgeLimits(sys_interval_s=0, user_property_bytes_max=1000)).client()
    many: dict[int, object] = {PropertyId.USER_PROPERTY: [("key", "value")] * 200}
    session.send(Subscribe(1, [SubscriptionRequest("a")], many))
    assert [packet.reason_code for packet in session.read()] == [0x97] and session.closed


@pytest.mark.parametrize("version", [4, 5])
def test_quota_of_unreleased_qos_2(version: int) -> None:
    """Beyond Receive Maximum without PUBREL: 0x93 [MQTT-3.3.4-7]; 3.1.1 has no announced one, and closes at its
    bound.
    """
    edge = Edge(received_max=50)
    session = edge.client("c", version=version)
    for identifier in range(1, 60):
        if session.closed:
            break
        session.publish("a", b"x", 2, identifier)
    assert session.closed
    answers = session.read()
    assert len(answers) == (21 if version == 5 else 50)
    assert version != 5 or (isinstance(answers[-1], Disconnect) and answers[-1].reason_code == 0x93)


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_backlog_of_returning_client_is_accepted(expiry_s: int) -> None:
    """paho sends its backlog at CONNACK: 60 messages for a Receive Maximum of 20, in durable and ephemeral sessions."""
    session = Edge().client("c", properties={PropertyId.SESSION_EXPIRY_INTERVAL: expiry_s}, clean_start=False)
    backlog = [Publish("a", b"x", 2, packet_identifier=number) for number in range(1, 61)]
    session.send(b"".join(encode_packet(packet, 5) for packet in backlog))
    for _ in range(60):  # those of a durable session are recorded one after another
        session.edge.turn()
    assert [packet.packet_identifier for packet in session.read()] == list(range(1, 61))
    for number in range(1, 61):
        session.send(Pubrel(number))
    assert len(session.read()) == 60 and not session.closed


def test_never_acknowledging_subscriber_is_bounded() -> None:
    """Window and queue fill, then the newest is dropped and counted; the publisher continues."""
    edge = Edge(pending_messages_max=10, outbound_window_max=5)
    subscriber, publisher = edge.client("s"), edge.client("p")
    subscriber.subscribe("a", qos=1)
    subscriber.read()
    for number in range(30):
        publisher.publish("a", b"%d" % number, 1, number + 1)
    assert len(payloads(subscriber)) == 5
    assert edge.core.hot.counters()["dropped_pending"] == 15
    assert len(publisher.read()) == 30


def test_packet_larger_than_announced_ends_the_connection() -> None:
    """0x95 at its fixed header: its bytes are not buffered."""
    edge = Edge(EdgeLimits(sys_interval_s=0, maximum_packet_size=10_000))
    session = edge.client()
    session.send(b"\x30\xff\xff\xff\x7f" + bytes(100))
    assert [packet.reason_code for packet in session.read()] == [0x95] and session.closed


@pytest.mark.parametrize(
    ("shown", "identity"),
    [("", ""), ("client", "device-7"), ("edge", None), ("router", None), ("storage", None), ("operator", None)],
)
def test_only_a_verified_certificate_identifies(tmp_path: Path, shown: str, identity: str | None) -> None:
    """TLS alone proves no identity, and a certificate of links is no client's."""
    authority = DevelopmentAuthority(tmp_path / "tls", "c", datetime.datetime.now(datetime.UTC))
    server = authority.server()
    client = authority.client("device-7")
    if shown == "operator":
        client = authority.operator()
    elif shown != "client":
        client = authority.node(shown or "edge", "x-0")
    accepting = client_listener_context(server.certificate, server.key, server.authority)
    calling = ssl.create_default_context(cafile=str(server.authority))
    if shown:
        calling.load_cert_chain(client.certificate, client.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        calling.wrap_bio(down, up, server_hostname="localhost"),
        accepting.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    conn: Any = SimpleNamespace(tls=ends[1])
    found = shown_facts(conn)
    if identity is None:
        assert found is not None and found.of_cluster
    else:
        assert found is None if not identity else found is not None and found.names["cn"] == (identity,)
    assert shown_facts(SimpleNamespace(tls=None)) is None  # type: ignore[arg-type]


def test_certificate_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its facts depend only on its bytes; a long one is not cached, and an unreadable one is refused each time."""
    read: list[int] = []

    def reads(der: bytes, *_: object, **__: object) -> CertificateFacts:
        read.append(len(der))
        if der == b"unreadable":
            raise ValueError("unreadable")
        return CertificateFacts({}, "1", str(len(der)), "")

    monkeypatch.setattr(certificate_facts, "certificate_facts", reads)
    for size in (10, 20, 10, CACHED_BYTES_MAX, CACHED_BYTES_MAX, CACHED_BYTES_MAX + 1, CACHED_BYTES_MAX + 1):
        conn: Any = SimpleNamespace(
            tls=SimpleNamespace(getpeercert=lambda _, size=size: b"read once" + bytes(size - 9))
        )
        found = shown_facts(conn)
        assert found is not None and found.fingerprint == str(size)
    unreadable: Any = SimpleNamespace(tls=SimpleNamespace(getpeercert=lambda _: b"unreadable"))
    for _ in range(2):
        with pytest.raises(ValueError, match="unreadable"):
            shown_facts(unreadable)
    assert read == [10, 20, CACHED_BYTES_MAX, CACHED_BYTES_MAX + 1, CACHED_BYTES_MAX + 1, 10, 10]


@pytest.mark.parametrize(("version", "code"), [(5, 0x87), (4, 5)])
def test_node_certificate_is_refused_for_clients(version: int, code: int) -> None:
    """In any listener, and counted."""
    edge = Edge(read_certificate=lambda _: facts("e0", of_cluster=True))
    session = edge.accept()
    session.connect("c", version)
    assert [packet.reason_code for packet in session.read()] == [code] and session.closed
    assert edge.core.counts["certificates_of_nodes_refused"] == 1


def test_settings_reach_the_core_and_the_loop() -> None:
    """Every setting of a bound has the same name in the core or the loop."""
    from conf.edge_settings import EdgeSettings

    settings = EdgeSettings(publish_rate_max=7, connect_rate_max=3, topic_levels_max=5, pending_messages_max=9)
    assert (edge_limits(settings).connect_rate_max, edge_limits(settings).topic_levels_max) == (3, 5)
    assert (hot_limits(settings).publish_rate_max, hot_limits(settings).pending_messages_max) == (7, 9)


def test_retain_is_cleared_on_live_copies_unless_published_so() -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]; the copies do not wait for the retained partition."""
    edge = Edge()
    plain, kept, publisher = edge.client("1"), edge.client("2"), edge.client("p")
    plain.subscribe("a", qos=0)
    kept.subscribe("a", qos=0, retain_as_published=True)
    for session in (plain, kept):
        session.read()
    publisher.publish("a", b"x", 0, 0, retain=True)
    edge.turn()
    flags = [[packet.retain for packet in session.read() if isinstance(packet, Publish)] for session in (plain, kept)]
    assert flags == [[False], [True]]


def test_dollar_topics_and_wildcards() -> None:
    """[MQTT-4.7.2-1]: neither # nor + at the start matches them; a/# matches a."""
    edge, session, publisher = with_clients()
    session.subscribe("#", "+/x", "$other/#", qos=0)
    session.subscribe("a/#", qos=0)
    session.read()
    for topic in ("$other/x", "a"):
        publisher.publish(topic, topic.encode())
    edge.turn()
    assert payloads(session) == [b"$other/x", b"a"]
    assert isinstance(session.client, Client)


def test_largest_packet_fits_into_a_frame_between_nodes() -> None:
    """A larger setting is refused at the start; otherwise a message of that size would close the link repeatedly."""
    payload = bytes(PACKET_BYTES_MAX - 5 - 2 - 65_535)
    message = PublishMessage(1, b"t" * 65_535, payload, 1, share=b"s" * 65_535, partitions=tuple(range(PARTITIONS_MAX)))
    assert len(encode_message(message)) < FRAME_BYTES_MAX
    with pytest.raises(ValidationError, match="maximum_packet_size"):
        EdgeSettings(maximum_packet_size=PACKET_BYTES_MAX + 1)
