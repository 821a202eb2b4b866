"""A leader's record of one peer's log position and flow control.

Three states, as in etcd: ``probe`` (position unknown: one empty append at a time), ``replicate`` (position known:
appends are pipelined and next_index runs ahead), ``snapshot`` (the needed entries are compacted). Messages are built in
``router/raft/replication.py``.
"""

import enum
from collections import deque

from router.raft.events import Snapshot

__all__ = ["PeerProgress", "ProgressState"]


class ProgressState(enum.Enum):
    """State of a peer at the leader: log position unknown, known, or behind the snapshot."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class PeerProgress:
    """One peer's progress; exists at leaders only."""

    def __init__(self, next_index: int, now: float) -> None:
        self.state = ProgressState.PROBE
        self.next_index = next_index
        self.match_index = 0
        self.sent_commit = 0
        self.inflight: deque[int] = deque()  # last index of each unanswered append with entries
        self.paused = False  # a probe is in flight
        self.last_seen = now  # time of the last answer in this term, for check-quorum
        self.acked_round = 0  # highest heartbeat round answered
        self.storage_id = 0  # of its last answer
        self.incarnation = 0
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0

    def become_probe(self, next_index: int | None = None) -> None:
        """Drop in-flight state and probe for the peer's position."""
        self.state = ProgressState.PROBE
        self.next_index = self.match_index + 1 if next_index is None else max(next_index, self.match_index + 1)
        self.inflight.clear()
        self.paused = False
        self.snapshot = None

    def become_replicate(self) -> None:
        """Pipeline from the entry after match_index."""
        self.state = ProgressState.REPLICATE
        self.next_index = self.match_index + 1
        self.inflight.clear()
        self.paused = False
        self.snapshot = None

    def become_snapshot(self, snapshot: Snapshot) -> None:
        """Send this snapshot, which stays referenced even if a newer one is taken."""
        self.state = ProgressState.SNAPSHOT
        self.snapshot = snapshot
        self.snapshot_offset = 0
        self.paused = False
        self.inflight.clear()

    def sent(self, last_index: int) -> None:
        """Count an append with entries up to last_index as in flight."""
        self.next_index = last_index + 1
        self.inflight.append(last_index)

    def acknowledged(self, match_index: int) -> bool:
        """Record a success up to match_index; return whether it advanced."""
        while self.inflight and self.inflight[0] <= match_index:
            self.inflight.popleft()
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        self.next_index = max(self.next_index, match_index + 1)
        return True
