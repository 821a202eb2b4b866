"""The orderly stop of an edge: last responses to clients, then DISCONNECT 0x8B, then the edge leaves the map.

After ``begin`` the edge reads no more packets. It completes the packets already read; a connection ends when it has no
pending output, or after its time limit. A 3.1.1 client is closed, a pending CONNECT is answered first. The end is no
DISCONNECT of the client: its session's partition treats its will as after any lost connection [MQTT-3.1.2-8]. The shell
closes the listeners before ``begin``. Rules of the last step: ``wire/node/orderly_stop.py``.
"""

from collections import deque
from collections.abc import Callable

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.disconnecting import Disconnecting
from edge.clients.phase import ClientPhase
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.node.ports import ConnectionEnd
from mqtt.reasons import ReasonCode
from wire.node.orderly_stop import OrderlyStop

__all__ = ["Stopping"]

ANSWER_S = 3.0  # for acknowledgements of published messages, and for pending CONNECTs
FLUSH_S = 4.5  # from the order to stop, for the last bytes, their clients' closing and the reports of their ends
STOP_S = 5.5  # likewise, to the end
CLIENTS_PER_ITERATION = 200  # ended in one iteration: leases are kept meanwhile


class Stopping:
    """The stop of one edge, in steps of its iterations.

    Args:
        node: This edge.
        loop: Knows the pending output.
        clients: The connections.
        requests: Requests to partitions, answered or not.
        leaving: Reports of ends.
        ended: Called when the stop is complete.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: ConnectionEnd,
        clients: Clients,
        requests: PartitionRequests,
        leaving: Disconnecting,
        ended: Callable[[], None],
    ) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._requests = requests
        self._reports = leaving
        self._ended = ended
        self._remaining: deque[Client] = deque()  # not disconnected yet
        self._began = float("inf")
        self._answered_by = float("inf")
        self._flushed_by = float("inf")
        self.order = OrderlyStop(node.lease, STOP_S, idle=self._is_idle, hands_over=False)

    def begin(self, now: float) -> None:
        """Start the stop; the node accepts no connections any more."""
        if self.order.begun:
            return
        self._answered_by, self._flushed_by = now + ANSWER_S, now + FLUSH_S
        self._remaining.extend(self._clients.all())
        self._loop.stop_reading()
        self.order.begin(now)

    def step(self, now: float) -> bool:
        """Disconnect clients without pending output; True if more can be disconnected at once."""
        if not self.order.begun or self.order.ended:
            return False
        ended = 0
        for _ in range(min(CLIENTS_PER_ITERATION, len(self._remaining))):
            client = self._remaining.popleft()
            if self._disconnect(client, late=now >= self._answered_by):
                ended += 1
            else:
                self._remaining.append(client)
        self.order.step(now)
        if self.order.ended:
            self._ended()
        return bool(ended and self._remaining)

    def _disconnect(self, client: Client, *, late: bool) -> bool:
        clients = self._clients
        if client.conn.closed:
            return True
        if client.close_by:  # closing it would mean that its DISCONNECT was accepted
            return late
        if client.phase == ClientPhase.OPEN:
            if self._loop.owes(client.conn) and not late:
                return False
            clients.count_end(f"{int(ReasonCode.SERVER_SHUTTING_DOWN):#04x}")
            clients.disconnect(client, ReasonCode.SERVER_SHUTTING_DOWN)
        elif client.phase == ClientPhase.OPENING and not late:
            return False
        elif client.phase in (ClientPhase.OPENING, ClientPhase.AUTHENTICATING):
            clients.refuse(client, ReasonCode.SERVER_UNAVAILABLE)
        else:
            clients.end(client)
        return True

    def _is_idle(self) -> bool:
        """Return whether no work is pending."""
        if self._node.now >= self._flushed_by:
            return True
        unreported = len(self._requests) or self._reports.reports
        loop = self._loop
        return not (self._remaining or len(self._clients) or unreported or loop.lingers() or loop.owes_partitions())
