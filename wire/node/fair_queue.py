"""Events of links that wait for a node's loop: a lane for each peer, and the lanes take turns.

Behind a peer that sends more than the node takes waits that peer alone. What the node says to itself goes first, what
routers send comes next: a lease must not wait behind messages. Routers have lanes too, and no more than half of a go
where somebody else waits, so one that floods holds up neither another router's leases nor everybody's messages. Of a
lane the order is kept; between links there never was one. A peer whose lane is full is not read until half of it is
worked off. A lane is a name's, as certificates have it: whoever comes again and again with another incarnation has no
more turns for that. Each tier says what an event weighs. Decision: docs/adr/0186-a-full-lane-is-not-read.md.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeAlias

from wire.messages.hello import TIER_ROUTER
from wire.node.events import FrameArrived, LinkDown, LinkUp

__all__ = ["LANE_BYTES_MAX", "WAITING_BYTES_MAX", "FairQueue", "LinkReading", "Weigh"]

WAITING_BYTES_MAX = 32 * 1024 * 1024  # of frames that may be paused, shared by the peers of which something waits
LANE_BYTES_MAX = 1024 * 1024  # of one peer: its other messages wait behind it
EVENT_BYTES = 256  # of an event beside its payload

Event: TypeAlias = Any  # of the tier
# Takes an event, where its rest begins, and the weight that is left; returns the weight of what there is room for, and
# where that ends in a frame, 0: with it.
Weigh: TypeAlias = Callable[[Event, int, int], tuple[int, int]]


class LinkReading(Protocol):
    """Links, of which some are not read for a while."""

    def pause(self, node: str) -> None:
        """Do not read a node's link; what it is to be sent is sent, and its silence is no reason to end it."""

    def go_on(self, node: str) -> None:
        """Read a node's link again."""


class _PeerQueue:
    """Events of one peer, in the order in which they came."""

    __slots__ = ("begin", "events", "node", "octets", "paused")

    def __init__(self, node: str) -> None:
        self.node = node
        self.events: deque[Event] = deque()
        self.begin = 0  # of what is left of the first one, a frame
        self.octets = 0
        self.paused = False

    def append(self, event: Event) -> None:
        """Add the newest one."""
        self.events.append(event)
        self.octets += _octets(event)

    def take(self, weigh: Weigh, left: int, taken: list[Event], *, first: bool) -> int:
        """Move events to ``taken`` as far as a weight allows; return what is left of it, nothing if something stays.

        It is below 0 by what the last one weighed above it.

        Args:
            weigh: Of the tier.
            left: Weight.
            taken: Grows.
            first: One event is taken whatever it weighs.
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
    """Lanes of peers that take turns."""

    __slots__ = ("_by_node", "_waiting")

    def __init__(self) -> None:
        self._by_node: dict[str, _PeerQueue] = {}  # those that are not empty
        self._waiting: deque[_PeerQueue] = deque()  # the same, whose turn it is first

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def octets(self) -> int:
        """Bytes of what waits."""
        return sum(lane.octets for lane in self._waiting)

    @property
    def lane_bytes_max(self) -> int:
        """Bytes of one lane, beyond which its peer is not read."""
        return min(LANE_BYTES_MAX, WAITING_BYTES_MAX // max(1, len(self._waiting)))

    def lane_of(self, node: str) -> _PeerQueue:
        """Return the lane of a peer to which an event is added."""
        lane = self._by_node.get(node)
        if lane is None:
            lane = self._by_node[node] = _PeerQueue(node)
            self._waiting.append(lane)
        return lane

    def first(self) -> _PeerQueue:
        """Return the lane whose turn it is."""
        return self._waiting[0]

    def next_one(self) -> None:
        """Let the next lane have its turn."""
        self._waiting.rotate(-1)

    def remove_first(self) -> None:
        """Forget the lane whose turn it was; it is empty."""
        del self._by_node[self._waiting.popleft().node]


class FairQueue:
    """Events of all peers.

    Args:
        weigh: What an event weighs.
        paused_tiers: Whose links are not read while their lanes are full.
        links: Reads them; None in a simulation, where nobody sends without a bound.

    Attributes:
        pauses: Times that a link was no longer read.
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
        """Whether something of routers or of this node waits."""
        return bool(self._own.events or self._routers)

    @property
    def octets(self) -> int:
        """Bytes of what waits."""
        return self._own.octets + self._routers.octets + self._others.octets

    def append(self, event: Event) -> bool:
        """Add the newest one of its peer; return whether that is not read any more from here on."""
        if not isinstance(event, FrameArrived | LinkUp | LinkDown):
            self._own.append(event)
            return False
        tier = event.peer.tier
        turns = self._routers if tier == TIER_ROUTER else self._others
        lane = turns.lane_of(event.peer.node)
        lane.append(event)
        if self._links is None or lane.paused or tier not in self._paused_tiers:
            return False
        if lane.octets <= turns.lane_bytes_max:
            return False
        lane.paused = True
        self.pauses += 1
        self._links.pause(lane.node)
        return True

    def next_events(
        self, weight: int, *, own: bool = False, skips: Callable[[str], bool] | None = None
    ) -> tuple[list[Event], int]:
        """Remove and return what is taken next, and the weight that is left: one event at least, if there is one.

        The weight is below 0 where an event of others than routers weighed more than there was.

        Args:
            weight: Of what is taken, about.
            own: Only of what routers sent, and of this node.
            skips: Says of which node nothing is taken now; never of a router.
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
        self, turns: _RoundRobin, taken: list[Event], left: int, share: int, skips: Callable[[str], bool] | None = None
    ) -> int:
        """Take of lanes in turn what their share of a weight allows, one event at least; return what is left of it."""
        kept = left - share
        first = True  # a weight that never fits beside what goes before is taken too
        looked = 0
        while looked < len(turns) and (share > 0 or first):
            lane = turns.first()
            if skips is not None and skips(lane.node):
                turns.next_one()
                looked += 1
                continue
            before = len(taken)
            share = lane.take(self._weigh, max(1, share), taken, first=first)
            first = False
            if lane.paused and lane.octets <= turns.lane_bytes_max // 2:
                self._go_on(lane)
            if lane.events:
                if len(taken) > before:
                    turns.next_one()
                break
            turns.remove_first()
        return kept + share

    def _go_on(self, lane: _PeerQueue) -> None:
        assert self._links is not None, "a lane that is never full was paused"
        lane.paused = False
        self._links.go_on(lane.node)


def _octets(event: Event) -> int:
    return EVENT_BYTES + len(event.payload) if isinstance(event, FrameArrived) else EVENT_BYTES
