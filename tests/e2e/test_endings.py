"""How connections and sessions end, on real sockets across two edges: reasons read, takeovers, wills, expiry."""

import time
from collections.abc import Iterator

import pytest

from mqtt.packets import Disconnect, Publish, Will
from mqtt.properties import PropertyId
from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "2") as running:
        yield running


def connected(cluster: LocalCluster, edge: int = 0) -> BlockingClient:
    """Return a client of MQTT 5 at an edge."""
    return BlockingClient(cluster.port(edge, "plain"), timeout_s=TIMEOUT_S)


def test_reason_code_readable_despite_unread_input(cluster: LocalCluster) -> None:
    """[MQTT-4.13.1-1]: DISCONNECT, then the end of file; a TCP reset would discard the reason code."""
    client = connected(cluster)
    client.open("broken")
    client.send(b"\x33\x00" + bytes(200_000))  # QoS 1 with an empty body, and much behind it
    packet = client.read()
    assert isinstance(packet, Disconnect) and packet.reason_code == 0x81
    assert client.read() is None


def test_takeover_at_another_edge(cluster: LocalCluster) -> None:
    """[MQTT-3.1.4-3]: the older connection reads 0x8E; the newer one gets later messages."""
    older, newer, publisher = connected(cluster, 0), connected(cluster, 1), connected(cluster, 0)
    older.open("taken")
    older.subscribe("taken/t")
    newer.open("taken")
    packet = older.read()
    assert isinstance(packet, Disconnect) and packet.reason_code == 0x8E
    assert older.read() is None
    newer.subscribe("taken/t")
    publisher.open("taker")
    publisher.send(Publish("taken/t", b"x"))
    assert newer.published().payload == b"x"


@pytest.mark.parametrize(("ending", "fires"), [(Disconnect(0), False), (Disconnect(4), True), (None, True)])
def test_will(cluster: LocalCluster, ending: Disconnect | None, fires: bool) -> None:
    """DISCONNECT 0x00 discards it, 0x04 and a lost connection publish it [MQTT-3.14.4-3] [MQTT-3.1.2-8]."""
    watcher, client = connected(cluster, 1), connected(cluster, 0)
    watcher.open("watcher")
    watcher.subscribe("will/#", "mark")
    client.open("dying", will=Will("will/1", b"gone", 1))
    if ending is not None:
        client.send(ending)
        assert client.read() is None
    client.close()
    if fires:
        assert watcher.published().payload == b"gone"
    watcher.send(Publish("mark", b"end"))
    assert watcher.published().payload == b"end"


def test_delayed_will_cancelled_by_reconnect_and_published_at_session_end(cluster: LocalCluster) -> None:
    """[MQTT-3.1.3-9]: a reconnect in time cancels it; a Clean Start ends the session, and with it the delay."""
    watcher = connected(cluster, 1)
    watcher.open("watcher-2")
    watcher.subscribe("delayed/#", "mark-2")
    will = Will("delayed/1", b"late", 1, False, {PropertyId.WILL_DELAY_INTERVAL: 60})
    expiry: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}
    for clean_start in (False, True):
        client, again = connected(cluster, 0), connected(cluster, 0)
        client.open("delayed", will=will, properties=expiry)
        client.close()
        connack = again.open("delayed", clean_start=clean_start, properties=expiry)
        assert connack.session_present is not clean_start
        again.send(Disconnect(0))
        assert again.read() is None
        if clean_start:
            assert watcher.published().payload == b"late"
        watcher.send(Publish("mark-2", b"end"))
        assert watcher.published().payload == b"end"


def test_message_expires_or_carries_remaining_interval(cluster: LocalCluster) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6], in the queue of an absent session."""
    expiry: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}
    client, publisher = connected(cluster, 0), connected(cluster, 1)
    client.open("expiring", properties=expiry)
    client.subscribe("expiring")
    client.send(Disconnect(0))
    assert client.read() is None
    publisher.open("publisher")
    for identifier, seconds in ((1, 1), (2, 50)):
        properties: dict[int, object] = {PropertyId.MESSAGE_EXPIRY_INTERVAL: seconds}
        publisher.send(Publish("expiring", b"%d" % seconds, 1, packet_identifier=identifier, properties=properties))
        publisher.read()
    time.sleep(2.1)  # the expiry itself: there is no condition to wait for
    again = connected(cluster, 1)
    assert again.open("expiring", clean_start=False, properties=expiry).session_present
    message = again.published()
    assert message.payload == b"50"
    assert 0 < int(message.properties[PropertyId.MESSAGE_EXPIRY_INTERVAL]) <= 48  # type: ignore[call-overload]


def test_request_and_response_properties_unchanged(cluster: LocalCluster) -> None:
    """Response Topic, Correlation Data and user properties arrive unchanged and in order (section 4.10)."""
    requester, responder = connected(cluster, 0), connected(cluster, 1)
    requester.open("requester")
    responder.open("responder")
    requester.subscribe("answers/1")
    responder.subscribe("questions")
    properties: dict[int, object] = {
        PropertyId.RESPONSE_TOPIC: "answers/1",
        PropertyId.CORRELATION_DATA: b"\x00\x01",
        PropertyId.USER_PROPERTY: [("a", "1"), ("b", "2"), ("a", "3")],
    }
    requester.send(Publish("questions", b"?", properties=properties))
    question = responder.published()
    assert question.properties == properties
    responder.send(
        Publish(
            str(question.properties[PropertyId.RESPONSE_TOPIC]),
            b"!",
            properties={PropertyId.CORRELATION_DATA: question.properties[PropertyId.CORRELATION_DATA]},
        )
    )
    answer = requester.published()
    assert (answer.payload, answer.properties[PropertyId.CORRELATION_DATA]) == (b"!", b"\x00\x01")
