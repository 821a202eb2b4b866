"""Queue of CONNECTs beyond the edge's rate (``edge.connect_rate_max``), fair by address.

All listeners share this rate: addresses within the rates of several listeners could use it up. A CONNECT waits
unanswered for at most 5 s, and is refused with 0x89 after that or if the queue is full
(``edge/listeners/accept_queue.py``).
"""

from collections.abc import Callable

from conf.addresses import address_key
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.listeners.accept_queue import AcceptQueue
from edge.node.node import EdgeNode
from mqtt.reasons import ReasonCode

__all__ = ["ConnectQueue"]


class ConnectQueue:
    """The queued CONNECTs of one edge: a part of ``edge/access.py``.

    Args:
        node: This edge.
        clients: Its connections.
        go_on: Called for each released client.
    """

    def __init__(self, node: EdgeNode, clients: Clients, go_on: Callable[[Client], None]) -> None:
        self._node, self._clients, self._go_on = node, clients, go_on
        self._queue: AcceptQueue[Client] | None = None
        self._unlimited: list[Client] = []  # were queued when the limit was removed
        self._rate = 0.0
        self.bound()

    def bound(self) -> None:
        """Apply the node's current limit."""
        before, self._rate = self._rate, self._node.limits.connect_rate_max
        if not self._rate:
            self._unlimited += self._queue.take_all() if self._queue is not None else ()
            self._queue = None
        elif self._queue is None:
            self._queue = AcceptQueue(self._rate)
        elif self._rate != before:
            self._queue.set_rate(self._rate)

    def admit_or_queue(self, client: Client) -> bool:
        """Return whether a CONNECT may proceed now; otherwise it is queued or refused."""
        if self._queue is None:
            return True
        now, seat = self._node.now, client.seat
        key = address_key(seat.address) if seat is not None and seat.metered else ""
        known = seat is not None and (not seat.metered or seat.is_known(now))
        if self._queue.try_admit(now, key, known=known):
            return True
        refused = self._queue.add(now, key, client, known=known)
        if refused is not None:
            self._refuse(refused)
        self._node.wake()
        return False

    def step(self, now: float) -> None:
        """Release the due CONNECTs, and refuse those queued too long."""
        due, self._unlimited = self._unlimited, []
        late: list[Client] = []
        if self._queue is not None and len(self._queue):
            due += self._queue.take_due(now)
            late = self._queue.take_late(now)
        for client in due:
            if not client.conn.closed:
                self._go_on(client)
        for client in late:
            self._refuse(client)

    def next_deadline(self) -> float:
        """Return when the next CONNECT may proceed."""
        now = self._node.now
        if self._unlimited:
            return now
        return now + self._queue.wait_s(now) if self._queue is not None and len(self._queue) else float("inf")

    def _refuse(self, client: Client) -> None:
        if not client.conn.closed:
            self._node.count("refused_connect_rate")
            self._clients.refuse(client, ReasonCode.SERVER_BUSY)
