"""Ends of connections: DISCONNECT, a lost connection, a takeover; and their reports to partitions.

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
DISCARD_TIMEOUT_S = 10.0  # largest delay of the close after DISCONNECT 0x00 until the will is discarded
GAP_GROWTH_MAX = 4  # of claim_gap_s


@dataclass(slots=True)  # not frozen: one is made for each such client
class _Report:
    """The report of a client with its socket open until the response."""

    clients: Clients
    client: Client

    def answered(self, answer: SessionClosed) -> None:
        """Close the client."""
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
        report_at: When the next batch of reports is due.
    """

    def __init__(self, node: EdgeNode, clients: Clients, requests: PartitionRequests, conduct: AbuseLimits) -> None:
        self.report_at = float("inf")
        self._node = node
        self._clients = clients
        self._requests = requests
        self._conduct = conduct
        self._unreported: list[Client] = []  # ended without session or will: reported with the next claims
        self._pending_discards: deque[Client] = deque()  # their DISCONNECT 0x00 is reported, and not accepted yet

    @property
    def waits(self) -> bool:
        """Whether a client that sent DISCONNECT is not closed yet."""
        return bool(self._pending_discards)

    @property
    def reports(self) -> int:
        """Number of ends to be reported with the next batch."""
        return len(self._unreported)

    def disconnect(self, client: Client, first_byte: int, body: bytes) -> None:
        """Handle a DISCONNECT: 0x00 discards the will [MQTT-3.14.4-3]; the expiry may change, not from 0."""
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
            # The report is sent before the socket closes: the end precedes any later request of this client ID.
            self._report_end(client, changed)
            self._clients.leave(client)
            return
        # Our close confirms that the will is discarded, even if nodes fail afterwards: the report is committed first.
        client.close_by = self._node.now + DISCARD_TIMEOUT_S
        self._pending_discards.append(client)
        self.report(client, clean=True, expiry_s=changed)

    def ended(self, client: Client) -> None:
        """Report the end of a connection that closed without DISCONNECT."""
        if client.phase == ClientPhase.OPEN:
            self._report_end(client)
        client.enter(ClientPhase.ENDED)

    def tick(self, now: float) -> None:
        """Close clients with an old unanswered DISCONNECT: their partition has no primary."""
        while self._pending_discards and self._pending_discards[0].close_by <= now:
            self._clients.leave(self._pending_discards.popleft())

    def send_reports(self) -> None:
        """Send the batch of reports."""
        unreported, self._unreported = self._unreported, []
        self.report_at = float("inf")
        for client in unreported:
            self.report(client, clean=client.clean)

    def _report_end(self, client: Client, expiry_s: int = -1) -> None:
        """Report the end of a connection; without a session and a will, with the next claims.

        A CONNECT with that client ID meanwhile takes over the closed connection.
        """
        client.enter(ClientPhase.ENDED)
        if client.session or client.has_will or not self._node.limits.claim_gap_s:
            self.report(client, clean=client.clean, expiry_s=expiry_s)
            return
        if not self._unreported:
            self.report_at = self._node.now + self._node.limits.claim_gap_s * GAP_GROWTH_MAX
        self._unreported.append(client)

    def report(self, client: Client, *, clean: bool, expiry_s: int = -1) -> None:
        """Report the end of a connection to its partition.

        Args:
            client: Its connection ended.
            clean: It sent DISCONNECT 0x00.
            expiry_s: The session expiry of its DISCONNECT, in seconds; -1: none.
        """
        client.enter(ClientPhase.ENDED)
        request = CloseSession(
            self._requests.next_number(), client.partition, 0, client.client_id, client.owner_epoch, clean, expiry_s
        )
        callback = _Report(self._clients, client).answered if client.close_by else _ignore
        if not self._requests.ask(request, callback, self._node.now):
            self._clients.count_end("reports_dropped")

    def kick(self, order: KickSession) -> SessionKicked:
        """Close a connection after a takeover of its client ID [MQTT-3.1.4-3], and return the response."""
        client = self._clients.get(order.connection)
        clean = False
        if client is not None and client.client_id == order.client_id and client.owner_epoch <= order.owner_epoch:
            clean = client.clean
            client.enter(ClientPhase.ENDED)
            if not client.close_by:  # the response to its report decides whether its end came first
                self._clients.count_end("taken_over", client)
                self._conduct.taken_over(client.client_id)
                self._clients.disconnect(client, ReasonCode.SESSION_TAKEN_OVER)
        return SessionKicked(order.request, order.client_id, clean, order.owner_epoch)

    def end_by_operator(self, order: OrderNode) -> NodeOrdered:
        """End the connections of a client ID; a durable session stays, and a will fires."""
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


def _ignore(_: SessionClosed) -> None:
    """Ignore the response to a report."""
