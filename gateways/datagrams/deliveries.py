"""Messages in flight to subscribers: numbered, acknowledged at QoS 1, retransmitted, given up after five tries.

64 messages per destination are in flight, 256 more are queued; beyond that the publisher is answered *busy*. After five
tries without any datagram from a destination, all its messages are given up. It is then not waited for until it sends
again. If it does send other datagrams, the message gets five more tries, and only this message is given up.
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
TRIES_OF_RESPONSIVE_MAX = 10  # of one message, if the destination sends other datagrams
LATE_RETRY_S = 2.0  # interval after the fifth try
OUTSTANDING_MAX = 64  # per destination
QUEUED_MAX = 256
SILENT_MAX = 65_536  # remembered silent destinations


class PendingDelivery(Struct):
    """One accepted message, and the open acknowledgements before its source is answered.

    Attributes:
      peer: Publisher, answered by ``request`` and ``number``; None after the answer, and for the cluster's messages.
      token: Of a cluster's message, for its acknowledgement.
      open: Subscribers, and the cluster, without an acknowledgement yet.
      receivers: Subscribers to which it was sent.
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
    __slots__ = ("last_received", "outstanding", "queue")

    def __init__(self) -> None:
        self.last_received = -math.inf  # time of its last datagram
        self.outstanding: dict[int, DeliveryTask] = {}  # by number
        self.queue: deque[DeliveryTask] = deque()


class Deliveries:
    """Unacknowledged messages, by destination."""

    def __init__(self, first_number: int) -> None:
        """Start with a number above those of all earlier incarnations."""
        self.repeats = 0
        self.given_up = 0
        self._number = first_number
        self._destinations: dict[Endpoint, _Destination] = {}
        self._due: list[tuple[float, Endpoint, int]] = []
        self._silent: dict[Endpoint, None] = {}

    def is_full(self, endpoint: Endpoint) -> bool:
        """Return whether the QoS 1 queue of a destination is full."""
        found = self._destinations.get(endpoint)
        return found is not None and len(found.queue) >= QUEUED_MAX

    def send(
        self, now: float, peer: DatagramPeer, message: DatagramPublish, qos: int, waiting: PendingDelivery
    ) -> Datagram | None:
        """Send one message to one subscriber; None: queued, or given up because the queue is full."""
        self._number += 1
        packet = Datagram(self._number, DatagramPublish(message.topic, message.payload, qos, self._number))
        waiting.receivers += 1
        endpoint = peer.endpoint
        if not qos or endpoint in self._silent:
            return packet
        destination = self._destinations.get(endpoint)
        if destination is None:
            destination = self._destinations[endpoint] = _Destination()
        task = DeliveryTask(peer, packet, waiting)
        if len(destination.outstanding) < OUTSTANDING_MAX:
            waiting.open += 1
            self._launch(now, destination, task)
            return packet
        if len(destination.queue) >= QUEUED_MAX:
            self.given_up += 1
            return None
        waiting.open += 1
        destination.queue.append(task)
        return None

    def record_received(self, now: float, endpoint: Endpoint) -> None:
        """Record a datagram from a destination."""
        destination = self._destinations.get(endpoint)
        if destination is not None:
            destination.last_received = now
        self._silent.pop(endpoint, None)

    def answered(
        self, now: float, endpoint: Endpoint, number: int
    ) -> tuple[PendingDelivery | None, list[tuple[DatagramPeer, Datagram]]]:
        """Handle an acknowledgement; return its message and the queued packets to send now."""
        destination = self._destinations.get(endpoint)
        task = destination.outstanding.pop(number, None) if destination is not None else None
        if destination is None or task is None:
            return None, []
        send = self._send_queued(now, destination)
        if not destination.outstanding:
            del self._destinations[endpoint]
        task.waiting.open -= 1
        return task.waiting, send

    def _send_queued(self, now: float, destination: _Destination) -> list[tuple[DatagramPeer, Datagram]]:
        """Send queued messages within the window."""
        send = []
        while destination.queue and len(destination.outstanding) < OUTSTANDING_MAX:
            after = destination.queue.popleft()
            self._launch(now, destination, after)
            send.append((after.peer, after.packet))
        return send

    def repeat(
        self, now: float
    ) -> tuple[list[tuple[DatagramPeer, Datagram]], list[PendingDelivery], list[DatagramPeer]]:
        """Return the packets to retransmit, the messages given up, and their destinations."""
        send: list[tuple[DatagramPeer, Datagram]] = []
        finished: list[PendingDelivery] = []
        silent_peers: list[DatagramPeer] = []
        while self._due and self._due[0][0] <= now:
            due, endpoint, number = heapq.heappop(self._due)
            destination = self._destinations.get(endpoint)
            task = destination.outstanding.get(number) if destination is not None else None
            if destination is None or task is None or task.due != due:
                continue
            if task.tries >= TRIES_MAX and destination.last_received <= task.sent:
                finished += self._give_up(endpoint)
                silent_peers.append(task.peer)
                continue
            if task.tries >= TRIES_OF_RESPONSIVE_MAX:
                del destination.outstanding[number]
                send += self._send_queued(now, destination)
                if not destination.outstanding:
                    del self._destinations[endpoint]
                self.given_up += 1
                task.waiting.open -= 1
                finished.append(task.waiting)
                continue
            self.repeats += 1
            self._launch(now, destination, task)
            send.append((task.peer, task.packet))
        return send, finished, silent_peers

    def next_due(self) -> float | None:
        """Return when to call ``repeat`` next."""
        return self._due[0][0] if self._due else None

    def move(self, former: Endpoint, peer: DatagramPeer) -> None:
        """Redirect a session's messages from its former address to its new one."""
        old = self._destinations.get(former)
        owed = [] if old is None else [*old.outstanding.values(), *old.queue]
        if old is None or not all(each.peer.session == peer.session for each in owed):
            return  # none, or partly of another session: they are given up at the old address
        del self._destinations[former]
        new = self._destinations.setdefault(peer.endpoint, _Destination())
        for number, each in old.outstanding.items():
            each.peer = peer
            new.outstanding[number] = each
            heapq.heappush(self._due, (each.due, peer.endpoint, number))
        for each in old.queue:
            each.peer = peer
        new.queue.extend(old.queue)

    def _launch(self, now: float, destination: _Destination, task: DeliveryTask) -> None:
        number = task.packet.request
        task.sent = now
        task.due = now + (RETRY_S * (1 << task.tries) if task.tries < TRIES_MAX else LATE_RETRY_S)
        task.tries += 1
        destination.outstanding[number] = task
        heapq.heappush(self._due, (task.due, task.peer.endpoint, number))

    def _give_up(self, endpoint: Endpoint) -> list[PendingDelivery]:
        destination = self._destinations.pop(endpoint)
        while len(self._silent) >= SILENT_MAX:
            del self._silent[next(iter(self._silent))]
        self._silent[endpoint] = None
        finished = []
        for task in (*destination.outstanding.values(), *destination.queue):
            self.given_up += 1
            task.waiting.open -= 1
            finished.append(task.waiting)
        return finished
