"""Fuzz targets of Raft: messages between routers, and the snapshots of the map in them.

A decodable message from any sender goes to the core of a follower; a leading router restores an accepted
snapshot, and then uses it. Only errors that stop the shell are raised.
"""

import contextlib
import random
from typing import Any

import msgspec

from router.core import RouterCore
from router.events import Applied, RoleChanged, RoundEnded
from router.map.commands import Bootstrap, Command, Delegate, Order, RegisterNode, StartRebalance
from router.map.machine import MapMachine
from router.placement.plan import Move, RebalancePlan
from router.policy.router_snapshot import snapshot_fault
from router.raft import messages as raft
from router.raft.core import RaftCore
from router.raft.events import Persisted, RaftConfig, RaftTick, Receive, StoredRaftState
from router.settings import RouterLimits
from tests.fuzz.nested import mutate_tree
from wire.decoding import Unreadable
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import FollowMap, Heartbeat, RegisterRequest
from wire.messages.operators import Admin
from wire.messages.routes import Resolve
from wire.node.events import FrameArrived, LinkUp, NodeTick

__all__ = ["RAFT", "SNAPSHOTS", "mutate_raft", "raft_messages", "snapshots"]

INPUTS_MAX = 200  # of one core: its state stays small
NODES = (("r1", "router"), ("s1", "storage"), ("s2", "storage"), ("e1", "edge"))


def _snapshot() -> bytes:
    machine = MapMachine()
    commands: list[Command] = [Bootstrap("c", 4, 4, 2, 1, 2.0)]
    commands += [RegisterNode(NodeEntry(node, tier, 1, "h:1")) for node, tier in NODES]
    commands += [Delegate("plant", 2, "r1"), Order("first", Delegate("order", 1))]
    for command in commands:
        assert not machine.apply(command).refusal
    moves = (Move("partition", 0, ("s1",), ("s2",), ("s2", "s1"), 1, 1), Move("shard", 1, ("r1",), ("r1",)))
    assert not machine.apply(StartRebalance(RebalancePlan(machine.map.epoch, moves))).refusal
    return machine.snapshot()


SNAPSHOTS = (_snapshot(), MapMachine().snapshot())


def snapshots(data: bytes) -> None:
    """Restore a snapshot as a running leader would, and send requests of every kind of node."""
    if snapshot_fault(data):
        return
    core = RouterCore(NodeEntry("r1", "router", 1, "h:1"), RouterLimits("c", 4, 4, 2, 1))
    core.restore(data)
    restored = msgspec.msgpack.decode(core.machine.snapshot())
    assert not snapshot_fault(core.machine.snapshot()), restored
    now = 100.0
    events: list[Any] = [RoleChanged(True, "r1")]
    for node, tier in (*NODES, ("admin:ann/1", "operator")):
        peer = PeerKey(node, tier, 1)
        requests = [
            Admin(1, verb, {}) for verb in ("cluster status", "ring show", "ring plan", "ring status", "node list")
        ]
        if tier != "operator":
            beat = Heartbeat(node, 1, now, 0, ["s1"], {0: (0, 0)})
            requests = [RegisterRequest(1, NodeEntry(node, tier, 1, "h:1")), beat]  # type: ignore[list-item]
            requests += [FollowMap(0)] if tier != "router" else []  # type: ignore[list-item]
            requests += [Resolve(1, 0, 1, ["a"])] if tier == "edge" else []  # type: ignore[list-item]
        events += [LinkUp(peer), *(FrameArrived(peer, FrameKind.CONTROL, encode_control(one)) for one in requests)]
    for _ in range(8):
        ready = core.handle(now, events or [NodeTick()])
        events = [Applied(proposal.data) for proposal in ready.proposals]
        events += [RoundEnded(context, True) for context in ready.rounds]
        now += 1.0


# --- messages

_HEADERS = [(sender, "a", 3, 1, disk, 11) for sender, disk in (("b", 12), ("c", 13), ("x", 99))]
_GROUP = raft.Configuration({"a": 11, "b": 12, "c": 13})
RAFT = tuple(
    raft.encode_message(message)
    for header in _HEADERS
    for message in (
        raft.PreVote(*header, 4, 5, 3),
        raft.PreVoteReply(*header, 4, True),
        raft.RequestVote(*header, 5, 3),
        raft.RequestVoteReply(*header, True),
        raft.AppendEntries(*header, 0, 0, 1, 1, (raft.LogEntry(1, 3, "normal", b"x"),)),
        raft.AppendEntries(*header, 1, 3, 1, 1, (raft.LogEntry(2, 3, "config", raft.encode_configuration(_GROUP)),)),
        raft.AppendEntriesReply(*header, True, 1, 1),
        raft.AppendEntriesReply(*header, False, 1, 0, 1, 1, 1),
        raft.InstallSnapshot(*header, 5, 3, _GROUP, 0, SNAPSHOTS[0][:100], False, 1),
        raft.InstallSnapshot(*header, 5, 3, _GROUP, 100, SNAPSHOTS[0][100:], True, 1),
        raft.InstallSnapshot(*header, 5, 3, _GROUP, 0, SNAPSHOTS[0], True, 1),
        raft.InstallSnapshotReply(*header, 5, 100, 0, 1),
        raft.TimeoutNow(*header),
        raft.ReadIndex(*header, 7),
        raft.ReadIndexReply(*header, 7, 1, 5),
    )
)


class _Router:
    """Core "a" of three voters on a disk that obeys, renewed now and then."""

    def __init__(self) -> None:
        config = RaftConfig(id="a", voters=("a", "b", "c"), storage_ids={"a": 11, "b": 12, "c": 13})
        self.core = RaftCore(config, StoredRaftState(11), random.Random(1), 5, snapshot_fault)
        self.machine = MapMachine()
        self.now = 0.0
        self.inputs: list[bytes] = []

    def give(self, event: Any) -> None:
        ready = self.core.handle(self.now, event)
        if ready.snapshot is not None:
            self.machine.restore(ready.snapshot.data)
        for message in (*ready.early_messages, *ready.messages):
            raft.encode_message(message)
        if ready.must_persist:
            self.give(Persisted(ready.number))

    def take(self, data: bytes, message: raft.RaftMessage) -> None:
        self.inputs.append(data)
        try:
            self.give(Receive(message))
            self.now += 0.1
            self.give(RaftTick())
        except Exception as error:
            error.add_note("inputs of this core: " + " ".join(seen.hex() for seen in self.inputs))
            raise
        assert self.core.log.last_index - self.core.log.base_index <= len(self.inputs) * 200


_router = _Router()


def raft_messages(data: bytes) -> None:
    """Read a message, and let a follower, candidate or leader take it, as the messages before have made it."""
    global _router
    with contextlib.suppress(Unreadable):
        read = raft.decode_message(data)
        assert raft.decode_message(raft.encode_message(read)) == read
        if len(_router.inputs) >= INPUTS_MAX:
            _router = _Router()
        router = _router
        _router = _Router()  # should this one break
        router.take(data, read)
        _router = router


def mutate_raft(corpus: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return a message whose tree is changed, or the snapshot in it."""
    data = rng.choice(corpus)
    if rng.randrange(4):
        return mutate_tree((data,), rng)
    damaged = mutate_tree(SNAPSHOTS, rng)
    header = rng.choice(_HEADERS)
    return raft.encode_message(raft.InstallSnapshot(*header, 5, 3, _GROUP, 0, damaged, True, 1))
