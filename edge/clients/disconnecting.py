"""How connections leave: DISCONNECT, a lost connection, a takeover; and what their partitions are told of it.

Source: MQTT 5.0 sections 3.14, 4.13; docs/protocol.md section 4.
"""

from collections import deque
from dataclasses import dataclass

from edge.clients.abuse_limits import AbuseLimits
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.phase import ClientPhase
from edge.cluster.partition_requests import PartitionRequests
from edge.login.refusal_records import ended_record
from edge.node.node import EdgeNode
from mqtt import property_values
from mqtt.codec import decode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Disconnect
from mqtt.reasons import ReasonCode
from wire.decoding import Unreadable
from wire.messages.orders import NodeOrdered, OrderNode, read_kick
from wire.messages.sessions import CloseSession, KickSession, SessionClosed, SessionKicked

__all__ = ["GAP_GROWTH_MAX", "Disconnecting"]

NO_EXPIRY_INTERVAL = 0xFFFFFFFF
LEAVE_S = 10.0  # a client that said DISCONNECT is kept so long, at most, until its will is surely discarded
GAP_GROWTH_MAX = 4  # of claim_gap_s


@dataclass(slots=True)  # not frozen: one is made for each such client
class _Report:
    """The report of a client that waits for its answer."""

    clients: Clients
    client: Client

    def answered(self, answer: SessionClosed) -> None:
        """Let the client go."""
        if answer.accepted:
            self.clients.leave(self.client)


class Disconnecting:
    """Ends the sessions of one edge's connections.

    Args:
        node: This edge.
        clients: The connections.
        requests: Requests to partitions.
        conduct: Counts takeovers.
    Attributes:
        report_at: When the reports that wait for company are due.
    """

    def __init__(self, node: EdgeNode, clients: Clients, requests: PartitionRequests, conduct: AbuseLimits) -> None:
        self.report_at = float("inf")
        self._node = node
        self._clients = clients
        self._requests = requests
        self._conduct = conduct
        self._unreported: list[Client] = []  # ended, and left nothing behind: reported with the next claims
        self._leaving: deque[Client] = deque()  # their DISCONNECT 0x00 is reported, and not accepted yet

    @property
    def waits(self) -> bool:
        """Whether a client that said DISCONNECT has not been let go."""
        return bool(self._leaving)

    @property
    def reports(self) -> int:
        """Ends of connections that wait to be reported."""
        return len(self._unreported)

    def disconnect(self, client: Client, first_byte: int, body: bytes) -> None:
        """Take a DISCONNECT: 0x00 discards the will [MQTT-3.14.4-3]; the expiry may change, not from 0."""
        clean, changed = True, -1
        if body or first_byte != 0xE0:  # section 3.14.2.1: without a body it is 0x00
            packet = decode_packet(first_byte, body, client.version, self._node.packet_limits)
            assert isinstance(packet, Disconnect)
            clean = packet.reason_code == 0
            client.end_code = packet.reason_code
            expiry = property_values.session_expiry_interval(packet.properties) if client.version == 5 else None
            if expiry is not None:
                changed = min(expiry, self._node.limits.session_expiry_max_s or NO_EXPIRY_INTERVAL)
                if changed and not client.expiry_s:
                    raise RemoteProtocolError("session expiry 0 cannot be raised at DISCONNECT")  # section 3.14.2.2.2
        client.clean = clean
        client.end_code = max(client.end_code, 0)
        if not client.clean or not client.has_will:
            # The report leaves before the socket closes: what the primary took has happened.
            self._report_end(client, changed)
            self._clients.leave(client)
            return
        # That we close says that the will is discarded, whatever dies next: so the report is committed first.
        client.leaves_at = self._node.now + LEAVE_S
        self._leaving.append(client)
        self.report(client, clean=True, expiry_s=changed)

    def ended(self, client: Client) -> None:
        """Note that a connection is gone without DISCONNECT, or after one that was reported."""
        if client.phase == ClientPhase.OPEN:
            self._report_end(client)
        client.enter(ClientPhase.ENDED)

    def tick(self, now: float) -> None:
        """Close what said DISCONNECT long ago: its partition has no primary."""
        while self._leaving and self._leaving[0].leaves_at <= now:
            self._clients.leave(self._leaving.popleft())

    def report_waiting(self) -> None:
        """Send the reports that waited for company."""
        unreported, self._unreported = self._unreported, []
        self.report_at = float("inf")
        for client in unreported:
            self.report(client, clean=client.clean)

    def _report_end(self, client: Client, expiry_s: int = -1) -> None:
        """Report the end of a connection; where it leaves no session and no will, with the next claims.

        Whoever connects with that client ID meanwhile takes the claim over from a connection that is gone.
        """
        client.enter(ClientPhase.ENDED)
        if client.session or client.has_will or not self._node.limits.claim_gap_s:
            self.report(client, clean=client.clean, expiry_s=expiry_s)
            return
        if not self._unreported:
            self.report_at = self._node.now + self._node.limits.claim_gap_s * GAP_GROWTH_MAX
        self._unreported.append(client)

    def report(self, client: Client, *, clean: bool, expiry_s: int = -1) -> None:
        """Tell a connection's partition that it is over.

        Args:
            client: Whose connection it is.
            clean: It said DISCONNECT 0x00.
            expiry_s: The session expiry that it said with it, in seconds; -1: none.
        """
        client.enter(ClientPhase.ENDED)
        request = CloseSession(
            self._requests.next_number(), client.partition, 0, client.client_id, client.owner_epoch, clean, expiry_s
        )
        then = _Report(self._clients, client).answered if client.leaves_at else _told
        if not self._requests.ask(request, then, self._node.now):
            self._clients.count_end("reports_dropped")

    def kick(self, order: KickSession) -> SessionKicked:
        """Close a connection whose client ID another one owns [MQTT-3.1.4-3], and return the answer."""
        client = self._clients.get(order.connection)
        clean = False
        if client is not None and client.client_id == order.client_id and client.owner_epoch <= order.owner_epoch:
            clean = client.clean
            client.enter(ClientPhase.ENDED)
            if not client.leaves_at:  # the answer to its report says whether it left in time
                self._clients.count_end("taken_over", client)
                self._conduct.taken_over(client.client_id)
                self._clients.disconnect(client, ReasonCode.SESSION_TAKEN_OVER)
        return SessionKicked(order.request, order.client_id, clean, order.owner_epoch)

    def end_by_operator(self, order: OrderNode) -> NodeOrdered:
        """End the connections of a client ID; a session that outlives them stays, and a will is fired."""
        try:
            kick = read_kick(order.subject.encode())
        except Unreadable as error:
            return NodeOrdered(order.request, error=str(error)[:200])
        client_id, ended = kick.client_id, 0
        for client in self._clients.at_partition(self._node.map.partition_for(client_id)):
            if client.client_id != client_id or client.phase != ClientPhase.OPEN:
                continue
            ended += 1
            if not order.dry_run:
                self._clients.count_end("kicked", client)
                self._node.audit(ended_record(client, "kick", f"by {order.actor}"))
                self._clients.disconnect(client, kick.reason_code)
        return NodeOrdered(order.request, count=ended)


def _told(_: SessionClosed) -> None:
    """Take the answer to a report that nobody waits for."""
