"""Fuzz targets of the six messages over UDP: their bytes, a node among hostile partners, and sealed datagrams.

An input of the node is a sender (one byte) and a datagram. No exception is raised; an unproved address gets at most
three times its bytes; state is bounded; each answer encodes. A sealed datagram is opened
only if the partner sealed it in this session, and once; no input creates a second session.
"""

from __future__ import annotations

from random import Random
from typing import Any

from gateways.datagrams import stratamq_udp_pb2
from gateways.datagrams.messages import (
    Body,
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    Join,
    MalformedDatagram,
    PubAccept,
    PubAck,
    PubConnect,
    decode,
    encode,
)
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.node_events import (
    Arrived,
    ClusterAnswered,
    ClusterGranted,
    ClusterMessage,
    DatagramNodeSettings,
    DatagramReady,
    Event,
)
from gateways.datagrams.proofs import AMPLIFICATION_MAX, Proofs
from gateways.datagrams.sealed import SEALED_BYTES, SealedPort
from gateways.datagrams.subscribers import DatagramPeer

__all__ = ["DATAGRAMS", "DATAGRAM_NODE", "SEALED_DATAGRAMS", "check_node", "datagrams", "mutate_packet", "sealed"]

INPUTS_MAX = 300
SUBSCRIPTIONS_MAX = 40
PARENT, NODE, CHILD, DEVICE, STRANGER, OTHER = (Endpoint(bytes((10, 0, 0, last)), 1000) for last in range(1, 7))
COOKIE = bytes(16)
PUBLISH_BYTES_MIN = len(encode(Datagram(1, DatagramPublish("a", b"", 1))))
GOOD: tuple[Body, ...] = (
    PubConnect("a/x/1", cookie=COOKIE),
    PubConnect("b", DEVICE, 3),
    PubAccept("a", 600, 1 << 17 | 1, COOKIE),
    DatagramPublish("a/x/1", b"21.5", 1, 7),
    DatagramPublish("a/y", b"", 0, 8, cookie=COOKIE),
    DatagramPublish("", b"21.5", 1, 9, 5 << 16 | 1),
    PubAck(Code.DISTRIBUTED, receivers=3),
    PubAck(Code.SUBSCRIBED, (CHILD, PARENT), 300, cookie=COOKIE),
    PubAck(Code.JOINED, lease_s=15),
    PubAck(Code.DELIVERED),
    PubAck(Code.NOT_MINE, (PARENT,)),
    PubAck(Code.BUSY),
    DatagramSubscribe("a/#", 1, cookie=COOKIE),
    DatagramSubscribe("+/x/#", 0, DEVICE, 300, hops=2),
    DatagramSubscribe("a/x/1", 1, relay=True),
    DatagramSubscribe("#", 1, cookie=COOKIE, keep_open=True),
    DatagramSubscribe("a/#", end=True),
    Join("a/x", 3, CHILD, cookie=COOKIE),
    Join("a/x", 3, CHILD, leave=True),
)
DATAGRAMS = tuple(encode(Datagram(number, body)) for number, body in enumerate(GOOD, 1))
DATAGRAM_NODE = tuple(bytes((who,)) + data for who in range(5) for data in DATAGRAMS)


def datagrams(data: bytes) -> None:
    """Decoded messages are equal after encoding and decoding."""
    try:
        packet = decode(data)
    except MalformedDatagram as error:
        assert error.rejected is None or error.rejected.request
        return
    assert decode(encode(packet)) == packet


def mutate_packet(corpus: tuple[bytes, ...], rng: Random) -> bytes:
    """Return a good input of the node with some of its fields changed, as a message: most of them are read."""
    data = rng.choice(corpus)
    who = data[:1] if rng.randrange(4) else bytes((rng.randrange(256),))
    packet: Any = stratamq_udp_pb2.Packet.FromString(data[1:])  # type: ignore[attr-defined]
    packet.request = rng.choice((packet.request, rng.randrange(1 << 42, (1 << 42) + 400), rng.getrandbits(64)))
    body = getattr(packet, packet.WhichOneof("body"))
    for field in body.DESCRIPTOR.fields:
        if rng.randrange(3):
            continue
        if field.message_type is not None:
            endpoint = rng.choice((PARENT, NODE, CHILD, DEVICE, OTHER, Endpoint(bytes(16), 65_535)))
            for each in (body.nodes.add(),) if field.is_repeated else (getattr(body, field.name),):
                each.ip, each.port = endpoint
        elif field.type == field.TYPE_STRING:
            setattr(body, field.name, rng.choice(("a", "a/x", "a/x/1", "b/#", "#", "+/x", "$SYS/a", "", "a/" * 40)))
        elif field.type == field.TYPE_BYTES:
            setattr(body, field.name, rng.choice((COOKIE, b"", bytes(900))))
        elif field.type == field.TYPE_BOOL:
            setattr(body, field.name, bool(rng.randrange(2)))
        else:
            bits = 64 if field.type == field.TYPE_UINT64 else 32
            setattr(body, field.name, rng.choice((0, 1, 2, 16, 5 << 16 | 1, rng.getrandbits(bits))))
    made = bytes(packet.SerializeToString())
    return who + (made if rng.randrange(8) else made[: rng.randrange(len(made) + 1)])


class _AnyName:
    """Rules that allow all but one topic."""

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        return bool(name or qos) and topic != "b"

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        return bool(name or qos) and topic_filter != "b"


class _Hostile:
    """A node of the middle, attached to a cluster, that is renewed now and then; and the inputs that it has had."""

    def __init__(self) -> None:
        self._seen: list[bytes] = []
        self._node: DatagramNode | None = None
        self._now = 0.0

    def _begin(self) -> DatagramNode:
        self._now, self._seen = 100.0, []
        settings = DatagramNodeSettings(
            "a",
            NODE,
            {"child": ("a/x",)},
            incarnation=5,
            first_number=1 << 42,
            redirects=True,
            attached=True,
            subscriptions_max=SUBSCRIPTIONS_MAX,
            subscriptions_per_address_max=SUBSCRIPTIONS_MAX,
            publishers_max=8,
        )
        node = DatagramNode(settings, _AnyName(), Proofs(bytes(32)), DatagramPeer(PARENT))
        (asked,) = node.handle(self._now).send
        joined = Datagram(asked.packet.request, PubAck(Code.JOINED, lease_s=15))
        node.handle(self._now, [Arrived(DatagramPeer(PARENT), "", joined, 40, True)])
        node.handle(self._now, [Arrived(DatagramPeer(CHILD, 1), "child", Datagram(1, Join("a/x", 1, CHILD)), 60, True)])
        return node

    def check(self, data: bytes) -> None:
        if self._node is None or len(self._seen) >= INPUTS_MAX:
            self._node = self._begin()
        self._seen.append(data)
        self._now += 0.05
        try:
            self._take(self._node, data[0] if data else 0, data[1:])
        except Exception as error:
            error.add_note(f"inputs: {[each.hex() for each in self._seen]}")
            self._node = None
            raise

    def _take(self, node: DatagramNode, who: int, data: bytes) -> None:
        events: list[Event] = []
        if who & 0x80:
            number, text = len(data), data.decode("latin-1")
            events.append(ClusterAnswered(number % 5, Code.BUSY if number & 1 else None))
            events += [ClusterGranted(text, bool(number & 1)), ClusterMessage("a/x/1", data, number & 1, number)]
        try:
            packet = decode(data)
        except MalformedDatagram as error:
            packet = error.rejected or Datagram(1, PubAck(Code.DELIVERED))
        peer, name, is_proved = (
            (DatagramPeer(PARENT), "", True),
            (DatagramPeer(CHILD, 1), "child", True),
            (DatagramPeer(DEVICE, 2), "device", True),
            (DatagramPeer(STRANGER, 2), "device", False),
            (DatagramPeer(STRANGER), "", False),
        )[who % 5]
        self._judge(node, node.handle(self._now, [*events, Arrived(peer, name, packet, len(data), is_proved)]), peer)
        if who & 0x40:
            self._now += 15.0
            self._judge(node, node.handle(self._now), None)
        if who & 0x20:
            self._judge(node, node.lose_cluster(), None)

    def _judge(self, node: DatagramNode, ready: DatagramReady, unproved: DatagramPeer | None) -> None:
        for sent in ready.send:
            written = encode(sent.packet)
            decode(written)
            if sent.peer == unproved and not sent.bytes_max and unproved not in ready.proved:
                # Answers to pending requests are sent without an amplification check: they are always short.
                assert unproved.endpoint != STRANGER or len(written) <= AMPLIFICATION_MAX * PUBLISH_BYTES_MIN
        assert node.statistics["subscriptions"] <= SUBSCRIPTIONS_MAX
        deadline = node.next_deadline()
        assert deadline is None or deadline >= 0


check_node = _Hostile().check


class _Session:
    """Both ends of a session, and the datagrams of each that the other has had."""

    def __init__(self) -> None:
        keys = {"pump": b"k" * 32, "valve": b"o" * 32}
        self.node, self.device = SealedPort(keys, sessions_max=16), SealedPort({}, "pump", keys["pump"])
        self.device.send(1.0, DatagramPeer(NODE), DATAGRAMS[0])
        (_, self.first) = self.device.replies.pop()
        self.node.receive(1.0, DEVICE, self.first)
        (_, self.retry) = self.node.replies.pop()
        self.device.receive(1.0, NODE, self.retry)
        (_, self.open) = self.device.replies.pop()
        self.node.receive(1.0, DEVICE, self.open)
        (_, self.opened) = self.node.replies.pop()
        self.device.receive(1.0, NODE, self.opened)
        self.good = [data for _, data in self.device.replies]
        self.device.replies.clear()
        for body in DATAGRAMS:
            made = self.device.send(1.0, DatagramPeer(NODE), body)
            assert made is not None
            self.good.append(made)
        self.taken: set[bytes] = set()


_session = _Session()
SEALED_DATAGRAMS = (_session.first, _session.retry, _session.open, _session.opened, *_session.good)


def sealed(data: bytes) -> None:
    """Receive a datagram at both ends, from an unknown and from the device's own address; see the module."""
    found = _session.node.receive(2.0, STRANGER, data)
    assert _session.node.receive(2.0, DEVICE, data) is None
    assert _session.node.sessions == 1  # an OPEN that is recorded, repeated or changed creates none
    if found is not None:
        assert data in _session.good and data not in _session.taken
        assert found[3] in DATAGRAMS
        _session.taken.add(data)
    for endpoint, answer in _session.node.replies:
        assert endpoint in (STRANGER, DEVICE) and len(answer) <= AMPLIFICATION_MAX * len(data)
    _session.node.replies.clear()
    _session.device.receive(2.0, NODE, data)
    assert not _session.device.replies
    assert found is None or len(data) >= SEALED_BYTES
