"""Each way on which a message reaches a client, and rights that hold on all of them."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from mqtt.packets import Puback, Publish, Suback, Subscribe, SubscriptionRequest, Unsuback, Unsubscribe, Will
from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_revocation_figures import order
from tests.patience import PATIENCE_S

EXPIRY = {17: 300}
QUIET_S = 0.4


class Place(NamedTuple):
    """A cluster whose users a listener authorizes, granting parts of filters."""

    cluster: LocalCluster
    edge: ExtraEdge

    def come(self, user: str, client_id: str = "", source: str = "", **options: object) -> BlockingClient:
        client = BlockingClient(self.edge.port("parts"), timeout_s=PATIENCE_S, source=source)
        client.open(client_id or user, username=user, password=b"good", **options)
        return client


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        table = {"tls": False, "allow_anonymous": False, "cluster_users": True, "cluster_roles": True}
        with extra_edge(cluster, {"parts": {**table, "on_overlap": "filter"}}) as edge:
            order(cluster, "role", "put", "writer", "--publish", "#")
            order(cluster, "role", "put", "reader", "--subscribe", "a/#", "--deny", "a/secret")
            order(cluster, "role", "put", "whole", "--subscribe", "a/#")
            order(cluster, "user", "add", "bob", "--role", "whole", password="good")
            order(cluster, "user", "add", "wren", "--role", "writer", password="good")
            order(cluster, "user", "add", "ann", "--role", "reader", password="good")
            yield Place(cluster, edge)


def received(client: BlockingClient, count: int, *, acknowledge: bool = True) -> list[str]:
    """Return the topics of the next messages and of later ones for a while; retransmissions have the suffix ``dup``."""
    found: list[str] = []
    try:
        while True:
            client.socket.settimeout(PATIENCE_S if len(found) < count else QUIET_S)
            packet = client.read()
            assert packet is not None, found
            if isinstance(packet, Publish):
                found.append(packet.topic_name + " dup" * packet.dup)
                if acknowledge and packet.packet_identifier is not None:
                    client.send(Puback(packet.packet_identifier))
    except TimeoutError:
        pass
    client.socket.settimeout(PATIENCE_S)
    return found


def write(writer: BlockingClient, retain: bool = False) -> None:
    for topic in ("a/open", "a/secret"):
        writer.send(Publish(topic, b"x", 1, retain=retain, packet_identifier=writer.next_identifier()))
        answer = writer.read()
        assert isinstance(answer, Puback) and answer.reason_code < 0x80


def test_denied_topic_below_granted_filter_never_delivered(place: Place) -> None:
    """a/# with a deny of a/secret: neither live, retransmitted, queued nor retained messages arrive."""
    writer, reader = place.come("wren"), place.come("ann", clean_start=True, properties=EXPIRY)
    reader.subscribe("a/#")
    write(writer)
    assert received(reader, 1, acknowledge=False) == ["a/open"]
    reader.close()
    back = place.come("ann", clean_start=False, properties=EXPIRY)
    assert received(back, 1) == ["a/open dup"]
    back.disconnect()
    write(writer)
    back = place.come("ann", clean_start=False, properties=EXPIRY)
    assert received(back, 1) == ["a/open"]
    write(writer, retain=True)
    assert received(back, 1) == ["a/open"]
    back.send(Subscribe(9, [SubscriptionRequest("a/#", 1)], {}))
    assert received(back, 1) == ["a/open"]
    back.disconnect()
    fresh = place.come("ann", "ann-2", clean_start=True)
    fresh.send(Subscribe(1, [SubscriptionRequest("a/#", 1)], {}))
    assert received(fresh, 1) == ["a/open"]
    fresh.close()
    for topic in ("a/open", "a/secret"):
        writer.send(Publish(topic, b"", 1, retain=True, packet_identifier=writer.next_identifier()))
        writer.read()
    writer.close()


@pytest.mark.parametrize("expiry", [{}, EXPIRY])
def test_partly_granted_filter_keeps_its_name(place: Place, expiry: dict[int, int]) -> None:
    """SUBACK grants it, a query of the session shows it unchanged, UNSUBSCRIBE finds it by that
    name, and each delivery is authorized: for a session that ends with its connection, and for a stored one.
    """
    writer, reader = place.come("wren"), place.come("ann", "ann-whole", clean_start=True, properties=expiry)
    asked = ["#", "+/open", "a/#", "a/secret/+"]
    reader.send(Subscribe(3, [SubscriptionRequest(one, 1) for one in asked], {}))
    answer = reader.read()
    assert isinstance(answer, Suback) and answer.reason_codes == [1] * len(asked)
    shown = place.cluster.admin("subscription", "show", "ann-whole")["subscriptions"]
    assert sorted(row["filter"] for row in shown) == sorted(asked)
    assert {row["durable"] for row in shown} == {bool(expiry)}
    for topic in ("a/secret", "b/open", "elsewhere", "a/secret/x", "a/open"):
        assert writer.publish(topic) < 0x80
    assert set(received(reader, 1)) <= {"a/secret/x", "a/open"}
    reader.send(Unsubscribe(4, asked, {}))
    answer = reader.read()
    assert isinstance(answer, Unsuback) and answer.reason_codes == [0] * len(asked)
    assert place.cluster.admin("subscription", "show", "ann-whole")["subscriptions"] == []
    reader.disconnect()
    writer.close()


def test_wills_and_groups_below_partly_granted_filter(place: Place) -> None:
    """A will to the denied topic is not delivered; a client may join a group of a partly granted filter."""
    reader = place.come("ann", "ann-w", clean_start=True)
    reader.subscribe("a/#")
    reader.send(Subscribe(7, [SubscriptionRequest(f"$share/g/{one}", 1) for one in ("a/#", "a/secret", "a/open")], {}))
    suback = reader.read()
    assert isinstance(suback, Suback) and suback.reason_codes == [1, 0x87, 1]
    for topic in ("a/secret", "a/open"):
        dying = place.come("wren", f"dying-{topic[2:]}", will=Will(topic, b"x", 1))
        dying.close()
    assert received(reader, 3) == ["a/open"] * 3  # its own, and as the only member of two groups
    writer = place.come("wren")
    write(writer)
    assert received(reader, 3) == ["a/open"] * 3
    reader.close()
    writer.close()


@pytest.mark.parametrize("other", [{}, EXPIRY])
@pytest.mark.parametrize("partly", [{}, EXPIRY])
def test_shared_message_goes_to_authorized_member(place: Place, partly: dict[int, int], other: dict[int, int]) -> None:
    """Stored and unstored members in one group: no message is lost or sent to an unauthorized member."""
    name = f"h{len(partly)}{len(other)}"
    writer, ann = place.come("wren"), place.come("ann", f"ann-{name}", clean_start=True, properties=partly)
    bob = place.come("bob", f"bob-{name}", clean_start=True, properties=other)
    for member in (ann, bob):
        member.subscribe(f"$share/{name}/a/#")
    for _ in range(6):
        assert writer.publish("a/secret") == 0
    assert received(bob, 6) == ["a/secret"] * 6 and received(ann, 0) == []
    for _ in range(6):
        assert writer.publish("a/open") == 0
    found = received(bob, 2), received(ann, 2)
    assert sorted(found[0] + found[1]) == ["a/open"] * 6 and all(found)
    for client in (ann, bob, writer):
        client.disconnect()


@pytest.mark.parametrize(("kind", "value"), [("address", "127.0.0.9"), ("network", "127.0.0.8/29")])
def test_pending_will_of_banned_client_not_published(place: Place, kind: str, value: str) -> None:
    """Its client is gone when the permanent ban starts; a will from another address is published."""
    reader = place.come("ann", "ann-wills", clean_start=True)
    reader.subscribe("a/#")
    for source, topic in (("127.0.0.9", "a/banned"), ("127.0.0.20", "a/open")):
        will = Will(topic, b"x", 1, properties={24: 3})  # Will Delay Interval
        dying = place.come("wren", f"from-{source}", source, will=will, clean_start=True, properties=EXPIRY)
        dying.close()
    order(place.cluster, "ban", "add", kind, value)
    try:
        assert received(reader, 1) == ["a/open"]
    finally:
        order(place.cluster, "ban", "del", kind, value)
        reader.close()


def test_permission_revoked_while_client_absent(place: Place) -> None:
    """No unacknowledged, queued or later message is delivered; SUBSCRIBE is refused."""
    order(place.cluster, "role", "put", "guest", "--subscribe", "g/#")
    order(place.cluster, "user", "add", "gus", "--role", "guest", password="good")
    writer, guest = place.come("wren"), place.come("gus", clean_start=True, properties=EXPIRY)
    guest.subscribe("g/#")
    assert writer.publish("g/1") == 0
    assert received(guest, 1, acknowledge=False) == ["g/1"]
    guest.disconnect()
    assert writer.publish("g/2") == 0
    order(place.cluster, "role", "put", "guest", "--subscribe", "other/#")
    writer.publish("g/3")
    guest = place.come("gus", clean_start=False, properties=EXPIRY)
    assert received(guest, 0) == []
    guest.send(Subscribe(5, [SubscriptionRequest("g/#", 1)], {}))
    answer = guest.read()
    assert isinstance(answer, Suback) and answer.reason_codes == [0x87]
    writer.publish("g/4")
    assert received(guest, 0) == []
    guest.close()
    writer.close()
