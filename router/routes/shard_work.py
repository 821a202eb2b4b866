"""Work of a router's shards, a bounded number of steps per iteration, because Raft and leases share the loop.

Shard messages queue in order. Each is validated when it is processed, as if it arrived then. One message fits
for an iteration: senders split it, and only the first topics of a Resolve are answered. Beyond a bound of all messages,
those that their senders repeat are dropped. Beyond a bound of one node, its link is paused. Work in slices
(``RouteShard.run_slice``) shares the rest of an iteration. Decision: docs/adr/0023-work-in-slices.md.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from router.routes.held_messages import octets_of
from router.routes.shard import RouteShard
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import PeerKey
from wire.messages.routes import AddRoutes, Invalidated, RemoveRoutes, ReportRoutes, Resolve

__all__ = ["BatchValidator", "ShardMessage", "ShardWork"]

ShardMessage = Resolve | AddRoutes | RemoveRoutes | ReportRoutes | Invalidated

STEPS_PER_ITERATION = 400  # visited topics, routes or cached topics: one to three milliseconds
SLICES_MIN = 100  # of those, reserved for work in slices under any load
STEPS_PER_SLICE = 50  # of one shard, at least
WAITING_MAX = 10_000  # messages; beyond it, those that their senders repeat are dropped
WAITING_BYTES_MAX = 64 * 1024 * 1024  # likewise
BEHIND_AT = 500  # messages of one node; beyond it, its link is not read until some are processed
BEHIND_BYTES = 1024 * 1024  # likewise


class BatchValidator(NamedTuple):
    """Time, map and lease for the validation of one iteration's messages."""

    now: float  # seconds
    map: ClusterMap
    leased: bool  # this router may answer


class ShardWork:
    """Queued messages, and shards with work in slices."""

    def __init__(self, take: Callable[[BatchValidator, PeerKey, ShardMessage], int]) -> None:
        """Initialize; ``take`` passes a message to its shard and returns its cost in steps."""
        self._take = take
        self._waiting: deque[tuple[PeerKey, ShardMessage, int]] = deque()  # sender, message, bytes
        self._bytes = 0  # of those
        self._counts: Counter[str] = Counter()  # of those, by node
        self._octets: Counter[str] = Counter()  # bytes of those, by node
        self._shards: set[int] = set()  # with work in slices
        self._next = 0  # the first shard of the next iteration

    def __bool__(self) -> bool:
        return bool(self._waiting or self._shards)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, peer: PeerKey, message: ShardMessage) -> bool:
        """Queue a message; False if it is dropped because the backlog is full."""
        octets = octets_of(message)
        full = len(self._waiting) >= WAITING_MAX or self._bytes + octets > WAITING_BYTES_MAX
        if full and isinstance(message, Resolve | AddRoutes):
            return False
        self._waiting.append((peer, message, octets))
        self._bytes += octets
        self._counts[peer.node] += 1
        self._octets[peer.node] += octets
        return True

    def is_behind(self, node: str) -> bool:
        """Return whether a node sends faster than its messages are processed."""
        return self._counts.get(node, 0) >= BEHIND_AT or self._octets.get(node, 0) >= BEHIND_BYTES

    def add_shard(self, number: int) -> None:
        """Record that a shard has work in slices."""
        self._shards.add(number)

    def run_iteration(self, validator: BatchValidator, shards: Mapping[int, RouteShard]) -> Collection[int]:
        """Do the work of one iteration; return the shards that processed a slice."""
        left = STEPS_PER_ITERATION - (SLICES_MIN if self._shards else 0)
        waiting = self._waiting
        while waiting and left > 0:
            peer, message, octets = waiting.popleft()
            self._bytes -= octets
            self._counts[peer.node] -= 1
            self._octets[peer.node] -= octets
            if not self._counts[peer.node]:
                del self._counts[peer.node], self._octets[peer.node]
            left -= self._take(validator, peer, message)
        return self._slices(validator.now, shards, max(SLICES_MIN, left)) if self._shards else ()

    def _slices(self, now: float, shards: Mapping[int, RouteShard], left: int) -> set[int]:
        share = max(STEPS_PER_SLICE, left // len(self._shards))
        processed = set()
        for number in sorted(self._shards, key=lambda number: (number - self._next) % (1 << 20)):
            shard = shards.get(number)
            if shard is not None and shard.has_slices and left > 0:
                shard.now = now
                left -= shard.run_slice(min(share, left))
                processed.add(number)
                self._next = number + 1  # the others come first in the next iteration
            if shard is None or not shard.has_slices:
                self._shards.discard(number)
        return processed
