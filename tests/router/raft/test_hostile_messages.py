"""What a router that is no voter, or that lies about a snapshot, sends in its own name: it moves nothing here.

The link has proved the sender's name (``check_sender``); what is tested is a real router's certificate in wrong hands.
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
    """Core "a" of three voters, with a disk that obeys."""

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
        """Hear b, which leads in term 3."""
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
            core.strangers,
            core.identity_refused,
            core.election_deadline,
            core.last_heard_leader,
            {peer: (progress.match_index, progress.last_heard) for peer, progress in core.progress.items()},
        )


def from_peer(sender: str, storage_id: int, term: int, expected: int = 11) -> tuple[str, str, int, int, int, int]:
    return sender, "a", term, 1, storage_id, expected


def lies(term: int, expected: int) -> list[RaftMessage]:
    """Return every kind of message as a stranger may write it."""
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
def test_a_router_that_is_no_voter_moves_nothing_while_a_leader_is_heard(role: str, term: int, expected: int) -> None:
    """AppendEntries, a vote "by order of the leader" or any answer of a higher term deposed the leader."""
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
def test_a_router_that_is_no_voter_does_not_use_up_the_terms(lie: int) -> None:
    """Without a leader it may be one of a newer configuration; the last term of all would end all elections."""
    router = Router()
    router.take(lies(FAR, 0)[lie])
    assert router.core.term == 0


def test_a_router_that_is_no_voter_holds_up_no_election() -> None:
    """Empty appends of a stranger, sent for ever, pass for a leader's heartbeats nowhere."""
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
    """Return what d sends as a leader, with the configuration that names it."""
    entries = (LogEntry(2, 3, CONFIG, encode_configuration(NAMED)), LogEntry(3, term, NORMAL, b"x"))
    return AppendEntries(*from_peer("d", 14, term), 1, 3, 3, 1, entries)


def introduces(member: str, disk: int) -> PreVoteReply:
    """Return a member's answer with the routers of the newer configuration."""
    return PreVoteReply(*from_peer(member, disk, 3), proposed_term=4, granted=False, peers=("a", "b", "c", "d"))


def test_a_leader_of_a_newer_configuration_is_followed() -> None:
    """This router was away while d was taken in and elected: a member says so, and d brings the configuration."""
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
def test_a_router_that_no_member_has_introduced_is_not_followed(introduced_by: str) -> None:
    """NIST: protect. While nobody led, a certificate was enough to be followed, voted for, and to replace the log."""
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


# --- snapshots of a voter that lies


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
def test_a_snapshot_that_cannot_be_restored_is_refused(data: bytes) -> None:
    """It had replaced the log before it was looked into, and ended the router, then and at each start."""
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
    assert after.commit_index == 2  # and it goes on
    router.take(chunk(snapshot()))
    assert router.restored == [snapshot()]


@pytest.mark.parametrize("offset", [1, 255, 1 << 40, FAR - 5])
def test_chunks_that_do_not_follow_are_asked_for_again(offset: int) -> None:
    """Nothing is kept for them, and the answer names the byte that is wanted."""
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


def test_a_snapshot_without_an_end_is_bounded() -> None:
    """What is kept of it ends at max_snapshot_bytes."""
    router = Router()
    router.core.config = RaftConfig(id="a", voters=VOTERS, max_snapshot_bytes=1_000)
    router.follow()
    for at in range(0, 5_000, 100):
        (answer,) = router.take(chunk(b"z" * 100, at, done=False))
        assert isinstance(answer, InstallSnapshotReply) and answer.offset == min(at + 100, 1_000)


@pytest.mark.parametrize("field", ["term", "snapshot_index", "snapshot_term", "offset", "round"])
@pytest.mark.parametrize("value", [-1, -(1 << 63), 1 << 62, (1 << 64) - 1, "1", None, [], 0.5])
def test_values_that_are_none_are_no_message(field: str, value: object) -> None:
    """Negative terms, indexes and offsets, and those that fit no disk, close the link."""
    plain = msgspec.msgpack.decode(encode_message(chunk(b"x")))
    plain[1 + InstallSnapshot.__struct_fields__.index(field)] = value  # behind the tag
    with pytest.raises(Unreadable):
        decode_message(msgspec.msgpack.encode(plain))
