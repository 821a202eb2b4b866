"""The state every part of the Raft core shares, and the few steps all of them need.

The core is a chain of layers, each a class that knows those below it: ``RaftState``, ``Snapshotting``,
``Replication``, ``ReadIndexes``, ``MembershipChange``, ``LeadershipTransfer``, ``Elections``, ``RaftCore``. This file
decides what a change of term or role resets, which configuration is in force, and whom we believe to be whom.
Source: Raft paper, figure 2; Ongaro's thesis, section 4.1 (a configuration is used as soon as it is in the log).
"""

import math
import random
from collections import Counter
from collections.abc import Callable

from router.raft.events import HardState, RaftConfig, RaftRole, ReadState, StoredRaftState
from router.raft.log_view import LogView
from router.raft.messages import CONFIG, Configuration, LogEntry, RaftMessage, decode_configuration
from router.raft.progress import PeerProgress

__all__ = ["RaftState"]


class RaftState:
    """Data of one peer and what is to leave with the next Ready."""

    def __init__(
        self,
        config: RaftConfig,
        stored: StoredRaftState,
        rng: random.Random,
        incarnation: int = 0,
        snapshot_fault: Callable[[bytes], str] = lambda _: "",
    ) -> None:
        self.config = config
        self.snapshot_fault = snapshot_fault
        self.id = config.id
        self.storage_id = stored.storage_id
        self.incarnation = incarnation
        self.rng = rng
        self.now = -math.inf

        self.log = LogView(stored.snapshot, stored.entries)
        # A crash may keep entries of a term and lose the term itself: no message of that term has left then.
        self.term = max(stored.hard_state.term, self.log.last_term)
        self.voted_for = stored.hard_state.voted_for if self.term == stored.hard_state.term else None
        self.bindings = dict(stored.hard_state.bindings)
        self.hard_state_changed = False
        self.commit_index = self.last_applied = stored.snapshot.index if stored.snapshot else 0

        self.role = RaftRole.FOLLOWER
        self.leader: str | None = None
        self.last_heard_leader = -math.inf
        self.election_deadline = math.inf
        self.heartbeat_deadline = math.inf
        self.votes: dict[str, bool] = {}
        self.progress: dict[str, PeerProgress] = {}
        self.round = 0  # heartbeat rounds of this leadership
        self.first_index_of_term = 0  # of our leadership: entries before it are never committed by counting
        self.transferee: str | None = None
        self.transfer_deadline = math.inf
        self.identity_refused = False  # a peer knows another disk under our name
        self.strangers: dict[str, tuple[int, float]] = {}  # voter -> another storage id under its name, when heard

        self.introduced: dict[str, tuple[str, ...]] = {}  # member -> the members of its configuration, as it said last
        self.ask_members_at = -math.inf  # not before this time, whatever comes from outside our configuration

        self.configurations: list[tuple[int, Configuration]] = []
        self._load_configurations(stored)

        self.messages: list[RaftMessage] = []
        self.read_states: list[ReadState] = []
        self.drops: Counter[str] = Counter()  # messages not taken, by reason

    # Configuration

    def _load_configurations(self, stored: StoredRaftState) -> None:
        known = {**self.config.storage_ids, **self.bindings}
        base = Configuration(
            {peer: known.get(peer, 0) for peer in self.config.voters},
            {peer: known.get(peer, 0) for peer in self.config.learners},
        )
        if self.id in base.voters and not base.voters[self.id]:
            base.voters[self.id] = self.storage_id
        if stored.snapshot is not None:
            base = stored.snapshot.configuration
        self.configurations = [(self.log.base_index, base)]
        self._note_configurations(stored.entries)

    def _note_configurations(self, entries: tuple[LogEntry, ...]) -> None:
        for entry in entries:
            if entry.kind == CONFIG:
                self.configurations.append((entry.index, decode_configuration(entry.data)))

    @property
    def configuration(self) -> Configuration:
        """The last configuration in the log, committed or not."""
        return self.configurations[-1][1]

    @property
    def configuration_index(self) -> int:
        """Index of the entry that has the newest configuration."""
        return self.configurations[-1][0]

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration in force at the index."""
        return next(known for at, known in reversed(self.configurations) if at <= index)

    def undo_configurations(self, from_index: int) -> None:
        """A truncated configuration never was."""
        while len(self.configurations) > 1 and self.configurations[-1][0] >= from_index:
            self.configurations.pop()

    def append_entries(self, entries: tuple[LogEntry, ...]) -> None:
        """Append to the log and put configurations in force."""
        self.log.append(entries)
        self._note_configurations(entries)

    # Identity

    @property
    def is_voter(self) -> bool:
        """Whether this disk, not just this name, has a vote, and knows whose votes count."""
        voters = self.configuration.voters
        return voters.get(self.id) == self.storage_id and all(voters.values())

    def bind(self, message: RaftMessage) -> None:
        """Remember whose disk is behind a name while the bootstrap's configuration does not say.

        Durable before we vote, and nobody votes before all are bound: a voter that lost its disk meets at least one
        peer that remembers the former one (see ``refuses_identity``).
        """
        index, known = self.configurations[-1]
        if known.voters.get(message.sender) != 0 or self.configuration_index or not message.storage_id:
            return
        if message.expected_storage_id not in (0, self.storage_id):
            return
        self.bindings[message.sender] = message.storage_id
        self.configurations[-1] = (
            index,
            Configuration({**known.voters, message.sender: message.storage_id}, known.learners),
        )
        self.hard_state_changed = True
        if self.is_voter:  # the last one met: everybody gets here at the same time, so draw who goes first
            self.election_deadline = self.now + self.config.election_timeout_s * self.rng.random()

    def refuses_identity(self, message: RaftMessage) -> bool:
        """Whether the sender takes us for a former disk under our name, and the log does not say it is wrong."""
        if message.expected_storage_id in (0, self.storage_id):
            return False
        if self.configuration_index and self.configuration.storage_id(self.id) == self.storage_id:
            return False  # the sender's configuration is the older one
        self.identity_refused = True
        return True

    def is_stranger(self, message: RaftMessage) -> bool:
        """Whether an answer comes from another disk than the one we count: it may have forgotten promises."""
        known = self.configuration.storage_id(message.sender)
        return known != 0 and known != message.storage_id

    def note_stranger(self, message: RaftMessage) -> None:
        """Remember another disk under a voter's name, and forget it when the voter's own disk speaks."""
        if message.sender not in self.configuration.voters:
            return
        if self.is_stranger(message):
            self.strangers[message.sender] = (message.storage_id, self.now)
        elif message.storage_id:
            self.strangers.pop(message.sender, None)

    # Roles, terms, time

    def header(self, to: str) -> tuple[str, str, int, int, int, int]:
        """Return the fields that open every message."""
        return self.id, to, self.term, self.incarnation, self.storage_id, self.configuration.storage_id(to)

    def send(self, message: RaftMessage) -> None:
        """Have a message leave with this step, after the state is on disk."""
        self.messages.append(message)

    def drop(self, reason: str) -> None:
        """Count a message that is not taken."""
        self.drops[reason] += 1

    def other_voters(self) -> list[str]:
        """Return the voters but this peer."""
        return [peer for peer in self.configuration.voters if peer != self.id]

    def reset_election_deadline(self) -> None:
        """Draw the next deadline from one to two election timeouts (Raft paper, section 5.2)."""
        self.election_deadline = self.now + self.config.election_timeout_s * (1.0 + self.rng.random())

    def set_term(self, term: int, voted_for: str | None) -> None:
        """Enter a term or cast its vote; both are on disk before any message of it leaves."""
        self.term, self.voted_for = term, voted_for
        self.hard_state_changed = True

    def hard_state(self) -> HardState:
        """Return the part of the state that is on disk before any message leaves."""
        return HardState(self.term, self.voted_for, dict(self.bindings))

    def become_follower(self, term: int, leader: str | None) -> None:
        """Follow in a term, ours or a higher one; what belonged to another role ends."""
        if term > self.term:
            self.set_term(term, None)
        if self.role is RaftRole.LEADER:
            self.reset_election_deadline()
        self.role = RaftRole.FOLLOWER
        self.leader = leader
        self.votes.clear()
        self.progress.clear()
        self.transferee, self.transfer_deadline = None, math.inf
        self.heartbeat_deadline = math.inf
        self.fail_reads()

    def fail_reads(self) -> None:
        """Answer pending reads with "ask again"; filled in by the layer that holds them."""

    def progress_of(self, peer: str) -> PeerProgress:
        """Return the leader's progress of a peer of the configuration, begun when it is new."""
        progress = self.progress.get(peer)
        if progress is None:
            progress = self.progress[peer] = PeerProgress(self.log.last_index + 1, self.now)
        return progress
