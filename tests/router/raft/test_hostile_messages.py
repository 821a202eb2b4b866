"""Messages of a router that is not a voter, or that sends false snapshots, in its own name: no effect.

The link has authenticated the sender's name (``check_sender``); the attacker has a real router's certificate.
"""

import random
from typing import Any

import msgspec
import pytest

from router.map.commands import Bootstrap, RegisterNode
from router.map.machine import MapMachine
from router.policy.router_snapshot import snapshot_fault
from router.raft.core import RaftCore
from router.raft.events import Event, Persisted, RaftConfig, RaftReady, RaftRole, RaftTick, Receive, StoredRaftState
from router.raft.messages import (
    CONFIG,
    NORMAL,
    AppendEntries,
    AppendEntriesReply,
    Configuration,
    InstallSnapshot,
    InstallSnapshotReply,
    LogEntry,
    PreVote,
    PreVoteReply,
    RaftMessage,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
    decode_message,
    encode_configuration,
    encode_message,
)
from wire.decoding import Unreadable
from wire.messages.cluster_map import NodeEntry

VOTERS = ("a", "b", "c")
STRANGER = "x"
FAR = (1 << 62) - 1


class Router:
    """Core ``a`` of three voters, with an immediate disk."""

    def __init__(self, **options: Any) -> None:
        config = RaftConfig(id="a", voters=VOTERS, storage_ids={"a": 11, "b": 12, "c": 13})
        self.core = RaftCore(config, StoredRaftState(11), random.Random(1), 5, **options)
        self.now = 0.0
        self.restored: list[bytes] = []
        self.give(RaftTick())

    def give(self, event: Event) -> list[RaftMessage]:
        ready: RaftReady = self.core.handle(self.now, event)
        sent = [*ready.early_messages, *ready.messages]
        if ready.snapshot is not None:
            self.restored.append(ready.snapshot.data)
        return sent + (self.give(Persisted(ready.number)) if ready.must_persist else [])

    def take(self, message: RaftMessage) -> list[RaftMessage]:
        return self.give(Receive(decode_message(encode_message(message))))

    def follow(self) -> None:
        """Follow b, which leads in term 3."""
        entries = (LogEntry(1, 3, CONFIG, encode_configuration(Configuration({"a": 11, "b": 12, "c": 13}))),)
        self.take(AppendEntries(*from_peer("b", 12, 3), 0, 0, 1, 1, entries))
        assert (self.core.leader, self.core.commit_index) == ("b", 1)

    def lead(self) -> None:
        self.now = self.core.election_deadline
        self.give(RaftTick())
        self.take(PreVoteReply(*from_peer("b", 12, 0), 1, True))
        self.take(RequestVoteReply(*from_peer("b", 12, 1), True))
        self.take(AppendEntriesReply(*from_peer("b", 12, 1), True, 1, 1))
        assert self.core.role is RaftRole.LEADER

    def state(self) -> tuple[Any, ...]:
        core = self.core
        return (
            core.term,
            core.voted_for,
            core.role,
            core.leader,
            core.commit_index,
            core.log.last_index,
            core.log.last_term,
            core.configurations,
            core.bindings,
            core.foreign_disks,
            core.identity_refused,
            core.election_deadline,
            core.last_leader_contact,
            {peer: (progress.match_index, progress.last_seen) for peer, progress in core.progress.items()},
        )


def from_peer(sender: str, storage_id: int, term: int, expected: int = 11) -> tuple[str, str, int, int, int, int]:
    return sender, "a", term, 1, storage_id, expected


def lies(term: int, expected: int) -> list[RaftMessage]:
    """Return every type of message as a non-voter may write it."""
    header = from_peer(STRANGER, 99, term, expected)
    grasp = Configuration({STRANGER: 99})
    entries = (LogEntry(1, term, CONFIG, encode_configuration(grasp)), LogEntry(2, term, NORMAL, b"mine"))
    return [
        PreVote(*header, min(FAR, term + 1), FAR, FAR),
        PreVoteReply(*header, term, True),
        RequestVote(*header, FAR, FAR, False),
        RequestVote(*header, FAR, FAR, True),
        RequestVoteReply(*header, True),
        AppendEntries(*header, 0, 0, FAR, FAR, ()),
        AppendEntries(*header, 0, 0, 2, 1, entries),
        AppendEntriesReply(*header, True, 1, 1),
        AppendEntriesReply(*header, False, FAR, FAR, FAR, FAR, FAR),
        InstallSnapshot(*header, 50, term, grasp, 0, b"mine", True, 1),
        InstallSnapshotReply(*header, 50, 0, FAR, 1),
        TimeoutNow(*header),
        ReadIndex(*header, 7),
        ReadIndexReply(*header, 7, 1, 5),
    ]


@pytest.mark.parametrize("expected", [0, 11, 77])
@pytest.mark.parametrize("term", [0, 1, 3, 4, 1_000, FAR])
@pytest.mark.parametrize("role", ["leads", "follows"])
def test_message_of_a_non_voter_has_no_effect_with_an_active_leader(role: str, term: int, expected: int) -> None:
    """Regression: AppendEntries, a vote with ``transfer`` or any answer of a higher term deposed the leader."""
    router = Router()
    if role == "leads":
        router.lead()
    else:
        router.follow()
    before = router.state()
    for lie in lies(term, expected):
        answers = router.take(lie)
        assert router.state() == before, lie
        assert all(answer.to == STRANGER for answer in answers)
        assert not any(isinstance(answer, PreVoteReply) and answer.granted for answer in answers)
    assert not router.restored
    assert router.core.drops["not_of_the_group"] >= 12


@pytest.mark.parametrize("lie", range(14))
def test_non_voter_cannot_exhaust_the_terms(lie: int) -> None:
    """Without a leader it may belong to a newer configuration; the largest term would end all elections."""
    router = Router()
    router.take(lies(FAR, 0)[lie])
    assert router.core.term == 0


def test_non_voter_cannot_block_an_election() -> None:
    """Its empty appends do not count as a leader's heartbeats."""
    router = Router()
    for beat in range(100):
        router.now += 0.1
        router.take(AppendEntries(*from_peer(STRANGER, 99, 1), 0, 0, 0, beat))
        if router.now >= router.core.election_deadline:
            break
    sent = router.give(RaftTick())
    assert {(message.to, type(message)) for message in sent} == {("b", PreVote), ("c", PreVote)}


NAMED = Configuration({"a": 11, "b": 12, "c": 13, "d": 14})


def leads(term: int = 7) -> AppendEntries:
    """Return an append of d as leader, with the configuration that includes it."""
    entries = (LogEntry(2, 3, CONFIG, encode_configuration(NAMED)), LogEntry(3, term, NORMAL, b"x"))
    return AppendEntries(*from_peer("d", 14, term), 1, 3, 3, 1, entries)


def introduces(member: str, disk: int) -> PreVoteReply:
    """Return a member's answer with the routers of the newer configuration."""
    return PreVoteReply(*from_peer(member, disk, 3), proposed_term=4, granted=False, peers=("a", "b", "c", "d"))


def test_leader_of_a_newer_configuration_is_followed() -> None:
    """This router missed d's addition and election: a member names d, and d's log brings the configuration."""
    router = Router()
    router.follow()
    router.now += 10.0
    asked = router.take(leads())
    assert {(message.to, type(message)) for message in asked} == {("b", PreVote), ("c", PreVote)}
    assert router.take(leads()) == [], "asked once a heartbeat"
    router.take(introduces("c", 13))
    answers = router.take(leads())
    assert [type(answer) for answer in answers] == [AppendEntriesReply]
    assert (router.core.leader, router.core.term, router.core.commit_index) == ("d", 7, 3)
    assert router.core.is_sticky() is False
    router.take(AppendEntries(*from_peer("d", 14, 7), 3, 7, 3, 2))
    assert router.core.is_sticky()


@pytest.mark.parametrize("introduced_by", ["", "d", STRANGER])
def test_router_that_no_member_named_is_not_followed(introduced_by: str) -> None:
    """Regression: without a leader, a certificate was enough to be followed, voted for, and to replace the log."""
    router = Router(snapshot_fault=snapshot_fault)
    router.follow()
    router.now += 10.0
    before = (router.core.term, router.core.log.last_index, router.core.commit_index, router.core.configurations[:])
    if introduced_by:
        router.take(introduces(introduced_by, 99))
    install = InstallSnapshot(*from_peer("d", 14, 7), 50, 7, Configuration({"d": 14}), 0, snapshot(), True, 1)
    vote = RequestVote(*from_peer("d", 14, 7), last_log_index=50, last_log_term=7, transfer=True)
    for message in (leads(), install, vote):
        answers = router.take(message)
        assert not any(answer.to == "d" for answer in answers)
    after = (router.core.term, router.core.log.last_index, router.core.commit_index, router.core.configurations)
    assert after == before and not router.restored and router.core.leader != "d"


# --- false snapshots of a voter


def snapshot() -> bytes:
    machine = MapMachine()
    machine.apply(Bootstrap("c", 4, 2, 1, 1, 2.0))
    machine.apply(RegisterNode(NodeEntry("b", "router", 1, "h:1")))
    return machine.snapshot()


def chunk(data: bytes, offset: int = 0, *, done: bool = True, term: int = 3, index: int = 50) -> InstallSnapshot:
    voters = Configuration({"a": 11, "b": 12, "c": 13})
    return InstallSnapshot(*from_peer("b", 12, term), index, term, voters, offset, data, done, 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", snapshot()[:-1], snapshot() + b"x", b"\x91" * 5_000, b"\x81\xa3map" + b"\x81\xa1a" * 10_000],
    ids=["empty", "none", "cut", "longer", "nested", "nested map"],
)
def test_unrestorable_snapshot_is_refused(data: bytes) -> None:
    """Regression: it replaced the log before it was checked, and ended the router at each start."""
    router = Router(snapshot_fault=snapshot_fault)
    router.follow()
    log = (router.core.log.last_index, router.core.commit_index, router.core.last_applied, router.core.configurations)
    assert router.take(chunk(data)) == []
    assert not router.restored
    after = router.core
    assert (after.log.last_index, after.commit_index, after.last_applied, after.configurations) == log
    assert after.drops["snapshot_not_restorable"] == 1
    assert after.refused_snapshot is not None and after.refused_snapshot.sender == "b"
    router.take(AppendEntries(*from_peer("b", 12, 3), 1, 3, 2, 2, (LogEntry(2, 3, NORMAL, b"x"),)))
    assert after.commit_index == 2  # it continues
    router.take(chunk(snapshot()))
    assert router.restored == [snapshot()]


@pytest.mark.parametrize("offset", [1, 255, 1 << 40, FAR - 5])
def test_chunk_out_of_order_is_requested_again(offset: int) -> None:
    """It is dropped, and the answer names the expected byte."""
    router = Router(snapshot_fault=snapshot_fault)
    router.follow()
    whole = snapshot()
    router.take(chunk(whole[:5], done=False))
    for _ in range(3):
        (answer,) = router.take(chunk(b"y" * 100, 5 + offset, done=bool(offset % 2)))
        assert isinstance(answer, InstallSnapshotReply) and (answer.offset, answer.match_index) == (5, 0)
    (answer,) = router.take(chunk(whole[5:], 5))
    assert isinstance(answer, InstallSnapshotReply) and answer.match_index == 50
    assert router.restored == [whole]


def test_endless_snapshot_is_bounded() -> None:
    """At most max_snapshot_bytes are stored."""
    router = Router()
    router.core.config = RaftConfig(id="a", voters=VOTERS, max_snapshot_bytes=1_000)
    router.follow()
    for at in range(0, 5_000, 100):
        (answer,) = router.take(chunk(b"z" * 100, at, done=False))
        assert isinstance(answer, InstallSnapshotReply) and answer.offset == min(at + 100, 1_000)


@pytest.mark.parametrize("field", ["term", "snapshot_index", "snapshot_term", "offset", "round"])
@pytest.mark.parametrize("value", [-1, -(1 << 63), 1 << 62, (1 << 64) - 1, "1", None, [], 0.5])
def test_out_of_range_values_are_refused(field: str, value: object) -> None:
    """Negative or too large terms, indexes and offsets close the link."""
    plain = msgspec.msgpack.decode(encode_message(chunk(b"x")))
    plain[1 + InstallSnapshot.__struct_fields__.index(field)] = value  # after the tag
    with pytest.raises(Unreadable):
        decode_message(msgspec.msgpack.encode(plain))
