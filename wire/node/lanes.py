"""Events of links that wait for a node's loop: a lane for each peer, and the lanes take turns.

Behind a peer that sends more than the node takes waits that peer alone. What routers send, and what the node says to
itself, has a lane of its own, which goes first: a lease must not wait behind messages. Of a lane the order is kept;
between links there never was one. A peer whose lane is full is not read until half of it is worked off. A lane is a
name's, as certificates have it: whoever comes again and again with another incarnation has no more turns for that. Each
tier says what an event weighs. Decision: docs/adr/0186-a-full-lane-is-not-read.md.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeAlias

from wire.messages.hello import TIER_ROUTER, PeerKey
from wire.node.events import FrameArrived, LinkDown, LinkUp

__all__ = ["LANE_BYTES_MAX", "WAITING_BYTES_MAX", "Lanes", "LinkReading", "Weigh"]

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


class _Lane:
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
        """Move events to ``taken`` as far as a weight allows; return what is left of it, 0 if something stays.

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
        return 0 if self.events else max(0, left)


class Lanes:
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
        self._own = _Lane("")  # of routers and of this node: first
        self._lanes: dict[str, _Lane] = {}  # those that are not empty, by node
        self._turns: deque[_Lane] = deque()  # the same, whose turn it is first

    def __bool__(self) -> bool:
        return bool(self._own.events or self._turns)

    @property
    def own(self) -> bool:
        """Whether something of routers or of this node waits."""
        return bool(self._own.events)

    @property
    def octets(self) -> int:
        """Bytes of what waits."""
        return self._own.octets + sum(lane.octets for lane in self._turns)

    def append(self, event: Event) -> bool:
        """Add the newest one of its peer; return whether that is not read any more from here on."""
        if not isinstance(event, FrameArrived | LinkUp | LinkDown) or event.peer.tier == TIER_ROUTER:
            self._own.append(event)
            return False
        lane = self._lane_of(event.peer)
        lane.append(event)
        if self._links is None or lane.paused or event.peer.tier not in self._paused_tiers:
            return False
        if lane.octets <= self._lane_bytes_max():
            return False
        lane.paused = True
        self.pauses += 1
        self._links.pause(lane.node)
        return True

    def _lane_of(self, peer: PeerKey) -> _Lane:
        lane = self._lanes.get(peer.node)
        if lane is None:
            lane = self._lanes[peer.node] = _Lane(peer.node)
            self._turns.append(lane)
        return lane

    def _lane_bytes_max(self) -> int:
        return min(LANE_BYTES_MAX, WAITING_BYTES_MAX // max(1, len(self._lanes)))

    def next_events(
        self, weight: int, *, own: bool = False, skips: Callable[[str], bool] | None = None
    ) -> tuple[list[Event], int]:
        """Remove and return what is taken next, and the weight that is left: one event at least, if there is one.

        Args:
            weight: Of what is taken, about.
            own: Only of what routers sent, and of this node.
            skips: Says of which node nothing is taken now.
        """
        taken: list[Event] = []
        left = self._own.take(self._weigh, weight, taken, first=True)
        first = True  # a lane: a weight that never fits beside what routers send is taken too
        looked = 0
        while not own and looked < len(self._turns) and (left > 0 or (first and not self._own.events)):
            lane = self._turns[0]
            if skips is not None and skips(lane.node):
                self._turns.rotate(-1)
                looked += 1
                continue
            before = len(taken)
            left = lane.take(self._weigh, max(1, left), taken, first=first)
            first = False
            if lane.paused and lane.octets <= self._lane_bytes_max() // 2:
                self._go_on(lane)
            if lane.events:
                if len(taken) > before:
                    self._turns.rotate(-1)
                break
            self._turns.popleft()
            del self._lanes[lane.node]
        return taken, left

    def _go_on(self, lane: _Lane) -> None:
        assert self._links is not None, "a lane that is never full was paused"
        lane.paused = False
        self._links.go_on(lane.node)


def _octets(event: Event) -> int:
    return EVENT_BYTES + len(event.payload) if isinstance(event, FrameArrived) else EVENT_BYTES
