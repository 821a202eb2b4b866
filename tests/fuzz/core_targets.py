"""Fuzz targets of nodes with decodable messages: real cores, with hostile peers of every tier.

An input is a sender (one byte) and a payload. A core raises only Unreadable, which closes a link, and
its state stays bounded. A cluster is replaced after ``INPUTS_MAX`` inputs, so at most that many inputs
reproduce a failure: they are in its note.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import msgspec

from router.core import RouterCore
from router.events import Applied, RoleChanged, RoundEnded
from router.settings import RouterLimits
from storage.event_queue import RECORDS
from tests.edge.edge_harness import Edge
from tests.fuzz.good_messages import CONNECT_ANSWERS, CONNECTS, CONTROLS
from tests.fuzz.nested import mutate_tree
from tests.storage.storage_cluster import Cluster
from wire.decoding import Unreadable
from wire.messages.batches import PublishMessage, PushAck, encode_message, encode_push_ack
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import CONTROLS_MAX, decode_control, encode_control, join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import FollowMap, Heartbeat, RegisterRequest
from wire.messages.replication import Append, AppendAck, TransferSlice, encode_replica_message
from wire.messages.retained import ReadRetained, ReadRetainedAll
from wire.messages.routes import AddRoutes, Resolve
from wire.messages.sessions import OpenSession, RecordInbound, SubscribeSession
from wire.node.events import FrameArrived, LinkUp, NodeTick

__all__ = [
    "EDGE_CORE",
    "REPLICA",
    "ROUTER_CORE",
    "STORAGE_CORE",
    "check_edge",
    "check_router",
    "check_storage",
    "mutate_message",
]

INPUTS_MAX = 200
RECORDS_MANY = 40
ASKED: set[type] = {AddRoutes, OpenSession, ReadRetained, ReadRetainedAll, RecordInbound, Resolve, SubscribeSession}
OPERATOR = PeerKey("admin:ann/cli-1", "operator", 1)


def mutate_message(corpus: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return a good input with its message changed as a tree; sometimes from another sender."""
    data = rng.choice(corpus)
    who = data[:1] if rng.randrange(4) else bytes((rng.randrange(256),))
    if rng.randrange(16) == 0:
        body = bytearray(data[1:])
        for _ in range(rng.randrange(4)):
            body[rng.randrange(len(body) + 1) :][:1] = bytes((rng.randrange(256),))
            if body:
                body[rng.randrange(len(body))] = rng.randrange(256)
        return who + bytes(body)
    return who + mutate_tree((data[1:],), rng)


class _Session:
    """A core, renewed now and then, and the inputs that it has had."""

    def __init__(self, begin: Callable[[], Callable[[bytes], None]]) -> None:
        self._begin = begin
        self._seen: list[bytes] = []
        self._take: Callable[[bytes], None] | None = None

    def check(self, data: bytes) -> None:
        if self._take is None or len(self._seen) >= INPUTS_MAX:
            self._take, self._seen = self._begin(), []
        self._seen.append(data)
        try:
            self._take(data)
        except Exception as error:
            error.add_note("inputs of this core: " + " ".join(seen.hex() or "-" for seen in self._seen))
            self._take = None
            raise


# --- router


def _router() -> Callable[[bytes], None]:
    core = RouterCore(NodeEntry("r1", "router", 1, "r1:1"), RouterLimits("c", 8, 4, 2, 1))
    now = 100.0
    peers = [PeerKey(name, tier, 1) for name, tier in (("e1", "edge"), ("s1", "storage"), ("r2", "router"))]
    # Their leases are kept, and every proposal is committed at once.

    def turn(events: list[object]) -> None:
        nonlocal now
        now += 0.01
        for _ in range(20):
            ready = core.handle(now, events or [NodeTick()])  # type: ignore[arg-type]
            assert all(len(payload) <= 8 * 1024 * 1024 for _, _, payload in ready.sends)
            events = [Applied(proposal.data) for proposal in ready.proposals]
            events += [RoundEnded(context, True) for context in ready.rounds]
            if not events:
                return

    turn([RoleChanged(True, "r1")])
    for peer in (*peers, OPERATOR):
        turn([LinkUp(peer)])
    for peer in peers:
        entry = NodeEntry(peer.node, peer.tier, 1, "h:1")
        turn([FrameArrived(peer, FrameKind.CONTROL, encode_control(RegisterRequest(1, entry)))])
        turn([FrameArrived(peer, FrameKind.CONTROL, encode_control(FollowMap(0)))])

    def take(data: bytes) -> None:
        for peer in peers:
            beat = encode_control(Heartbeat(peer.node, 1, now, core.machine.map.epoch))
            turn([FrameArrived(peer, FrameKind.CONTROL, beat)])
        who = (*peers, OPERATOR)[data[0] % 4 if data else 0]
        turn([FrameArrived(who, FrameKind.CONTROL, data[1:])])
        assert len(core.machine.map.nodes) <= INPUTS_MAX + 4
        assert len(core.machine.map.partitions) == 8
        assert len(core.shards) <= len(core.machine.map.shards) <= 4 + INPUTS_MAX

    return take


# --- storage

_BY_STORAGE = {
    FrameKind.CONTROL,
    FrameKind.CONTROLS,
    FrameKind.PUBLISH,
    FrameKind.PUSH_ACK,
    FrameKind.REPLICATE,
    FrameKind.REPLICATE_ACK,
    FrameKind.CONNECTS,
}


def _storage() -> Callable[[bytes], None]:
    cluster = Cluster(nodes=2, replicas=2, partitions=4)
    edge = cluster.edges["e1"]
    for number in range(4):
        connection = edge.open(f"c{number}")
        edge.subscribe(connection, "a/#", "$share/g/a/#")
    known = (Heartbeat, FollowMap, RegisterRequest)

    def passes(_source: PeerKey, target: str, kind: int, payload: bytes) -> bool:
        if target in cluster.edges:
            return False
        return target != "r1" or (kind == FrameKind.CONTROL and isinstance(decode_control(payload), known))

    cluster.filter = passes
    peers = [edge.key, cluster.router.key, cluster.nodes["s2"].key, cluster.edges["e2"].key]
    kinds = sorted(_BY_STORAGE)

    def take(data: bytes) -> None:
        choice = data[0] if data else 0
        kind = kinds[choice // 4 % len(kinds)]
        times = RECORDS_MANY if choice & 0x80 and kind in RECORDS else 1  # so many are taken in parts
        for node in cluster.nodes.values():
            node.receive(peers[choice % 4], kind, data[1:] * times)
        for _ in range(2 * times):
            cluster.step()
        for node in cluster.nodes.values():
            assert len(node.core.placements.replicas) <= INPUTS_MAX + 4
            assert sum(len(item.partition.sessions) for item in node.core.partitions.values()) <= INPUTS_MAX + 4

    return take


# --- edge


def _edge() -> Callable[[bytes], None]:
    edge = Edge()
    clients = [edge.client(f"c{number}", properties={0x11: 3600 * (number % 2)}) for number in range(4)]
    for number, client in enumerate(clients):
        client.subscribe("a/#", "$share/g/a/#", identifier=number + 1)
    names = ("r0", "s0", "s1", "e1")

    def take(data: bytes) -> None:
        choice = data[0] if data else 0
        peer = edge.core.peers.get(names[choice % 4])
        if peer is None or peer.key is None:
            raise _Over
        edge.held = ASKED if choice & 0x80 else set()  # requests stay open for the input to answer
        edge.core.hot.begin_turn(edge.ns)
        with contextlib.suppress(Unreadable):
            kind = FrameKind.CONNECT_ANSWERS if data[1:2] == b"\xdc" else FrameKind.CONTROL
            edge.core.frame(peer, kind, _as_answer(edge, data[1:]) if choice & 0x20 else data[1:])
        for client in clients:
            if not client.closed and choice & 0x40:
                client.publish(f"a/{choice >> 2 & 3}", qos=choice >> 4 & 1, identifier=1 + choice % 3)
                if choice & 0x08:
                    client.subscribe(f"b{choice >> 2 & 3}/+", identifier=9)
        edge.turn(0.05)
        core = edge.core
        assert len(core.requests) <= core.limits.requests_max
        assert core.hot.counters()["routes"] <= 65_536
        assert len(core.claims) <= INPUTS_MAX

    def until_over(data: bytes) -> None:
        try:
            take(data)
        except _Over:  # the edge's new map does not have the node
            pass

    return until_over


def _as_answer(edge: Edge, payload: bytes) -> bytes:
    """Return the message as an answer to the edge's last pending request."""
    asked = [number for _, message in edge.core.told if (number := getattr(message, "request", 0))]
    try:
        plain = msgspec.msgpack.decode(payload)
    except Exception:
        return payload
    request = asked[len(payload) % len(asked)] if asked else 0
    if asked and isinstance(plain, dict):
        return msgspec.msgpack.encode({**plain, "request": request})
    if asked and isinstance(plain, list) and all(isinstance(record, list) for record in plain):
        return join_controls([msgspec.msgpack.encode([*one[:1], request, *one[2:]]) for one in plain[:CONTROLS_MAX]])
    return payload


class _Over(Exception):
    """The cluster has come to an end; the next input begins another."""


_SESSIONS: dict[str, _Session] = {}


def _check(name: str, begin: Callable[[], Callable[[bytes], None]], data: bytes) -> None:
    if name not in _SESSIONS:
        _SESSIONS[name] = _Session(begin)
    _SESSIONS[name].check(data)


def check_router(data: bytes) -> None:
    """A message to a router that leads."""
    _check("router", _router, data)


def check_storage(data: bytes) -> None:
    """A message to two storage nodes, primary and backup of four partitions."""
    _check("storage", _storage, data)


def check_edge(data: bytes) -> None:
    """A message to an edge with four clients."""
    _check("edge", _edge, data)


def _from(choices: range, payloads: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(bytes((choice,)) + payload for choice in choices for payload in payloads)


REPLICA = tuple(
    encode_replica_message(message)
    for message in (
        Append(0, 1, 0, 0, 0, 0, 0, []),
        Append(1, 2, 5, 1, 6, 1, 2, [b"\x95\x02\x06\x90\x01\xc3"]),
        AppendAck(0, 1, True, 4),
        AppendAck(1, 2, False, 3, 1, True, 1, 2),
        TransferSlice(1, 2, 1, 0, b"\0\1", b"\0\2", [(b"\0\1k", b"v")], True),
    )
)
_PUBLISH = encode_message(PublishMessage(7, b"a/b", b"m", 1, partitions=(0, 3), origin_a=10, origin_b=7))
_PICK = encode_message(PublishMessage(8, b"a/b", b"m", 2, partitions=(1,), share=b"g/a/#", retain=True))
_PUSH_ACK = encode_push_ack(PushAck(1 << 48, 1 << 32, 1, 1, 4, 0))

ROUTER_CORE = _from(range(4), CONTROLS)
EDGE_CORE = _from(range(4), CONTROLS + CONNECT_ANSWERS) + _from(range(0xE0, 0x100), CONTROLS + CONNECT_ANSWERS)
STORAGE_CORE = (
    *_from(range(4), CONTROLS),
    *_from(range(4, 8), (_PUBLISH, _PICK)),
    *_from(range(8, 12), (_PUSH_ACK,)),
    *_from(range(12, 20), REPLICA),
    *_from(range(24, 28), CONNECTS),
)
