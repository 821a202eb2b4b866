"""The Raft core: ``handle(now, event) -> Ready``, without I/O, clock or dice of its own.

Decides nothing the layers below do not; it dispatches events, judges the term of every message, and gathers what is
to be persisted, sent and applied. The shell that works off a Ready is ``router/raft/node.py``.
Source: Raft paper, figure 2, "Rules for Servers".
"""

import math
import random
from collections.abc import Callable
from typing import Any

from router.raft.elections import Elections
from router.raft.events import (
    ChangeMembership,
    Event,
    Persisted,
    Propose,
    ProposeBatch,
    RaftConfig,
    ReadIndexEvent,
    Ready,
    Receive,
    Role,
    SnapshotTaken,
    Stored,
    Tick,
    TransferLeadership,
)
from router.raft.messages import (
    CONFIG,
    NORMAL,
    AppendEntries,
    AppendEntriesReply,
    Entry,
    EntryKind,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)

__all__ = ["RaftCore"]

_REQUESTS = (PreVote, RequestVote, AppendEntries, InstallSnapshot, TimeoutNow)


class RaftCore(Elections):
    """One Raft peer."""

    def __init__(self, config: RaftConfig, stored: Stored, rng: random.Random, incarnation: int = 0) -> None:
        """Begin as a follower.

        Args:
            config: Settings; the bootstrap's members count until the log holds a configuration.
            stored: What the disk holds; already restored into the state machine up to its snapshot.
            rng: Draws election timeouts.
            incarnation: One life of this process; never reused under one storage id.
        """
        self.reset_reads()
        super().__init__(config, stored, rng, incarnation)
        self._ready_number = 0
        self._proposed: int | None = None
        self._refused: str | None = None
        self._uncommitted_bytes = 0
        self._uncommitted_base = self.log.last_index
        self._started = False
        self._on_message: dict[type[Message], Callable[[Any], None]] = {
            PreVote: self.on_pre_vote,
            PreVoteReply: self.on_pre_vote_reply,
            RequestVote: self.on_request_vote,
            RequestVoteReply: self.on_request_vote_reply,
            AppendEntries: self._on_leader_message,
            AppendEntriesReply: self.on_append_reply,
            InstallSnapshot: self._on_leader_message,
            InstallSnapshotReply: self.on_snapshot_reply,
            TimeoutNow: self.on_timeout_now,
            ReadIndex: self.on_read_index,
            ReadIndexReply: self.on_read_index_reply,
        }

    @property
    def leader_hint(self) -> str | None:
        """Who leads, as far as we know."""
        return self.leader

    def handle(self, now: float, event: Event) -> Ready:
        """Take one event at a time ``now`` (seconds, monotonic) and return what it asks of the shell.

        Raises:
            RaftInvariantBroken: The log would lose a committed entry; the caller stops this peer.
        """
        self.now = max(self.now, now)
        self._proposed = self._refused = None
        role_before = self.role
        if not self._started:
            self._start()
        if type(event) is Receive:
            self._receive(event.message)
        elif type(event) is Persisted:
            self.log.persisted(event.number)
            if self.role is Role.LEADER and self.maybe_commit():
                self.broadcast_append()
        else:
            self._handle_local(event)
        if self.role is Role.LEADER:
            self.drop_to_follower_if_removed()
            self.advance_reads()
        return self._ready(role_before)

    def _start(self) -> None:
        self._started = True
        self.reset_election_deadline()
        voters = self.configuration.voters
        if self.id in voters and (len(voters) == 1 or not self.is_voter):
            self.election_deadline = self.now  # alone: nobody to wait for; not bound: introduce ourselves at once

    def _handle_local(self, event: Event) -> None:
        if isinstance(event, Tick):
            self._tick()
        elif isinstance(event, ProposeBatch):
            self._propose(event.data, NORMAL)
        elif isinstance(event, Propose):
            self._propose((event.data,), event.kind)
        elif isinstance(event, ReadIndexEvent):
            self.read_index(event.context)
        elif isinstance(event, TransferLeadership):
            self._refused = self.transfer_leadership(event.to)
        elif isinstance(event, ChangeMembership):
            if self.transferee is not None:
                self._refused = "transfer_in_progress"
            else:
                self._proposed, self._refused = self.change_membership(event)
        elif isinstance(event, SnapshotTaken):
            self.take_snapshot(event.index, event.data)

    def _tick(self) -> None:
        if self.role is not Role.LEADER:
            if self.now >= self.election_deadline:
                self.election_timed_out()
            return
        if self.now >= self.heartbeat_deadline:
            self.check_quorum()
            if self.role is Role.LEADER:
                self.broadcast_heartbeat()
        if self.now >= self.transfer_deadline:
            self.advance_transfer()

    def _propose(self, data: tuple[bytes, ...], kind: EntryKind) -> None:
        if self.role is not Role.LEADER:
            self._refused = "not_leader"
        elif self.transferee is not None:
            self._refused = "transfer_in_progress"
        elif kind == CONFIG:
            self._refused = "use_change_membership"
        elif not self._room_for(data):
            self._refused = "busy"
        else:
            self._proposed = self.append_own(data, kind)
            self.broadcast_append()

    def _room_for(self, data: tuple[bytes, ...]) -> bool:
        """Whether the uncommitted tail stays within its bound; one proposal always fits into an empty tail."""
        if self.commit_index >= self._uncommitted_base:
            self._uncommitted_bytes = 0
            self._uncommitted_base = self.log.last_index
        size = sum(map(len, data))
        if self._uncommitted_bytes and self._uncommitted_bytes + size > self.config.max_uncommitted_bytes:
            return False
        self._uncommitted_bytes += size
        return True

    # Messages

    def _receive(self, message: Message) -> None:
        self.bind(message)
        if isinstance(message, _REQUESTS) and self.refuses_identity(message):
            self.drop("we_are_another_disk")
            return
        if message.term > self.term:
            if not self._adopt_term(message):
                return
        elif message.term < self.term and not self._judge_older_term(message):
            return
        self._on_message[type(message)](message)
        if self.transferee is not None and type(message) is AppendEntriesReply:
            self.advance_transfer()

    def _adopt_term(self, message: Message) -> bool:
        """A higher term: follow in it, except for what must not depose a leader that is heard."""
        if isinstance(message, PreVote):
            return True
        if isinstance(message, RequestVote) and self.is_sticky() and not message.transfer:
            self.drop("vote_while_leader_heard")
            return False
        leader = message.sender if isinstance(message, AppendEntries | InstallSnapshot) else None
        self.become_follower(message.term, leader)
        return True

    def _judge_older_term(self, message: Message) -> bool:
        """An older term: answer requests with ours, so that their sender moves on; ignore old answers."""
        if isinstance(message, AppendEntries):
            self._reply_append(message, False, 0)
        elif isinstance(message, InstallSnapshot):
            self._reply_snapshot(message, 0, 0)
        elif isinstance(message, PreVote | PreVoteReply | RequestVote | ReadIndex | ReadIndexReply):
            return True
        else:
            self.drop("older_term")
        return False

    def _on_leader_message(self, message: AppendEntries | InstallSnapshot) -> None:
        if self.role is Role.LEADER:
            self.drop("second_leader_in_term")
            return
        if self.role is not Role.FOLLOWER or self.leader != message.sender:
            self.become_follower(message.term, message.sender)
        self.last_heard_leader = self.now
        self.identity_refused = False
        self.reset_election_deadline()
        if isinstance(message, AppendEntries):
            if message.entries and message.entries[-1].index != message.prev_log_index + len(message.entries):
                self.drop("entries_not_contiguous")
                return
            self.on_append_entries(message)
        else:
            self.on_install_snapshot(message)

    # Ready

    def _ready(self, role_before: Role) -> Ready:
        self._ready_number += 1
        hard_state = None
        if self.hard_state_changed:
            hard_state, self.hard_state_changed = self.hard_state(), False
        installed, self.installed = self.installed, None
        committed_to = min(self.commit_index, self.log.durable_index)
        committed: tuple[Entry, ...] = ()
        if committed_to > self.last_applied:
            committed = tuple(self.log.slice(self.last_applied + 1, committed_to))
            self.last_applied = committed_to
        messages, early = tuple(self.messages), ()
        # A leader's appends may overtake its own sync once its term is known to be on disk: the first entry of the
        # term was written behind the hard state. A leader that loses them in a crash never leads that term again.
        if (
            self.role is Role.LEADER
            and messages
            and hard_state is None
            and self.log.durable_index >= self.first_index_of_term
        ):
            messages, early = (), messages
        self.messages.clear()
        read_states = tuple(self.read_states)
        self.read_states.clear()
        return Ready(
            number=self._ready_number,
            hard_state=hard_state,
            snapshot=installed,
            entries=self.log.take_unwritten(self._ready_number),
            messages=messages,
            early_messages=early,
            committed=committed,
            read_states=read_states,
            proposed=self._proposed,
            refused=self._refused,
            role=self.role if self.role is not role_before else None,
            next_deadline=self._next_deadline(),
        )

    def _next_deadline(self) -> float:
        if self.role is Role.LEADER:
            return min(self.heartbeat_deadline, self.transfer_deadline)
        if self.id not in self.configuration.voters:
            return math.inf
        return self.election_deadline
