"""The orderly end of an edge: clients get their last answers, then DISCONNECT 0x8B, then this life leaves the map.

From ``begin`` on nothing more is read from clients; what was read is carried on, and a connection ends when nothing is
owed to it any more, or when its time is over. A 3.1.1 client is closed, a CONNECT under way is answered first. The end
is no DISCONNECT of the client: its session's partition treats its will as after any lost connection [MQTT-3.1.2-8].
The listeners are the shell's: they are closed before ``begin``. Rules of the last step: ``wire/orderly_stop.py``.
"""

from collections import deque
from typing import TYPE_CHECKING

from edge.client import Client, Phase
from mqtt.reasons import ReasonCode
from wire.orderly_stop import OrderlyStop

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["Stopping"]

ANSWER_S = 3.0  # for destinations to acknowledge what clients published, and for CONNECTs under way
FLUSH_S = 4.5  # from the order to stop, for the last bytes, their clients' closing and the reports of their ends
STOP_S = 5.5  # likewise, to the end
CLIENTS_PER_ROUND = 200  # ended at once: leases are kept meanwhile


class Stopping:
    """The end of one edge, round by round."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        self._clients: deque[Client] = deque()  # still to be let go
        self._began = float("inf")
        self._answered_by = float("inf")
        self._flushed_by = float("inf")
        self.order = OrderlyStop(edge.lease, STOP_S, idle=self._is_idle, hands_over=False)

    def begin(self, now: float) -> None:
        """The node was told to stop, and takes no connections any more."""
        if self.order.begun:
            return
        self._answered_by, self._flushed_by = now + ANSWER_S, now + FLUSH_S
        self._clients.extend(self._edge.clients())
        self._edge.hot.stop_reading()
        self.order.begin(now)

    def step(self, now: float) -> bool:
        """Let go of the clients that are owed nothing; True if more can be done at once."""
        if not self.order.begun or self.order.ended:
            return False
        ended = 0
        for _ in range(min(CLIENTS_PER_ROUND, len(self._clients))):
            client = self._clients.popleft()
            if self._let_go(client, late=now >= self._answered_by):
                ended += 1
            else:
                self._clients.append(client)
        self.order.step(now)
        if self.order.ended:
            self._edge.relinked()
        return bool(ended and self._clients)

    def _let_go(self, client: Client, *, late: bool) -> bool:
        edge = self._edge
        if client.conn.closed:
            return True
        if client.leaves_at:  # to close it would say that its DISCONNECT was accepted
            return late
        if client.phase == Phase.OPEN:
            if edge.hot.owes(client.conn) and not late:
                return False
            edge.count_disconnect(f"{int(ReasonCode.SERVER_SHUTTING_DOWN):#04x}")
            edge.disconnect(client, ReasonCode.SERVER_SHUTTING_DOWN)
        elif client.phase == Phase.OPENING and not late:
            return False
        elif client.phase in (Phase.OPENING, Phase.AUTHENTICATING):
            edge.connecting.refuse(client, ReasonCode.SERVER_UNAVAILABLE)
        else:
            edge.end(client)
        return True

    def _is_idle(self) -> bool:
        """Whether nothing is left that somebody waits for."""
        edge = self._edge
        if edge.now >= self._flushed_by:
            return True
        unreported = len(edge.requests) or edge.connecting.reports
        return not (self._clients or edge.clients() or unreported or edge.hot.lingers() or edge.hot.owes_partitions())
