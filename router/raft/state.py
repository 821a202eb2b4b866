"""The shared state of all parts of the Raft core, and the steps common to them.

The core is a chain of layers, each a class that knows those below it: ``RaftState``, ``SnapshotTransfer``,
``LogReplication``, ``ReadIndexes``, ``MembershipChange``, ``LeadershipTransfer``, ``Elections``, ``RaftCore``. This
file defines the resets at a change of term or role, the configuration in force, and the identity of peers' disks.
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
    """Data of one peer, and the messages of the next Ready."""

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
        # A crash may keep entries of a term but lose the term: no message of that term was sent then.
        self.term = max(stored.hard_state.term, self.log.last_term)
        self.voted_for = stored.hard_state.voted_for if self.term == stored.hard_state.term else None
        self.bindings = dict(stored.hard_state.bindings)
        self.hard_state_changed = False
        self.commit_index = self.last_applied = stored.snapshot.index if stored.snapshot else 0

        self.role = RaftRole.FOLLOWER
        self.leader: str | None = None
        self.last_leader_contact = -math.inf
        self.election_deadline = math.inf
        self.heartbeat_deadline = math.inf
        self.votes: dict[str, bool] = {}
        self.progress: dict[str, PeerProgress] = {}
        self.round = 0  # heartbeat rounds of this leadership
        self.first_index_of_term = 0  # of our leadership: older entries are never committed by counting
        self.transferee: str | None = None
        self.transfer_deadline = math.inf
        self.identity_refused = False  # a peer has another disk's storage id for our name
        self.foreign_disks: dict[str, tuple[int, float]] = {}  # voter -> other storage id under its name, last message

        self.introduced: dict[str, tuple[str, ...]] = {}  # member -> members of its last reported configuration
        self.ask_members_at = -math.inf  # earliest next PreVote caused by a router outside our configuration

        self.configurations: list[tuple[int, Configuration]] = []
        self._load_configurations(stored)

        self.messages: list[RaftMessage] = []
        self.read_states: list[ReadState] = []
        self.drops: Counter[str] = Counter()  # rejected messages, by reason

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
        """Index of the newest configuration's entry."""
        return self.configurations[-1][0]

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration in force at the index."""
        return next(known for at, known in reversed(self.configurations) if at <= index)

    def undo_configurations(self, from_index: int) -> None:
        """Remove truncated configurations."""
        while len(self.configurations) > 1 and self.configurations[-1][0] >= from_index:
            self.configurations.pop()

    def append_entries(self, entries: tuple[LogEntry, ...]) -> None:
        """Append to the log and put configurations in force."""
        self.log.append(entries)
        self._note_configurations(entries)

    # Identity

    @property
    def is_voter(self) -> bool:
        """Whether this disk, not only this name, has a vote, and all voters' disks are known."""
        voters = self.configuration.voters
        return voters.get(self.id) == self.storage_id and all(voters.values())

    def bind(self, message: RaftMessage) -> None:
        """Bind a storage id to a name, while only the bootstrap's configuration applies.

        Bindings are durable before we vote, and voting needs all of them. So a voter that lost its disk meets at least
        one peer with the former storage id (see ``refuses_identity``).
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
        if self.is_voter:  # all peers get here at the same time: draw a random first candidate
            self.election_deadline = self.now + self.config.election_timeout_s * self.rng.random()

    def refuses_identity(self, message: RaftMessage) -> bool:
        """Whether the sender expects another disk under our name, and the log does not contradict it."""
        if message.expected_storage_id in (0, self.storage_id):
            return False
        if self.configuration_index and self.configuration.storage_id(self.id) == self.storage_id:
            return False  # the sender's configuration is the older one
        self.identity_refused = True
        return True

    def has_foreign_disk(self, message: RaftMessage) -> bool:
        """Whether an answer comes from another disk than the bound one, which may have lost promises."""
        known = self.configuration.storage_id(message.sender)
        return known != 0 and known != message.storage_id

    def record_foreign_disk(self, message: RaftMessage) -> None:
        """Record another disk under a voter's name, and remove it when the voter's own disk sends a message."""
        if message.sender not in self.configuration.voters:
            return
        if self.has_foreign_disk(message):
            self.foreign_disks[message.sender] = (message.storage_id, self.now)
        elif message.storage_id:
            self.foreign_disks.pop(message.sender, None)

    # Roles, terms, time

    def header(self, to: str) -> tuple[str, str, int, int, int, int]:
        """Return the header fields of every message."""
        return self.id, to, self.term, self.incarnation, self.storage_id, self.configuration.storage_id(to)

    def send(self, message: RaftMessage) -> None:
        """Queue a message of this step; it is sent after the state is on disk."""
        self.messages.append(message)

    def drop(self, reason: str) -> None:
        """Count a rejected message."""
        self.drops[reason] += 1

    def other_voters(self) -> list[str]:
        """Return the voters except this peer."""
        return [peer for peer in self.configuration.voters if peer != self.id]

    def reset_election_deadline(self) -> None:
        """Draw the next deadline from one to two election timeouts (Raft paper, section 5.2)."""
        self.election_deadline = self.now + self.config.election_timeout_s * (1.0 + self.rng.random())

    def set_term(self, term: int, voted_for: str | None) -> None:
        """Set term and vote; both are on disk before any message of the term is sent."""
        self.term, self.voted_for = term, voted_for
        self.hard_state_changed = True

    def hard_state(self) -> HardState:
        """Return the state that must be durable before any message is sent."""
        return HardState(self.term, self.voted_for, dict(self.bindings))

    def become_follower(self, term: int, leader: str | None) -> None:
        """Become follower in our term or a higher one; reset the state of other roles."""
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
        """Answer pending reads with -1; implemented by the layer with reads."""

    def progress_of(self, peer: str) -> PeerProgress:
        """Return the leader's progress of a member, created when missing."""
        progress = self.progress.get(peer)
        if progress is None:
            progress = self.progress[peer] = PeerProgress(self.log.last_index + 1, self.now)
        return progress
