"""Messages on their way to subscribers: numbered, answered at QoS 1, repeated, given up after five tries.

64 messages per destination are under way, 256 more wait behind them; a publisher whose message finds no room is told to
come again. A destination that let five tries pass has all it was owed given up, and is not waited for until it speaks.
One that speaks meanwhile is there: the message is tried five times more, and then alone is given up.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from msgspec import Struct

from gateways.datagrams.messages import Datagram, DatagramPublish, Endpoint
from gateways.datagrams.subscribers import DatagramPeer

__all__ = ["RETRY_S", "TRIES_MAX", "Deliveries", "DeliveryTask", "PendingDelivery"]

RETRY_S = 0.5  # doubled each time
TRIES_MAX = 5
TRIES_OF_SPEAKING_MAX = 10  # of one message, while the destination answers others
LATER_S = 2.0  # between those beyond five
OUTSTANDING_MAX = 64  # per destination
QUEUED_MAX = 256
SILENT_MAX = 65_536  # destinations that are remembered to be silent


class PendingDelivery(Struct):
    """One message that was taken: what must be answered before its source is.

    Attributes:
        peer: Publisher, whose ``request`` and ``number`` are answered; None once it is, and for the cluster's messages.
        token: Of a message that the cluster sent, which is acknowledged by it.
        open: Subscribers, and the cluster, that have not answered.
        receivers: Subscribers that it was sent to.
    """

    peer: DatagramPeer | None
    request: int
    number: int
    open: int = 0
    receivers: int = 0
    token: int = -1


class DeliveryTask(Struct):
    """One message to one destination."""

    peer: DatagramPeer
    packet: Datagram
    waiting: PendingDelivery
    tries: int = 0
    sent: float = 0.0
    due: float = 0.0


class _Destination:
    __slots__ = ("heard", "outstanding", "queue")

    def __init__(self) -> None:
        self.heard = -math.inf  # when it spoke last
        self.outstanding: dict[int, DeliveryTask] = {}  # by number
        self.queue: deque[DeliveryTask] = deque()


class Deliveries:
    """Messages owed to subscribers, by destination."""

    def __init__(self, first_number: int) -> None:
        """Begin to number; a node that starts again begins above all of its incarnations before."""
        self.repeats = 0
        self.given_up = 0
        self._number = first_number
        self._destinations: dict[Endpoint, _Destination] = {}
        self._due: list[tuple[float, Endpoint, int]] = []
        self._silent: dict[Endpoint, None] = {}

    def is_full(self, endpoint: Endpoint) -> bool:
        """Return whether a destination can be owed no further message of QoS 1."""
        found = self._destinations.get(endpoint)
        return found is not None and len(found.queue) >= QUEUED_MAX

    def send(
        self, now: float, peer: DatagramPeer, message: DatagramPublish, qos: int, waiting: PendingDelivery
    ) -> Datagram | None:
        """Send one message to one subscriber; None: behind others, or, with a full queue, given up."""
        self._number += 1
        packet = Datagram(self._number, DatagramPublish(message.topic, message.payload, qos, self._number))
        waiting.receivers += 1
        endpoint = peer.endpoint
        if not qos or endpoint in self._silent:
            return packet
        destination = self._destinations.get(endpoint)
        if destination is None:
            destination = self._destinations[endpoint] = _Destination()
        given = DeliveryTask(peer, packet, waiting)
        if len(destination.outstanding) < OUTSTANDING_MAX:
            waiting.open += 1
            self._launch(now, destination, given)
            return packet
        if len(destination.queue) >= QUEUED_MAX:
            self.given_up += 1
            return None
        waiting.open += 1
        destination.queue.append(given)
        return None

    def heard(self, now: float, endpoint: Endpoint) -> None:
        """Note that a destination speaks."""
        destination = self._destinations.get(endpoint)
        if destination is not None:
            destination.heard = now
        self._silent.pop(endpoint, None)

    def answered(
        self, now: float, endpoint: Endpoint, number: int
    ) -> tuple[PendingDelivery | None, list[tuple[DatagramPeer, Datagram]]]:
        """Take an answer; return what it was waited for by, and what may be sent in its place."""
        destination = self._destinations.get(endpoint)
        given = destination.outstanding.pop(number, None) if destination is not None else None
        if destination is None or given is None:
            return None, []
        send = self._follow(now, destination)
        if not destination.outstanding:
            del self._destinations[endpoint]
        given.waiting.open -= 1
        return given.waiting, send

    def _follow(self, now: float, destination: _Destination) -> list[tuple[DatagramPeer, Datagram]]:
        """Launch what waited for room."""
        send = []
        while destination.queue and len(destination.outstanding) < OUTSTANDING_MAX:
            after = destination.queue.popleft()
            self._launch(now, destination, after)
            send.append((after.peer, after.packet))
        return send

    def repeat(
        self, now: float
    ) -> tuple[list[tuple[DatagramPeer, Datagram]], list[PendingDelivery], list[DatagramPeer]]:
        """Return what is sent again now, the messages that destinations were owed that are given up, and these."""
        send: list[tuple[DatagramPeer, Datagram]] = []
        ended: list[PendingDelivery] = []
        gone: list[DatagramPeer] = []
        while self._due and self._due[0][0] <= now:
            due, endpoint, number = heapq.heappop(self._due)
            destination = self._destinations.get(endpoint)
            given = destination.outstanding.get(number) if destination is not None else None
            if destination is None or given is None or given.due != due:
                continue
            if given.tries >= TRIES_MAX and destination.heard <= given.sent:
                ended += self._give_up(endpoint)
                gone.append(given.peer)
                continue
            if given.tries >= TRIES_OF_SPEAKING_MAX:
                del destination.outstanding[number]
                send += self._follow(now, destination)
                if not destination.outstanding:
                    del self._destinations[endpoint]
                self.given_up += 1
                given.waiting.open -= 1
                ended.append(given.waiting)
                continue
            self.repeats += 1
            self._launch(now, destination, given)
            send.append((given.peer, given.packet))
        return send, ended, gone

    def next_due(self) -> float | None:
        """Return when to call ``repeat`` next."""
        return self._due[0][0] if self._due else None

    def move(self, former: Endpoint, peer: DatagramPeer) -> None:
        """Send what a session is owed at a former address to its new one from now on."""
        old = self._destinations.get(former)
        owed = [] if old is None else [*old.outstanding.values(), *old.queue]
        if old is None or not all(each.peer.session == peer.session for each in owed):
            return  # nothing, or partly somebody else's: it is sent where it was, and given up
        del self._destinations[former]
        new = self._destinations.setdefault(peer.endpoint, _Destination())
        for number, each in old.outstanding.items():
            each.peer = peer
            new.outstanding[number] = each
            heapq.heappush(self._due, (each.due, peer.endpoint, number))
        for each in old.queue:
            each.peer = peer
        new.queue.extend(old.queue)

    def _launch(self, now: float, destination: _Destination, given: DeliveryTask) -> None:
        number = given.packet.request
        given.sent = now
        given.due = now + (RETRY_S * (1 << given.tries) if given.tries < TRIES_MAX else LATER_S)
        given.tries += 1
        destination.outstanding[number] = given
        heapq.heappush(self._due, (given.due, given.peer.endpoint, number))

    def _give_up(self, endpoint: Endpoint) -> list[PendingDelivery]:
        destination = self._destinations.pop(endpoint)
        while len(self._silent) >= SILENT_MAX:
            del self._silent[next(iter(self._silent))]
        self._silent[endpoint] = None
        ended = []
        for given in (*destination.outstanding.values(), *destination.queue):
            self.given_up += 1
            given.waiting.open -= 1
            ended.append(given.waiting)
        return ended
