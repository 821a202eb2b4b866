"""Limits and invalid input of the Raft core, the encoding of its messages, and durability."""

import math
import random
from typing import Any

import msgspec
import pytest

from router.raft.core import RaftCore
from router.raft.events import (
    ChangeMembership,
    Event,
    Persisted,
    Propose,
    ProposeBatch,
    RaftConfig,
    RaftReady,
    RaftRole,
    RaftTick,
    ReadIndexEvent,
    Receive,
    Snapshot,
    StoredRaftState,
)
from router.raft.log_view import LogView
from router.raft.messages import (
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
    encode_message,
)
from tests.router.raft.script_runner import ScriptRunner

PEERS = ("a", "b", "c")
HEADER = ("b", "a", 1, 1, 12, 11)  # from b (disk 12) to a (disk 11) in term 1


class Peer:
    """Core ``a`` with an immediate disk."""

    def __init__(self, voters: tuple[str, ...] = PEERS, **settings: Any) -> None:
        config = RaftConfig(id="a", voters=voters, storage_ids={"a": 11, "b": 12, "c": 13}, **settings)
        self.core = RaftCore(config, StoredRaftState(11), random.Random(1), incarnation=5)
        self.now = 0.0
        self.sent: list[RaftMessage] = []

    def give(self, event: Event) -> RaftReady:
        ready = self.core.handle(self.now, event)
        self.sent += [*ready.early_messages, *ready.messages]
        if ready.must_persist:
            self.give(Persisted(ready.number))
        return ready

    def receive(self, message: RaftMessage) -> list[RaftMessage]:
        self.sent = []
        self.give(Receive(message))
        return self.sent

    def lead(self) -> None:
        self.give(RaftTick())
        self.now = self.core.election_deadline
        self.give(RaftTick())
        self.receive(PreVoteReply(*HEADER[:2], 0, *HEADER[3:], proposed_term=1, granted=True))
        self.receive(RequestVoteReply(*HEADER, granted=True))
        assert self.core.role is RaftRole.LEADER


MESSAGES = [
    PreVote(*HEADER, proposed_term=2, last_log_index=1, last_log_term=1),
    PreVoteReply(*HEADER, proposed_term=2, granted=True),
    RequestVote(*HEADER, last_log_index=1, last_log_term=1, transfer=True),
    RequestVoteReply(*HEADER, granted=False),
    AppendEntries(
        *HEADER, prev_log_index=1, prev_log_term=1, leader_commit=1, round=3, entries=(LogEntry(2, 1, "normal", b"x"),)
    ),
    AppendEntriesReply(*HEADER, success=True, round=3, match_index=2),
    InstallSnapshot(
        *HEADER,
        snapshot_index=3,
        snapshot_term=1,
        configuration=Configuration({"a": 11}, {"d": 0}),
        offset=0,
        data=b"state",
        done=True,
        round=1,
    ),
    InstallSnapshotReply(*HEADER, snapshot_index=3, offset=5, match_index=0, round=1),
    TimeoutNow(*HEADER),
    ReadIndex(*HEADER, context=7),
    ReadIndexReply(*HEADER, context=b"seven", read_index=-1, asker_incarnation=5),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_round_trips_through_its_encoding(message: RaftMessage) -> None:
    """For every message type."""
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\x91\xa3abc", encode_message(MESSAGES[0])[:-1]])
def test_invalid_bytes_are_refused(payload: bytes) -> None:
    """They raise an error, and never decode to another message."""
    with pytest.raises(msgspec.DecodeError):
        decode_message(payload)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("leads", [False, True])
def test_any_message_in_any_role_is_accepted_or_dropped(message: RaftMessage, leads: bool) -> None:
    """No message of the current term raises, in any role."""
    peer = Peer()
    if leads:
        peer.lead()
    peer.receive(message)


def test_proposals_beyond_the_uncommitted_limit_are_refused() -> None:
    """A single large proposal fits an empty tail."""
    peer = Peer(max_uncommitted_bytes=300)
    peer.lead()
    assert peer.give(Propose(b"x" * 1000)).proposed == 2
    assert peer.give(ProposeBatch((b"y",) * 3)).refused == "busy"
    acked = AppendEntriesReply(*HEADER, success=True, round=1, match_index=2)
    peer.receive(acked)
    assert peer.give(ProposeBatch((b"y",) * 3)).proposed == 3


def test_configurations_are_not_proposed_directly() -> None:
    """They would bypass the checks of membership changes."""
    peer = Peer()
    peer.lead()
    assert peer.give(Propose(b"", "config")).refused == "use_change_membership"


def test_pending_reads_are_bounded() -> None:
    """Beyond the limit the answer is -1 at once."""
    peer = Peer(max_pending_reads=2)
    peer.lead()
    answers = [peer.give(ReadIndexEvent(context)).read_states for context in range(3)]
    assert [[state.index for state in states] for states in answers] == [[], [], [-1]]


def test_read_without_a_leader_is_refused_at_once() -> None:
    assert Peer().give(ReadIndexEvent(1)).read_states[0].index == -1


def test_read_reply_to_a_former_incarnation_is_dropped() -> None:
    """Contexts restart with each life."""
    peer = Peer()
    reply = ReadIndexReply(*HEADER, context=1, read_index=1, asker_incarnation=4)
    assert peer.give(Receive(reply)).read_states == ()
    assert peer.core.drops["read_of_former_incarnation"] == 1


def test_acknowledgement_beyond_the_log_does_not_count() -> None:
    """The entries were never sent."""
    peer = Peer()
    peer.lead()
    peer.receive(AppendEntriesReply(*HEADER, success=True, round=1, match_index=99))
    assert peer.core.commit_index == 0
    assert peer.core.drops["match_beyond_log"] == 1


def test_acknowledgement_from_another_disk_does_not_count() -> None:
    """etcd #21178: b restarted with an empty disk."""
    peer = Peer()
    peer.lead()
    peer.receive(AppendEntriesReply("b", "a", 1, 2, 999, 11, success=True, round=1, match_index=1))
    assert peer.core.commit_index == 0
    assert peer.core.drops["storage_id_unknown"] == 1


def test_append_with_a_gap_is_dropped() -> None:
    peer = Peer()
    entries = (LogEntry(5, 1, "normal", b"x"),)
    peer.receive(AppendEntries(*HEADER, prev_log_index=0, prev_log_term=0, leader_commit=0, round=1, entries=entries))
    assert peer.core.log.last_index == 0


def test_snapshot_beyond_the_limit_is_dropped() -> None:
    """Chunks are dropped once they would exceed it."""
    peer = Peer(max_snapshot_bytes=6)
    for offset in (0, 4, 8):
        peer.receive(
            InstallSnapshot(
                *HEADER,
                snapshot_index=3,
                snapshot_term=1,
                configuration=Configuration(),
                offset=offset,
                data=b"four",
                done=False,
                round=1,
            )
        )
    assert peer.core.drops["snapshot_chunk_out_of_order"] == 2


def test_single_voter_leads_with_its_first_tick() -> None:
    peer = Peer(voters=("a",))
    peer.give(RaftTick())
    assert peer.core.role is RaftRole.LEADER
    assert peer.core.commit_index == 1


def test_no_message_is_sent_before_the_term_is_on_disk() -> None:
    """Single voter with a learner: after a crash before the sync it leads the same term again."""
    config = RaftConfig(id="a", voters=("a",), learners=("b",), storage_ids={"a": 11})
    core = RaftCore(config, StoredRaftState(11), random.Random(1))
    elected = core.handle(0.0, RaftTick())
    assert elected.role is RaftRole.LEADER
    assert elected.hard_state is not None
    assert elected.messages
    proposed = core.handle(0.0, Propose(b"x"))
    heartbeat = core.handle(1.0, RaftTick())
    assert not (elected.early_messages or proposed.early_messages or heartbeat.early_messages)
    core.handle(1.0, Persisted(heartbeat.number))
    assert core.handle(2.0, RaftTick()).early_messages


def test_write_truncated_before_its_sync_makes_nothing_durable() -> None:
    """Entry (2, 1) is written, replaced and written again: only its second write counts."""
    log = LogView(None, [LogEntry(1, 1, "normal", b"")])
    log.append([LogEntry(2, 1, "normal", b"")])
    log.take_unwritten(1, now=0.0)
    log.truncate_from(2)
    log.append([LogEntry(2, 3, "normal", b"")])
    log.take_unwritten(2, now=0.0)
    log.truncate_from(2)
    log.append([LogEntry(2, 1, "normal", b"")])
    log.take_unwritten(3, now=0.0)
    log.persisted(1)
    assert log.durable_index == 1
    log.persisted(2)
    assert log.durable_index == 1
    log.persisted(3)
    assert log.durable_index == 2


def test_batch_holds_at_least_one_entry() -> None:
    """An entry above the byte limit is sent alone."""
    log = LogView(Snapshot(4, 1, Configuration(), b""), [LogEntry(at, 1, "normal", b"x" * 10) for at in range(5, 9)])
    assert [entry.index for entry in log.batch(5, 10, 5)] == [5]
    assert [entry.index for entry in log.batch(5, 10, 25)] == [5, 6]
    assert [entry.index for entry in log.batch(6, 2, 1000)] == [6, 7]


def test_leader_replaces_a_lost_disk_and_promotes_a_caught_up_learner() -> None:
    """Only after the former disk was silent for the given time, and one step at a time."""
    runner = ScriptRunner()
    for line in ("group a b c", "start", "tick a", "deliver", "propose a x", "deliver", "crash c", "wipe c"):
        runner.command(line)
    leader = runner.peers["a"].core
    assert leader is not None
    assert leader.next_repair(0.0) is None  # no message from another disk yet
    for line in ("restart c", "heartbeat a", "deliver", "tick c", "deliver"):
        runner.command(line)
    assert leader.next_repair(60.0) is None
    for _ in range(2):
        for line in ("heartbeat a", "deliver", "tick c", "deliver"):
            runner.command(line)
    assert leader.next_repair(0.5) == ChangeMembership("replace", "c")
    for line in ("change a replace c", "deliver", "heartbeat a", "deliver", "heartbeat a", "deliver"):
        runner.command(line)
    assert leader.next_repair(0.5) == ChangeMembership("promote", "c")
    for line in ("change a promote c", "deliver", "heartbeat a", "deliver"):
        runner.command(line)
    assert leader.next_repair(0.5) is None
    assert set(leader.configuration.voters) == {"a", "b", "c"}


def test_single_leader_is_idle_once_its_log_is_durable() -> None:
    """It sends no heartbeats; during a write, a deadline detects a stalled disk."""
    alone = Peer(("a",))
    alone.give(RaftTick())
    alone.give(RaftTick())
    assert alone.core.role is RaftRole.LEADER and alone.give(RaftTick()).next_deadline == math.inf
    ready = alone.core.handle(alone.now, Propose(b"one"))
    assert ready.next_deadline < math.inf
    assert alone.core.handle(alone.now, Persisted(ready.number)).next_deadline == math.inf
