"""The event queue of a node's loop: one queue for each peer, served round robin.

A peer that sends more than the node processes delays only itself. The node's own events come first, those of routers
next, because a lease must not wait behind messages. Routers have queues too and get at most half of an iteration while
other peers wait: a flooding router delays neither another router's leases nor all messages. The order within a peer's
queue is kept; links have no order among themselves. A peer whose queue is full is not read until half of it is
processed. A queue belongs to a certified name, so reconnects under new incarnations gain no share. Each tier defines
the weight of an event. Decision: docs/adr/0186-a-full-lane-is-not-read.md.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeAlias

from wire.messages.hello import TIER_ROUTER
from wire.node.events import FrameArrived, LinkDown, LinkUp

__all__ = ["LANE_BYTES_MAX", "WAITING_BYTES_MAX", "FairQueue", "LinkReading", "Weigh"]

WAITING_BYTES_MAX = 32 * 1024 * 1024  # of pending frames of pausable peers, shared by the peers with pending events
LANE_BYTES_MAX = 1024 * 1024  # of one peer, before it is paused
EVENT_BYTES = 256  # of an event besides its payload

Event: TypeAlias = Any  # defined by the tier
# Arguments: an event, the offset of its rest, the remaining weight. Returns the weight of the part that fits, and
# the offset where that part ends in a frame, 0: at its end.
Weigh: TypeAlias = Callable[[Event, int, int], tuple[int, int]]


class LinkReading(Protocol):
    """Links whose reading can be paused."""

    def pause(self, node: str) -> None:
        """Stop reading a node's link; sending continues, and its idle timeout is suspended."""

    def go_on(self, node: str) -> None:
        """Resume reading a node's link."""


class _PeerQueue:
    """Events of one peer in order of arrival."""

    __slots__ = ("begin", "events", "node", "octets", "paused")

    def __init__(self, node: str) -> None:
        self.node = node
        self.events: deque[Event] = deque()
        self.begin = 0  # offset of the rest of the first event, a frame
        self.octets = 0
        self.paused = False

    def append(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)
        self.octets += _octets(event)

    def take(self, weigh: Weigh, left: int, taken: list[Event], *, first: bool) -> int:
        """Move events to ``taken`` while the weight suffices; return the remaining weight, at most 0 if events remain.

        It is negative by the excess of the last event.

        Args:
            weigh: Of the tier.
            left: Remaining weight.
            taken: Receives the events.
            first: One event is taken whatever its weight.
        """
        while self.events and left > 0:
            event = self.events[0]
            weight, end = weigh(event, self.begin, left)
            if weight > left and not first:
                return 0
            left, first = left - weight, False
            part = event
            if isinstance(event, FrameArrived) and (self.begin or end):
                part = FrameArrived(event.peer, event.kind, event.payload[self.begin : end or None])
            taken.append(part)
            self.begin = end
            if not end:
                self.events.popleft()
                self.octets -= _octets(event)
        return min(0, left) if self.events else left


class _RoundRobin:
    """Round robin over the queues of peers."""

    __slots__ = ("_by_node", "_waiting")

    def __init__(self) -> None:
        self._by_node: dict[str, _PeerQueue] = {}  # those that are not empty
        self._waiting: deque[_PeerQueue] = deque()  # the same, the next one first

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def octets(self) -> int:
        """Bytes of pending events."""
        return sum(queue.octets for queue in self._waiting)

    @property
    def queue_bytes_max(self) -> int:
        """Bytes of one peer's queue, above which its peer is not read."""
        return min(LANE_BYTES_MAX, WAITING_BYTES_MAX // max(1, len(self._waiting)))

    def queue_of(self, node: str) -> _PeerQueue:
        """Return the queue of a peer for a new event."""
        queue = self._by_node.get(node)
        if queue is None:
            queue = self._by_node[node] = _PeerQueue(node)
            self._waiting.append(queue)
        return queue

    def first(self) -> _PeerQueue:
        """Return the next queue."""
        return self._waiting[0]

    def next_one(self) -> None:
        """Move the first queue to the end."""
        self._waiting.rotate(-1)

    def remove_first(self) -> None:
        """Remove the first queue, which is empty."""
        del self._by_node[self._waiting.popleft().node]


class FairQueue:
    """Events of all peers.

    Args:
        weigh: Returns the weight of an event.
        paused_tiers: Tiers whose links are not read while their queues are full.
        links: Reads them; None in a simulation, where senders are bounded.

    Attributes:
        pauses: Number of pauses of links.
    """

    def __init__(self, weigh: Weigh, paused_tiers: Collection[str], links: LinkReading | None = None) -> None:
        self.pauses = 0
        self._weigh = weigh
        self._paused_tiers = paused_tiers
        self._links = links
        self._own = _PeerQueue("")  # of this node
        self._routers, self._others = _RoundRobin(), _RoundRobin()

    def __bool__(self) -> bool:
        return bool(self._own.events or self._routers or self._others)

    @property
    def own(self) -> bool:
        """Whether events of routers or of this node are pending."""
        return bool(self._own.events or self._routers)

    @property
    def octets(self) -> int:
        """Bytes of pending events."""
        return self._own.octets + self._routers.octets + self._others.octets

    def append(self, event: Event) -> bool:
        """Add an event of its peer; return whether this paused the peer's link."""
        if not isinstance(event, FrameArrived | LinkUp | LinkDown):
            self._own.append(event)
            return False
        tier = event.peer.tier
        peers = self._routers if tier == TIER_ROUTER else self._others
        queue = peers.queue_of(event.peer.node)
        queue.append(event)
        if self._links is None or queue.paused or tier not in self._paused_tiers:
            return False
        if queue.octets <= peers.queue_bytes_max:
            return False
        queue.paused = True
        self.pauses += 1
        self._links.pause(queue.node)
        return True

    def next_events(
        self, weight: int, *, own: bool = False, skips: Callable[[str], bool] | None = None
    ) -> tuple[list[Event], int]:
        """Remove and return the next events, and the remaining weight: at least one event, if there is one.

        The weight is negative if an event of a non-router exceeded it.

        Args:
            weight: Approximate weight of the returned events.
            own: Return only events of routers and of this node.
            skips: Returns whether a node's events are skipped now; never called for a router.
        """
        taken: list[Event] = []
        left = max(0, self._own.take(self._weigh, weight, taken, first=True))
        if self._routers:
            share = left if own or not self._others else left // 2
            left = max(left - share, self._take(self._routers, taken, left, share))
        if not own and (left > 0 or not self.own):
            left = self._take(self._others, taken, left, left, skips)
        return taken, left

    def _take(
        self, peers: _RoundRobin, taken: list[Event], left: int, share: int, skips: Callable[[str], bool] | None = None
    ) -> int:
        """Take events of the queues in turn up to a share of the weight, at least one; return the remaining weight."""
        reserved = left - share
        first = True  # an event that exceeds any share is taken too
        skipped = 0
        while skipped < len(peers) and (share > 0 or first):
            queue = peers.first()
            if skips is not None and skips(queue.node):
                peers.next_one()
                skipped += 1
                continue
            before = len(taken)
            share = queue.take(self._weigh, max(1, share), taken, first=first)
            first = False
            if queue.paused and queue.octets <= peers.queue_bytes_max // 2:
                self._resume(queue)
            if queue.events:
                if len(taken) > before:
                    peers.next_one()
                break
            peers.remove_first()
        return reserved + share

    def _resume(self, queue: _PeerQueue) -> None:
        assert self._links is not None, "a lane that is never full was paused"
        queue.paused = False
        self._links.go_on(queue.node)


def _octets(event: Event) -> int:
    return EVENT_BYTES + len(event.payload) if isinstance(event, FrameArrived) else EVENT_BYTES
