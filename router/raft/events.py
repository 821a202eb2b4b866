"""Input and output of the Raft core: settings, events, stored state, Ready.

The order of effects is the safety rule; each field of ``RaftReady`` documents it (Raft paper, figure 2; as in etcd's
Ready).
"""

import enum
from typing import Literal, TypeAlias

import msgspec

from conf.router_settings import RouterSettings
from router.raft.messages import NORMAL, Configuration, EntryKind, LogEntry, RaftMessage

__all__ = [
    "ChangeMembership",
    "Event",
    "HardState",
    "Persisted",
    "Propose",
    "ProposeBatch",
    "RaftConfig",
    "RaftInvariantBroken",
    "RaftReady",
    "RaftRole",
    "RaftTick",
    "ReadIndexEvent",
    "ReadState",
    "Receive",
    "Snapshot",
    "SnapshotTaken",
    "StoredRaftState",
    "TransferLeadership",
]

DEFAULT = RouterSettings()  # defaults and descriptions of settings: conf/router_settings.py


class RaftInvariantBroken(Exception):
    """A state that Raft excludes, such as truncating a committed entry: the peer must stop."""


class RaftRole(enum.Enum):
    """Current role of a peer; a learner is a follower outside the voters."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one peer. ``voters`` apply only until the log holds a configuration."""

    id: str
    voters: tuple[str, ...] = ()  # of the bootstrap; empty: wait to be added as a learner
    learners: tuple[str, ...] = ()
    storage_ids: dict[str, int] = {}  # of the bootstrap, where known; others are bound at first contact
    # Drawn between 1 and 2 times this; also the duration of stickiness to a leader
    election_timeout_s: float = DEFAULT.election_timeout_s
    heartbeat_s: float = DEFAULT.heartbeat_s
    disk_stall_s: float = 2.0  # a leader whose own sync takes longer steps down; its clients would wait indefinitely
    max_entries_per_append: int = 512
    max_bytes_per_append: int = 1 << 20  # at least one entry always fits
    max_inflight_appends: int = 8  # unanswered appends with entries per peer
    max_uncommitted_bytes: int = 64 << 20  # proposals beyond this are refused: "busy"
    max_pending_reads: int = 10_000
    # A larger one is refused; the largest map has 75 MB, the largest policy 128 MiB
    max_snapshot_bytes: int = 256 << 20
    snapshot_chunk_bytes: int = 256 << 10
    trailing_entries: int = DEFAULT.trailing_entries
    promote_lag_entries: int = 1_000  # largest lag of a caught-up learner


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """Durable state besides the log. ``bindings``: storage ids that the log does not contain yet."""

    term: int = 0
    voted_for: str | None = None
    bindings: dict[str, int] = {}


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after applying ``index``."""

    index: int
    term: int
    configuration: Configuration
    data: bytes


class StoredRaftState(msgspec.Struct, frozen=True):
    """Content of a disk when a peer starts; entries follow the snapshot without a gap."""

    storage_id: int
    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: tuple[LogEntry, ...] = ()


class RaftTick(msgspec.Struct, frozen=True):
    """The deadline of the last Ready has passed (early and repeated ticks are harmless)."""


class Receive(msgspec.Struct, frozen=True):
    """A message from a peer whose identity the link has authenticated."""

    message: RaftMessage


class Propose(msgspec.Struct, frozen=True):
    """Append one entry; ``RaftReady.proposed`` has its index, or ``RaftReady.refused`` the reason."""

    data: bytes
    kind: EntryKind = NORMAL


class ProposeBatch(msgspec.Struct, frozen=True):
    """Append several normal entries at once; all or none."""

    data: tuple[bytes, ...]


class ReadIndexEvent(msgspec.Struct, frozen=True):
    """Request the index that a linearizable read starting now must have applied; contexts are never reused."""

    context: int | bytes


class TransferLeadership(msgspec.Struct, frozen=True):
    """Transfer leadership to another voter, as soon as it has the whole log (thesis, section 3.10)."""

    to: str


class ChangeMembership(msgspec.Struct, frozen=True):
    """One step: ``add_learner``, ``promote`` a learner to voter, ``remove`` either, or ``replace`` a voter's lost disk.

    ``replace`` applies to a voter whose name uses another disk: the old disk loses its vote, the new one is a learner.
    """

    action: Literal["add_learner", "promote", "remove", "replace"]
    peer: str


class Persisted(msgspec.Struct, frozen=True):
    """Ready ``number`` and all before it are synced."""

    number: int


class SnapshotTaken(msgspec.Struct, frozen=True):
    """The state machine after applying ``index`` is ``data`` and is on disk."""

    index: int
    data: bytes


Event: TypeAlias = (
    RaftTick
    | Receive
    | Propose
    | ProposeBatch
    | ReadIndexEvent
    | TransferLeadership
    | ChangeMembership
    | Persisted
    | SnapshotTaken
)


class ReadState(msgspec.Struct, frozen=True):
    """A read may be served once ``index`` is applied; -1: leadership was lost or is unknown, retry."""

    context: int | bytes
    index: int


class RaftReady(msgspec.Struct, frozen=True):
    """Work for the core's shell: persist, then send, then apply (Raft paper, figure 2).

    Readies are processed in order of ``number``. Several may share one sync; none may overtake another.
    """

    number: int
    hard_state: HardState | None = None  # on disk before the entries of the same Ready are written
    snapshot: Snapshot | None = None  # installed from the leader: on disk, state machine restored, log dropped
    entries: tuple[LogEntry, ...] = ()  # an entry replaces the stored one of its index and all later ones
    messages: tuple[RaftMessage, ...] = ()  # sent only when this Ready and all before are synced
    early_messages: tuple[RaftMessage, ...] = ()  # a leader's appends: may be sent during its own sync
    committed: tuple[LogEntry, ...] = ()  # applied once each, in index order; already synced here
    read_states: tuple[ReadState, ...] = ()
    proposed: int | None = None  # index of the first entry appended by this event
    refused: str | None = None  # why a proposal, transfer or change was not started
    role: RaftRole | None = None  # set when it changed
    next_deadline: float = float("inf")  # of the next RaftTick, on the clock of ``now``

    @property
    def must_persist(self) -> bool:
        """Whether this Ready has data to write."""
        return bool(self.entries) or self.hard_state is not None or self.snapshot is not None
