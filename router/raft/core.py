"""The Raft core: ``handle(now, event) -> RaftReady``, without I/O, own clock or own random source.

It dispatches events to the layers below, limits the uncommitted entries, and collects the data to persist, send and
apply. The shell that executes a Ready is ``router/raft/node.py``. Source: Raft paper, figure 2, "Rules for Servers".
"""

import math
import random
from collections.abc import Callable

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
    SnapshotTaken,
    StoredRaftState,
    TransferLeadership,
)
from router.raft.messages import CONFIG, NORMAL, EntryKind, LogEntry
from router.raft.reception import MessageReceiver

__all__ = ["RaftCore"]

ENTRY_OVERHEAD_BYTES = 64  # counted for each entry, so that empty entries are bounded too


class RaftCore(MessageReceiver):
    """One Raft peer."""

    def __init__(
        self,
        config: RaftConfig,
        stored: StoredRaftState,
        rng: random.Random,
        incarnation: int = 0,
        snapshot_fault: Callable[[bytes], str] = lambda _: "",
    ) -> None:
        """Start as a follower.

        Args:
            config: Settings; the bootstrap's members apply until the log holds a configuration.
            stored: Content of the disk; its snapshot is already restored into the state machine.
            rng: Draws election timeouts.
            incarnation: Number of this process run, never reused under one storage id.
            snapshot_fault: Returns why the state machine cannot restore a snapshot, "" if it can.
        """
        self.reset_reads()
        super().__init__(config, stored, rng, incarnation, snapshot_fault)
        self._ready_number = 0
        self._proposed: int | None = None
        self._refused: str | None = None
        self._uncommitted_bytes = 0
        self._uncommitted_base = self.log.last_index
        self._started = False

    @property
    def leader_hint(self) -> str | None:
        """The leader as known to this peer, None if unknown."""
        return self.leader

    def handle(self, now: float, event: Event) -> RaftReady:
        """Process one event at time ``now`` (seconds, monotonic); return the work for the shell.

        Raises:
            RaftInvariantBroken: The log would lose a committed entry; the caller stops this peer.
        """
        self.now = max(self.now, now)
        self._proposed = self._refused = None
        role_before = self.role
        if not self._started:
            self._start()
        if type(event) is Receive:
            self.receive(event.message)
        elif type(event) is Persisted:
            self.log.persisted(event.number)
            if self.role is RaftRole.LEADER and self.maybe_commit():
                self.broadcast_append()
        else:
            self._handle_local(event)
        if self.role is RaftRole.LEADER:
            self.drop_to_follower_if_removed()
            self.advance_reads()
        return self._ready(role_before)

    def _start(self) -> None:
        self._started = True
        self.reset_election_deadline()
        voters = self.configuration.voters
        if self.id in voters and (len(voters) == 1 or not self.is_voter):
            self.election_deadline = self.now  # a single voter needs no wait; an unbound one sends its storage id now

    def _handle_local(self, event: Event) -> None:
        if isinstance(event, RaftTick):
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
        if self.role is not RaftRole.LEADER:
            if self.now >= self.election_deadline:
                self.election_timed_out()
            return
        if self.now >= self.heartbeat_deadline:
            self.check_quorum()
            if self.role is RaftRole.LEADER:
                self.broadcast_heartbeat()
        if self.now >= self.transfer_deadline:
            self.advance_transfer()

    def _propose(self, data: tuple[bytes, ...], kind: EntryKind) -> None:
        if self.role is not RaftRole.LEADER:
            self._refused = "not_leader"
        elif self.transferee is not None:
            self._refused = "transfer_in_progress"
        elif kind == CONFIG:
            self._refused = "use_change_membership"
        elif not self._accepts(data):
            self._refused = "busy"
        else:
            self._proposed = self.append_own(data, kind)
            self.broadcast_append()

    def _accepts(self, data: tuple[bytes, ...]) -> bool:
        """Whether the uncommitted entries stay within their bound; an empty tail accepts any proposal."""
        if self.commit_index >= self._uncommitted_base:
            self._uncommitted_bytes = 0
            self._uncommitted_base = self.log.last_index
        size = sum(map(len, data)) + ENTRY_OVERHEAD_BYTES * len(data)
        if self._uncommitted_bytes and self._uncommitted_bytes + size > self.config.max_uncommitted_bytes:
            return False
        self._uncommitted_bytes += size
        return True

    # Ready

    def _ready(self, role_before: RaftRole) -> RaftReady:
        self._ready_number += 1
        hard_state = None
        if self.hard_state_changed:
            hard_state, self.hard_state_changed = self.hard_state(), False
        installed, self.installed = self.installed, None
        committed_to = min(self.commit_index, self.log.durable_index)
        committed: tuple[LogEntry, ...] = ()
        if committed_to > self.last_applied:
            committed = tuple(self.log.slice(self.last_applied + 1, committed_to))
            self.last_applied = committed_to
        messages, early = tuple(self.messages), ()
        # A leader may send appends before its own sync once its term is on disk. The first entry of the term was
        # written after the hard state, so a leader that loses entries in a crash never leads that term again.
        if (
            self.role is RaftRole.LEADER
            and messages
            and hard_state is None
            and self.log.durable_index >= self.first_index_of_term
        ):
            messages, early = (), messages
        self.messages.clear()
        read_states = tuple(self.read_states)
        self.read_states.clear()
        return RaftReady(
            number=self._ready_number,
            hard_state=hard_state,
            snapshot=installed,
            entries=self.log.take_unwritten(self._ready_number, self.now),
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
        if self.role is RaftRole.LEADER:
            # Without replicas no heartbeats are sent: a deadline is needed only to detect a stalled disk.
            idle = not self.replicas() and not self.log.writing
            return self.transfer_deadline if idle else min(self.heartbeat_deadline, self.transfer_deadline)
        if self.id not in self.configuration.voters:
            return math.inf
        return self.election_deadline
