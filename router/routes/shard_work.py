"""Work that the shards of a router have to do, a bounded number of steps a turn: Raft and leases have the same loop.

Messages of nodes to shards wait here in their order, each judged when its turn comes, as if it had come later. One
message is small enough for a turn: its sender cuts it, and of a question only the first topics are answered. Beyond a
number or bytes of all messages, those are dropped that their senders repeat; beyond those of one node, its link waits.
What a shard does in slices (``RouteShard.go_on``) shares what is left of a turn.
Decision: docs/adr/0023-work-in-slices.md.
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

STEPS_PER_TURN = 400  # topics, routes or cached topics looked at: one to three milliseconds
SLICES_MIN = 100  # of those, for what goes in slices, however many messages there are
STEPS_PER_SLICE = 50  # of one shard, at least
WAITING_MAX = 10_000  # messages; of more, those are dropped that their senders repeat
WAITING_BYTES_MAX = 64 * 1024 * 1024  # likewise
BEHIND_AT = 500  # messages of one node: of its link nothing more is taken before some of them are done
BEHIND_BYTES = 1024 * 1024  # likewise


class BatchValidator(NamedTuple):
    """Time, map and lease that the messages of one turn are judged by."""

    now: float  # seconds
    map: ClusterMap
    leased: bool  # this router may answer


class ShardWork:
    """Messages that wait for a turn, and shards with work that goes in slices."""

    def __init__(self, take: Callable[[BatchValidator, PeerKey, ShardMessage], int]) -> None:
        """Begin; ``take`` hands a message to its shard and returns the steps that it took."""
        self._take = take
        self._waiting: deque[tuple[PeerKey, ShardMessage, int]] = deque()  # sender, message, bytes
        self._bytes = 0  # of those
        self._counts: Counter[str] = Counter()  # of those, by node
        self._octets: Counter[str] = Counter()  # bytes of those, by node
        self._shards: set[int] = set()  # with work in slices
        self._next = 0  # the shard to begin with

    def __bool__(self) -> bool:
        return bool(self._waiting or self._shards)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, peer: PeerKey, message: ShardMessage) -> bool:
        """Have a message wait for its turn; False if it is dropped, for too many do."""
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
        """Return whether a node sends faster than its messages are done."""
        return self._counts.get(node, 0) >= BEHIND_AT or self._octets.get(node, 0) >= BEHIND_BYTES

    def goes_on(self, number: int) -> None:
        """A shard has work in slices."""
        self._shards.add(number)

    def turn(self, judge: BatchValidator, shards: Mapping[int, RouteShard]) -> Collection[int]:
        """Do the work of a turn for the shards that this router owns; return those that went on in slices."""
        left = STEPS_PER_TURN - (SLICES_MIN if self._shards else 0)
        waiting = self._waiting
        while waiting and left > 0:
            peer, message, octets = waiting.popleft()
            self._bytes -= octets
            self._counts[peer.node] -= 1
            self._octets[peer.node] -= octets
            if not self._counts[peer.node]:
                del self._counts[peer.node], self._octets[peer.node]
            left -= self._take(judge, peer, message)
        return self._slices(judge.now, shards, max(SLICES_MIN, left)) if self._shards else ()

    def _slices(self, now: float, shards: Mapping[int, RouteShard], left: int) -> set[int]:
        share = max(STEPS_PER_SLICE, left // len(self._shards))
        went_on = set()
        for number in sorted(self._shards, key=lambda number: (number - self._next) % (1 << 20)):
            shard = shards.get(number)
            if shard is not None and shard.sweeps and left > 0:
                shard.now = now
                left -= shard.go_on(min(share, left))
                went_on.add(number)
                self._next = number + 1  # the others are first in the next turn
            if shard is None or not shard.sweeps:
                self._shards.discard(number)
        return went_on
