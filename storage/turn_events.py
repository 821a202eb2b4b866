"""Events that wait for a storage node's loop: how many of them it takes in one go, and whose links wait to be read.

So many that no client keeps the loop long. A frame of many messages or acknowledgements is taken in parts, in its
order: an edge packs what its clients sent into one. Several such goes are one turn to the core, so that what is written
to disk at once stays large; the loop sees to others between them.

Each edge and each storage node has a lane, and the lanes take turns: behind an edge that sends more than this node
takes waits that edge alone. What routers send, and ends of syncs, goes first, because a lease must not wait behind
messages. Of a lane the order is kept; between links there never was one. An edge whose lane is full is not read until
half of it is worked off. Decision: docs/adr/0186-a-full-lane-is-not-read.md.
"""

from collections import deque
from typing import Protocol

from storage.core import BatchSynced, Event
from wire.messages.batches import only_pubacks, publish_records, push_ack_records
from wire.messages.control import count_of_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, PeerKey
from wire.node.events import FrameArrived, LinkDown, LinkUp

__all__ = ["LinkReading", "TurnEvents"]

WEIGHT_MAX = 2_000  # microseconds, about, of what is taken in one go
TURN_WEIGHT = 9_000  # beyond it the core's turn ends: what it writes and says takes a third of that
REQUEST_WEIGHT = 70  # it may end a session and begin another one; what it leaves to do is cut where that may be long
MESSAGE_WEIGHT = 12  # of a message, for each of its partitions
ACK_WEIGHT = 7
SYNCED_WEIGHT = 200  # of a batch that is on disk: its rows leave the memory of what is not
SHORT_BYTES = 1_000  # of a frame that is not looked into: its records are estimated
RECORD_BYTES = 100
WAITING_BYTES_MAX = 32 * 1024 * 1024  # of frames of edges, shared by the edges of which something waits
LANE_BYTES_MAX = 1024 * 1024  # of one edge: a tenth of a second of small messages, which its other clients wait behind
EVENT_BYTES = 256  # of an event beside its payload

RECORDS = {
    FrameKind.PUBLISH: (publish_records, MESSAGE_WEIGHT),
    FrameKind.PUSH_ACK: (push_ack_records, ACK_WEIGHT),
}


class LinkReading(Protocol):
    """Links, of which some are not read for a while."""

    def pause(self, peer: PeerKey) -> None:
        """Do not read a link; what it is to send is sent, and its silence is no reason to end it."""

    def go_on(self, peer: PeerKey) -> None:
        """Read a link again."""


class _Lane:
    """Events of one peer, in the order in which they came."""

    __slots__ = ("begin", "events", "octets", "paused", "peer")

    def __init__(self, peer: PeerKey | None) -> None:
        self.peer = peer
        self.events: deque[Event] = deque()
        self.begin = 0  # of what is left of the first one, a frame
        self.octets = 0
        self.paused = False

    def append(self, event: Event) -> None:
        """Add the newest one."""
        self.events.append(event)
        self.octets += _octets(event)

    def take(self, left: int, taken: list[Event], *, first: bool) -> int:
        """Move events to ``taken`` as far as a weight allows; return what is left of it, 0 if something stays.

        Args:
            left: Weight.
            taken: Grows.
            first: One event is taken whatever it weighs.
        """
        while self.events and left > 0:
            event = self.events[0]
            weight, end = _weigh(event, self.begin, left)
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


class TurnEvents:
    """Events of all peers.

    Args:
        links: Reads them; None in a simulation, where nobody sends without a bound.

    Attributes:
        goes_on: What was taken last and what is taken next are one turn to the core.
        pressing: Somebody waits for one of them, whatever the core knows: not all are PUBACKs of subscribers, or a
            link is not read.
        pauses: Times that a link was no longer read.
    """

    def __init__(self, links: LinkReading | None = None) -> None:
        self.goes_on = self.pressing = False
        self.pauses = 0
        self._links = links
        self._own = _Lane(None)  # of routers and of this node: first
        self._lanes: dict[PeerKey, _Lane] = {}  # those that are not empty
        self._turns: deque[_Lane] = deque()  # the same, whose turn it is first
        self._weight = 0  # of the core's turn

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

    def append(self, event: Event) -> None:
        """Add the newest one of its peer."""
        lane = self._lane_of(event)
        lane.append(event)
        if not self.pressing:
            acks = isinstance(event, FrameArrived) and event.kind == FrameKind.PUSH_ACK and only_pubacks(event.payload)
            self.pressing = not acks
        peer = lane.peer
        if self._links is None or peer is None or lane.paused or peer.tier != TIER_EDGE:
            return
        if lane.octets > self._lane_bytes_max():
            lane.paused = self.pressing = True
            self.pauses += 1
            self._links.pause(peer)

    def _lane_of(self, event: Event) -> _Lane:
        if not isinstance(event, FrameArrived | LinkUp | LinkDown) or event.peer.tier == TIER_ROUTER:
            return self._own
        lane = self._lanes.get(event.peer)
        if lane is None:
            lane = self._lanes[event.peer] = _Lane(event.peer)
            self._turns.append(lane)
        return lane

    def _lane_bytes_max(self) -> int:
        return min(LANE_BYTES_MAX, WAITING_BYTES_MAX // max(1, len(self._lanes)))

    def take(self, *, own: bool = False) -> list[Event]:
        """Remove and return what is taken next: something of the first event at least, if there is one.

        Args:
            own: Only of what routers sent, and of this node.
        """
        taken: list[Event] = []
        left = self._own.take(WEIGHT_MAX, taken, first=True)
        first = True  # a lane: a weight that never fits beside what routers send is taken too
        while not own and self._turns and (left > 0 or (first and not self._own.events)):
            lane = self._turns[0]
            before = len(taken)
            left = lane.take(max(1, left), taken, first=first)
            first = False
            if lane.paused and lane.octets <= self._lane_bytes_max() // 2:
                self._go_on(lane)
            if lane.events:
                if len(taken) > before:
                    self._turns.rotate(-1)
                break
            self._turns.popleft()
            assert lane.peer is not None
            del self._lanes[lane.peer]
        self._weight += WEIGHT_MAX - left
        self.goes_on = self._weight < TURN_WEIGHT and bool(self._own.events if own else self)
        if not self.goes_on:
            self._weight = 0
        if not self:
            self.pressing = False
        return taken

    def _go_on(self, lane: _Lane) -> None:
        assert lane.peer is not None and self._links is not None, "a lane that is never full was paused"
        lane.paused = False
        self._links.go_on(lane.peer)


def _octets(event: Event) -> int:
    return EVENT_BYTES + len(event.payload) if isinstance(event, FrameArrived) else EVENT_BYTES


def _weigh(event: Event, begin: int, left: int) -> tuple[int, int]:
    """Return the weight of what there is room for in an event, and where that ends in a frame; 0: with it."""
    if not isinstance(event, FrameArrived):
        return SYNCED_WEIGHT if isinstance(event, BatchSynced) else 1, 0
    if event.kind == FrameKind.CONTROLS:
        return REQUEST_WEIGHT * count_of_controls(event.payload), 0
    if event.kind not in RECORDS:
        return REQUEST_WEIGHT if event.kind == FrameKind.CONTROL else MESSAGE_WEIGHT, 0
    records, weight = RECORDS[event.kind]
    if len(event.payload) <= SHORT_BYTES:
        return weight * (1 + len(event.payload) // RECORD_BYTES), 0
    end, count = records(event.payload, begin, max(1, left // weight))
    return count * weight, end if end < len(event.payload) else 0
