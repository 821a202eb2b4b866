"""Every message with every kind of certificate to the core of each tier: ``python -m tests.wire.allowed_matrix``.

A small simulated cluster stands, with a stored session, messages open towards its client and one that storage has not
acknowledged. Nodes that live, under their own names, then say everything to a core of each tier. The loop of the edge
is the uncompiled one, whose whole state can be looked at; the compiled one does the same (tests/edge/hot). Prints one
line for each message that changed what it may not, and how many were tried.
"""

import sys
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.edge.hot.conftest import SourceOnly

sys.meta_path.insert(0, SourceOnly())

from tests.simulation.scene import Scene  # noqa: E402
from tests.simulation.sim_client import ClientOptions  # noqa: E402
from tests.whole_state import whole_state  # noqa: E402
from wire import messages as m  # noqa: E402
from wire.allowed import CELLS, Rule, fault_of, may_send  # noqa: E402
from wire.batches import (  # noqa: E402
    PublishMessage,
    Push,
    PushAck,
    encode_message,
    encode_publish_ack,
    encode_push,
    encode_push_ack,
)
from wire.cluster_map import MapDelta, NodeEntry  # noqa: E402
from wire.frames import FrameKind  # noqa: E402
from wire.hello import PeerKey  # noqa: E402
from wire.link import Frame, LinkCore  # noqa: E402
from wire.messages import Control, encode_control  # noqa: E402
from wire.node_events import FrameArrived, Tick  # noqa: E402
from wire.replication import Append, AppendAck, encode_replica_message  # noqa: E402

TIERS = ("edge", "storage", "router", "operator", "client")
REFUSALS = ("refused_", "acks_of_others", "requests_of_others", "answers_unknown", "relays_refused", "messages_unknown")

HIDDEN = frozenset(
    (
        *("counts", "_refusals", "_condemned", "acks_unknown"),  # refusals
        *("brought", "untold", "room", "dirty", "dirty_first", "dirty_last", "next_dirty"),  # our end of the link
        *("packet", "round_end_ns"),  # of the loop's round
        *("building", "released"),  # numbers of answers: another edge's request is told that it is over
        "_new_client_id",  # the way back to the simulation
    )
)


class Matrix:
    """One cluster, and what is said to it."""

    def __init__(self) -> None:
        self.scene = scene = Scene(
            5, routers=3, storages=3, edges=2, replicas=2, min_in_sync=1, partitions=2, shards=2, clock_offsets=False
        )
        scene.run(3.0)
        self.map = scene.map
        placement = self.map.partitions[0]
        self.primary = placement.primary
        name = scene.name_on(self.primary, "c")
        options = ClientOptions(clean_start=False, session_expiry_interval_s=3600)
        scene.client("subscriber", "e1", options, "a/#", client_id=name, qos=1)
        publisher = scene.client("publisher", "e1", ClientOptions(clean_start=True, session_expiry_interval_s=0))
        scene.publish(publisher, "a/b", "first")
        scene.run(0.3)
        scene.network.jam("subscriber", "e1")  # no acknowledgement
        scene.publish(publisher, "a/b", "unacknowledged")
        scene.run(0.5)
        self.partition = self.map.partition_for(name)
        self.client_id = name
        nodes: dict[str, Any] = dict(scene.cluster.nodes)
        self.edge = nodes["e1"].core
        self.storage = nodes[self.primary].core
        self.router = nodes[scene.leader()].core
        sessions: dict[int, Any] = self.storage.partitions[self.partition].core.sessions
        (self.session,) = sessions.values()
        for storage in ("s1", "s2", "s3"):
            scene.cut("e1", storage)
        assert publisher.publish("a/b", "open", 1)  # storage never hears of it
        scene.run(0.3)
        self.tag = int(next(iter(self.edge.hot.outboxes[self.partition].messages)))
        self.tried = 0
        self.wrong: list[str] = []
        self.edge.peers.condemn = self.edge.hot.close = _nothing  # how links are closed is looked at apart
        for tier in TIERS:
            for key in self.keys(tier):
                if self.edge.peers.get(key.node) is None:
                    self.edge.peers._peer_of(key)
        hot = self.edge.hot
        self.conn = hot.attach(-1, 1, sys.modules["edge.hot.options"].ConnOptions(), hot.now_ns)
        self.last: dict[int, list[object]] = {id(self.edge): self._state(self.edge)}
        self._sayers: dict[str, Any] = {"router": self._to_router, "storage": self._to_storage, "edge": self._to_edge}

    # -- senders

    def keys(self, tier: str) -> list[PeerKey]:
        """Return live nodes of a tier that are neither the receiver, nor what the messages speak of."""
        taken = {"edge": "e1", "storage": self.primary, "router": self.router.node}
        copies = self.map.partitions[self.partition].in_sync
        known = [entry for entry in self.map.live(tier) if entry.node not in (taken.get(tier), *copies)]
        if known:
            return [PeerKey(entry.node, tier, entry.incarnation) for entry in known[:1]]
        return [PeerKey(f"{tier}-9", tier, 77)]

    # -- what is said

    def controls(self) -> Iterator[Control]:
        """Return every control message, about things that exist: the session, the edge, the partition's primary."""
        life = self.map.nodes["e1"].incarnation
        owner, session = self.session.owner_epoch, self.session.number
        epoch = self.map.partitions[self.partition].epoch
        shard = self.map.shards[0]
        given: dict[str, Any] = {
            "entry": NodeEntry("e1", "router", life, "nowhere:1", weight=7),
            "node": "e1",
            "incarnation": life,
            "map_epoch": 10**6,
            "sent_at": 1.0,
            "partition": self.partition,
            "partition_epoch": epoch,
            "sender_epoch": epoch,
            "route_version": 10**9,
            "session": session,
            "owner_epoch": owner,
            "client_id": self.client_id,
            "connection": self.session.connection,
            "shard": 0,
            "shard_epoch": shard.epoch,
            "number": 0,
            "what": "shard",
            "epoch": 10**6,
            "reports": [m.SenderReport(self.partition, epoch, 10**9, [])],
            "routes": [m.RouteEntry("a/#")],
            "topics": ["a/b"],
            "topic_filters": ["a/#"],
            "topic_filter": "a/#",
            "subscriptions": [m.Subscription("stolen/#", 1)],
            "lease_s": 1000.0,
            "settled_epoch": 10**6,
            "data": b"",
            "delta": MapDelta(self.map.epoch + 1, forgotten=("e1",)),
            "message": m.Will("a/b", b"forged", 1),
            "will": m.Will("a/b", b"forged", 1),
            "verb": "drop_backup",
            "clean": True,
            "request": next(iter(self.edge.requests._where), self.partition),
            "pick": None,
            "share": b"g/a/#",
        }
        for kind in typing.get_args(Control):
            fields = {field.name: field for field in msgspec.structs.fields(kind)}
            values = {name: given[name] for name in fields if name in given}
            if kind in (m.Relay, m.Relayed):
                values["message"] = encode_control(m.KickSession(self.partition, self.client_id, 1, owner))
            for name, field in fields.items():
                if name not in values and field.required:
                    values[name] = _sample(field.type)
            yield kind(**values)

    def frames(self) -> Iterator[tuple[int, str, bytes]]:
        """Return (kind, name, payload) of all that is said."""
        for message in self.controls():
            yield FrameKind.CONTROL, type(message).__name__, encode_control(message)
        epoch = self.map.partitions[self.partition].epoch
        owner, session = self.session.owner_epoch, self.session.number
        seq = next(iter(self.session.inflight), 1)
        publish = PublishMessage(1 << 40, b"a/b", b"forged", 1, partitions=(self.partition,))
        yield FrameKind.PUBLISH, "PUBLISH", encode_message(publish)
        yield FrameKind.PUBLISH_ACK, "PUBLISH_ACK", encode_publish_ack(self.tag, self.partition, 0)
        yield FrameKind.PUSH, "PUSH", encode_push(Push(session, owner, epoch, 900, 900, 1, b"a/b", b"forged"))
        yield FrameKind.PUSH_ACK, "PUSH_ACK", encode_push_ack(PushAck(session, owner, epoch, seq, 4, 0))
        append = Append(self.partition, epoch, 10**6, epoch, 10**6, 0, 0, [])
        later = Append(self.partition, 10**6, 10**6, epoch, 10**6, 0, 0, [])
        yield FrameKind.REPLICATE, "REPLICATE", encode_replica_message(append)
        yield FrameKind.REPLICATE, "REPLICATE of a later epoch", encode_replica_message(later)
        ack = encode_replica_message(AppendAck(self.partition, epoch, True, 10**6))
        yield FrameKind.REPLICATE_ACK, "REPLICATE_ACK", ack
        yield FrameKind.RAFT, "RAFT", b"\x90"
        yield 77, "unknown kind", b""

    # -- the cells

    def run(self) -> None:
        """Say everything to everybody."""
        for receiver in ("router", "storage", "edge"):
            for tier in TIERS:
                for key in self.keys(tier):
                    for kind, name, payload in self.frames():
                        if not self._is_allowed(key, receiver, kind, name, payload):
                            self._say(receiver, key, kind, name, payload)

    def run_allowed(self) -> None:
        """Say what a sender may say, for a matrix in which nothing ever changes anything proves nothing."""
        primary = PeerKey(self.primary, "storage", self.map.nodes[self.primary].incarnation)
        edge = PeerKey("e1", "edge", self.map.nodes["e1"].incarnation)
        said = {name: (kind, payload) for kind, name, payload in self.frames()}
        said["Heartbeat"] = (
            FrameKind.CONTROL, encode_control(m.Heartbeat(edge.node, edge.incarnation, 1.0, self.map.epoch)),
        )  # fmt: skip
        cells = [("router", edge, "Heartbeat"), ("storage", edge, "SubscribeSession"), ("storage", edge, "PUSH_ACK")]
        cells += [("edge", primary, "PUSH"), ("edge", primary, "PUBLISH_ACK"), ("edge", primary, "KickSession")]
        for receiver, key, name in cells:
            before, after = self._sayers[receiver](key, *said[name])
            if before == after:
                self.wrong.append(f"{name} of {key.tier} {key.node} changed nothing at a {receiver}")

    def _is_allowed(self, key: PeerKey, receiver: str, kind: int, name: str, payload: bytes) -> bool:
        """Whether this sender may say this very thing: then it may change something."""
        if not may_send(key.tier, receiver, kind):
            return False
        if kind == FrameKind.CONTROL:
            message = m.decode_control(payload)
            return not fault_of(key, receiver, message) and CELLS[type(message)].rule is Rule.TIERS
        if kind == FrameKind.REPLICATE and name != "REPLICATE":
            return True  # waits, bounded, for the map
        return kind in (FrameKind.PUBLISH, FrameKind.RAFT) and key.tier == "edge"

    def _say(self, receiver: str, key: PeerKey, kind: int, name: str, payload: bytes) -> None:
        self.tried += 1
        before, after = self._sayers[receiver](key, kind, payload)
        if before != after:
            at = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), -1)
            what = f"{before[at - 1]!r} {before[at]!r} -> {after[at]!r}"
            self.wrong.append(f"{name} of a {key.tier} changed a {receiver}: {what}")

    def _to_router(self, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        return self._to_core(self.router, key, kind, payload)

    def _to_storage(self, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        return self._to_core(self.storage, key, kind, payload)

    def _to_core(self, core: Any, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        now = core._now
        if id(core) not in self.last:
            core.handle(now, [Tick()])
            self.last[id(core)] = self._state(core)
        core.handle(now, [FrameArrived(key, kind, payload)])
        return self._changed(core)

    def _changed(self, core: Any) -> tuple[list[object], list[object]]:
        before = self.last[id(core)]
        after = self.last[id(core)] = self._state(core)
        return before, after

    def _to_edge(self, key: PeerKey, kind: int, payload: bytes) -> tuple[list[object], list[object]]:
        core = self.edge
        peer = core.peers.get(key.node) or core.peers._peer_of(key)
        link, peer.link, self.conn.peer = peer.link, _OneFrame(kind, payload), peer
        sys.modules["edge.hot.forwarded"].receive_link(core.hot, self.conn, b"")
        peer.link, self.conn.peer = link, None
        return self._changed(core)

    def _state(self, core: Any) -> list[object]:
        counts = {name: count for name, count in core.counts.items() if not name.startswith(REFUSALS)}
        return [counts, *whole_state(core, lambda _, name: name in HIDDEN)]


class _OneFrame(LinkCore):
    """A link that brings one frame."""

    def __init__(self, kind: int, payload: bytes) -> None:
        super().__init__()
        self.brought = [Frame(kind, 1, payload, 0)]

    def receive(self, data: bytes) -> list[Frame]:
        """Return it once."""
        del data
        frames, self.brought = self.brought, []
        return frames


def _nothing(*_: object, **__: object) -> None:
    """Leave it open."""


def _sample(kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    origin = typing.get_origin(kind)
    return {int: 1, str: "x", bytes: b"x", bool: True, float: 1.0, list: [], dict: {}}[origin or kind]


def main() -> int:
    """Run the matrix; the exit code is 1 if something changed."""
    matrix = Matrix()
    matrix.run()
    matrix.run_allowed()
    for line in matrix.wrong:
        print(line[:400])
    print(f"{matrix.tried} refused")
    return 1 if matrix.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
