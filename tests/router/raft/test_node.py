"""The shell with real files and threads: one member, three members, restart, snapshot, a lost disk."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from router.raft.events import ChangeMembership, RaftConfig, RaftRole
from router.raft.log import RaftLog, create_log
from router.raft.messages import Configuration, InstallSnapshot, LogEntry, RaftMessage, decode_message, encode_message
from router.raft.node import NotLeader, RaftNode, Unavailable
from tests.patience import PATIENCE_S


class Register:
    """A state machine: the list of applied entries."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def apply(self, entry: LogEntry) -> int:
        self.values.append(entry.data)
        return len(self.values)

    def capture(self) -> Callable[[], bytes]:
        data = b"\n".join(self.values)
        return lambda: data

    def restore(self, data: bytes) -> None:
        self.values = data.split(b"\n") if data else []


class Group:
    """Nodes in one process; messages are encoded and decoded."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = settings
        self.nodes: dict[str, RaftNode] = {}
        self.registers: dict[str, Register] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.cut: set[str] = set()
        self.lives = 0

    def create(self, peer: str) -> None:
        self.lives += 1
        create_log(self.folder / peer, random.Random(self.lives).getrandbits(62) + 1)

    async def start_all(self, nursery: trio.Nursery) -> tuple[str, ...]:
        """Start three voters on fresh disks; return their names."""
        names = ("a", "b", "c")
        for name in names:
            self.create(name)
        for name in names:
            await self.start(nursery, name, names)
        return names

    async def start(self, nursery: trio.Nursery, peer: str, voters: tuple[str, ...], **node_settings: Any) -> None:
        self.lives += 1
        register = self.registers[peer] = Register()

        def send(to: str, message: RaftMessage) -> None:
            if to in self.nodes and not {peer, to} & self.cut:
                self.nodes[to].receive(decode_message(encode_message(message)))

        node = RaftNode(
            RaftConfig(id=peer, voters=voters, **{"election_timeout_s": 0.15, "heartbeat_s": 0.03, **self.settings}),
            RaftLog(self.folder / peer),
            send=send,
            apply=register.apply,
            take_snapshot=register.capture,
            restore=register.restore,
            rng=random.Random(self.lives),
            incarnation=self.lives,
            **node_settings,
        )
        self.nodes[peer] = node
        scope = self.scopes[peer] = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            with scope:
                await node.run(task_status)

        await nursery.start(run)

    def stop(self, peer: str) -> None:
        self.scopes.pop(peer).cancel()
        del self.nodes[peer]

    async def leader(self) -> RaftNode:
        while True:
            for node in self.nodes.values():
                if node.is_leader:
                    return node
            await trio.sleep(0.005)

    async def propose(self, data: bytes) -> int:
        while True:
            try:
                return int(await (await self.leader()).propose(data))
            except (NotLeader, Unavailable):
                await trio.sleep(0.005)


async def until(condition: Any, limit_s: float = PATIENCE_S) -> None:
    with trio.fail_after(limit_s):
        while not condition():
            await trio.sleep(0.005)


async def test_single_voter_leads_at_once_and_keeps_its_log(tmp_path: Path) -> None:
    """Without a timeout; a restart finds every acknowledged entry."""
    group = Group(tmp_path, election_timeout_s=600.0, heartbeat_s=100.0)
    group.create("a")
    async with trio.open_nursery() as nursery:
        await group.start(nursery, "a", ("a",))
        with trio.fail_after(PATIENCE_S):
            assert await group.propose(b"one") == 1
            assert await group.nodes["a"].read_index() >= 2
        group.stop("a")
    async with trio.open_nursery() as nursery:
        await group.start(nursery, "a", ("a",))
        await until(lambda: group.registers["a"].values == [b"one"])
        assert group.nodes["a"].core.role is RaftRole.LEADER
        nursery.cancel_scope.cancel()


async def test_only_a_single_voter_answers_a_read_without_a_round(tmp_path: Path) -> None:
    """Among three, even a leader that has applied all entries must confirm its leadership."""
    alone, three = Group(tmp_path / "one", election_timeout_s=600.0, heartbeat_s=100.0), Group(tmp_path / "three")
    for group, names in ((alone, ("a",)), (three, ("a", "b", "c"))):
        for name in names:
            group.create(name)
    async with trio.open_nursery() as nursery:
        await alone.start(nursery, "a", ("a",))
        await alone.propose(b"one")
        assert alone.nodes["a"].reads_now
        for name in ("a", "b", "c"):
            await three.start(nursery, name, ("a", "b", "c"))
        await three.propose(b"one")
        assert not any(node.reads_now for node in three.nodes.values())
        alone.stop("a")
        nursery.cancel_scope.cancel()


async def test_three_nodes_elect_and_replicate(tmp_path: Path) -> None:
    """Fresh disks exchange storage ids, elect, replicate, fail over and serve reads at a follower."""
    group = Group(tmp_path)
    async with trio.open_nursery() as nursery:
        peers = await group.start_all(nursery)
        with trio.fail_after(PATIENCE_S):
            first = await group.leader()
        with pytest.raises(NotLeader):
            await next(node for node in group.nodes.values() if node is not first).propose(b"x")
        for at in range(20):
            await group.propose(b"%d" % at)
        await until(lambda: all(len(register.values) == 20 for register in group.registers.values()))
        group.stop(first.core.id)
        with trio.fail_after(PATIENCE_S):
            await group.propose(b"after")
        follower = next(node for node in group.nodes.values() if not node.is_leader)
        with trio.fail_after(PATIENCE_S):
            await follower.read_index()
        assert group.registers[follower.core.id].values[-1] == b"after"
        await group.start(nursery, first.core.id, peers)
        await until(lambda: group.registers[first.core.id].values[-1:] == [b"after"])
        nursery.cancel_scope.cancel()


async def test_late_node_gets_a_snapshot_and_joins_as_learner(tmp_path: Path) -> None:
    """A compacted log is replaced by a snapshot in chunks; a learner is promoted when caught up."""
    group = Group(tmp_path, snapshot_chunk_bytes=64, trailing_entries=5)
    for peer in ("a", "b"):
        group.create(peer)
    async with trio.open_nursery() as nursery:
        await group.start(nursery, "a", ("a",), snapshot_every_entries=20)
        for at in range(100):
            await group.propose(b"value %d" % at)
        await until(lambda: group.nodes["a"].core.log.base_index > 0)
        await group.start(nursery, "b", ())
        await group.nodes["a"].change_membership(ChangeMembership("add_learner", "b"))
        await until(lambda: len(group.registers["b"].values) == 100)
        with trio.fail_after(PATIENCE_S):
            await group.nodes["a"].change_membership(ChangeMembership("promote", "b"))
        assert await group.propose(b"last") == 101
        await until(lambda: group.registers["b"].values == group.registers["a"].values)
        group.stop("b")
        await group.start(nursery, "b", ())
        await until(lambda: group.registers["b"].values == group.registers["a"].values)
        nursery.cancel_scope.cancel()


async def test_node_with_a_lost_disk_does_not_count_until_added_again(tmp_path: Path) -> None:
    """etcd #21178: an empty disk under a known name must not make a majority."""
    group = Group(tmp_path)
    async with trio.open_nursery() as nursery:
        peers = await group.start_all(nursery)
        await group.propose(b"kept")
        leader = (await group.leader()).core.id
        lost, other = [peer for peer in peers if peer != leader]
        group.stop(lost)
        await until(lambda: group.registers[other].values == [b"kept"])
        shutil.rmtree(tmp_path / lost)
        group.create(lost)
        await group.start(nursery, lost, peers)
        await until(lambda: group.nodes[lost].core.identity_refused)
        group.cut.add(other)  # a majority of names, a minority of disks
        with trio.move_on_after(0.6):
            await group.propose(b"must not commit")
            raise AssertionError("the lost disk was counted")
        group.cut.clear()
        for action in ("remove", "add_learner", "promote"):
            with trio.fail_after(PATIENCE_S):
                while True:
                    try:
                        await (await group.leader()).change_membership(ChangeMembership(action, lost))
                        break
                    except (NotLeader, Unavailable):
                        await trio.sleep(0.01)
        await until(lambda: group.nodes[lost].core.is_voter)
        await until(lambda: group.registers[lost].values[:1] == [b"kept"])
        nursery.cancel_scope.cancel()


async def test_unrestorable_snapshot_does_not_end_the_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The follower keeps its state and continues; one log line names the sender, for any number of repeats."""
    group = Group(tmp_path)
    group.create("a")
    voters = Configuration({"a": 1, "b": 2})
    async with trio.open_nursery() as nursery:
        await group.start(nursery, "a", ("a", "b"), snapshot_fault=lambda data: "damaged" if data == b"bad" else "")
        node = group.nodes["a"]
        for _ in range(3):
            node.receive(InstallSnapshot("b", "a", 1, 1, 2, 0, 9, 1, voters, 0, b"bad", True, 1))
        await until(lambda: node.drops.get("snapshot_not_restorable") == 3)
        assert (group.registers["a"].values, node.core.log.last_index, node.core.commit_index) == ([], 0, 0)
        node.receive(InstallSnapshot("b", "a", 1, 1, 2, 0, 9, 1, voters, 0, b"good", True, 1))
        await until(lambda: group.registers["a"].values == [b"good"])
        nursery.cancel_scope.cancel()
    assert [record.getMessage() for record in caplog.records if "refused the snapshot" in record.message] == [
        "refused the snapshot of router 'b' behind entry 9 (damaged): this router keeps the state that it has"
    ]


class FailingLog(RaftLog):
    """A disk whose sync fails on request."""

    failing = False

    def sync(self) -> None:
        if self.failing:
            raise OSError(5, "Input/output error")
        super().sync()


async def test_disk_error_stops_the_node_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    """Waiting callers get "stopped", and the task ends with the error."""
    group = Group(tmp_path)
    group.create("a")
    async with trio.open_nursery() as nursery:
        await group.start(nursery, "a", ("a",))
        await group.propose(b"kept")
        group.stop("a")
    disk = FailingLog(tmp_path / "a")
    register = Register()
    node = RaftNode(
        RaftConfig(id="a", voters=("a",)),
        disk,
        send=lambda *_: None,
        apply=register.apply,
        take_snapshot=register.capture,
        restore=register.restore,
        rng=random.Random(1),
        incarnation=9,
    )
    answers: list[str] = []

    async def propose() -> None:
        await until(lambda: node.is_leader)
        await until(lambda: register.values == [b"kept"])
        disk.failing = True
        try:
            await node.propose(b"lost")
        except Unavailable as error:
            answers.append(error.reason)

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(propose)
            await node.run()
    assert caught.group_contains(OSError)
    assert register.values == [b"kept"]
    with pytest.raises(Unavailable):
        await node.propose(b"too late")


async def test_deposed_leader_reports_an_unknown_result(tmp_path: Path) -> None:
    """Not "failed": the entry may commit under the next leader."""
    group = Group(tmp_path)
    async with trio.open_nursery() as nursery:
        await group.start_all(nursery)
        await group.propose(b"first")
        leader = await group.leader()
        group.cut.add(leader.core.id)
        with pytest.raises(Unavailable, match="unknown"), trio.fail_after(PATIENCE_S):
            await leader.propose(b"alone")
        with pytest.raises(Unavailable), trio.fail_after(PATIENCE_S):
            await leader.read_index()
        nursery.cancel_scope.cancel()


async def test_waiting_proposals_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the caller gets "busy" at once."""
    monkeypatch.setattr("router.raft.node.MAX_WAITING_PROPOSALS", 10)
    group = Group(tmp_path)
    group.create("a")
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:
        await group.start(nursery, "a", ("a",))
        await group.propose(b"x")
        node = group.nodes["a"]

        async def propose() -> None:
            try:
                await node.propose(b"y")
            except Unavailable as error:
                reasons.append(error.reason)

        async with trio.open_nursery() as proposers:
            for _ in range(30):
                proposers.start_soon(propose)
        nursery.cancel_scope.cancel()
    assert set(reasons) == {"busy"}
    assert 0 < len(reasons) <= 20
