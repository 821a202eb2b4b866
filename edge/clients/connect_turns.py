"""CONNECTs that wait for the rate of their edge (``edge.connect_rate_max``): dealt by address in turn.

All listeners share this rate, so that addresses within the rates of several listeners could use it up. A CONNECT waits
unanswered, 5 s at most, and is refused with 0x89 behind that, or where too many wait
(``edge/listeners/accept_queue.py``).
"""

from collections.abc import Callable

from conf.addresses import address_key
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.listeners.accept_queue import AcceptQueue
from edge.node.node import EdgeNode
from mqtt.reasons import ReasonCode

__all__ = ["ConnectTurns"]


class ConnectTurns:
    """The waiting CONNECTs of one edge: a part of ``edge/access.py``.

    Args:
        node: This edge.
        clients: Its connections.
        go_on: Called for a client whose turn has come.
    """

    def __init__(self, node: EdgeNode, clients: Clients, go_on: Callable[[Client], None]) -> None:
        self._node, self._clients, self._go_on = node, clients, go_on
        self._queue: AcceptQueue[Client] | None = None
        self._unlimited: list[Client] = []  # waited when the limit was taken away
        self._rate = 0.0
        self.bound()

    def bound(self) -> None:
        """Go by the node's limit of now."""
        before, self._rate = self._rate, self._node.limits.connect_rate_max
        if not self._rate:
            self._unlimited += self._queue.take_all() if self._queue is not None else ()
            self._queue = None
        elif self._queue is None:
            self._queue = AcceptQueue(self._rate)
        elif self._rate != before:
            self._queue.set_rate(self._rate)

    def admit_or_wait(self, client: Client) -> bool:
        """Return whether a CONNECT goes on now; otherwise it waits, or is refused."""
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
        """Go on with those whose turn it is, and refuse those that waited for too long."""
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
        """Return when the next one may go on."""
        now = self._node.now
        if self._unlimited:
            return now
        return now + self._queue.wait_s(now) if self._queue is not None and len(self._queue) else float("inf")

    def _refuse(self, client: Client) -> None:
        if not client.conn.closed:
            self._node.count("refused_connect_rate")
            self._clients.refuse(client, ReasonCode.SERVER_BUSY)
