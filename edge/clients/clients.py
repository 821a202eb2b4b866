"""The table of client connections, indexed by partition too, and the ways to end a connection.

``edge/clients/connect.py`` decides admission; ``edge/clients/disconnecting.py`` reports ends to partitions.
Source: MQTT 5.0 sections 3.2.2, 3.14, 4.13.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from conf.events import say
from edge.clients.client import Client
from edge.clients.lifecycle import Lifecycle
from edge.clients.phase import ClientPhase
from edge.loop.state import LoopConnection
from edge.node.node import EdgeNode
from edge.node.ports import ClientEnds
from mqtt.codec import encode_packet
from mqtt.packets import Connack, Disconnect
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import ALLOWED_REASON_CODES, PacketType, ReasonCode, connect_return_code
from wire.messages.sessions import SessionOpened, SessionSubscription

__all__ = ["Clients"]

logger = logging.getLogger(__name__)

EVENTS = {"taken_over": "takeover", "kicked": "kicked"}  # of the journal; all others are "ended"


class Clients:
    """Connections of one edge's clients, including those that have not sent CONNECT.

    Attributes:
        lifecycle: Observers of opened and ended connections and of their filters.
        adopted: Number of connections ever attached.
        doors: Open connections by listener and MQTT version.
    """

    def __init__(self, node: EdgeNode, loop: ClientEnds) -> None:
        self._node = node
        self._loop = loop
        self.lifecycle = Lifecycle()
        self.adopted = 0
        self.doors: Counter[tuple[str, int]] = Counter()
        self.lifecycle.watch(self)
        self._clients: dict[int, Client] = {}
        self._new = 0  # that have not sent CONNECT
        self._by_partition: dict[int, dict[int, Client]] = {}  # that requested their claim, by number

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def connecting(self) -> int:
        """Number of connections that have sent CONNECT; others do not count against the limit."""
        return len(self._clients) - self._new

    def came(self, client: Client) -> None:
        """Count a connection that has sent CONNECT."""
        self._new -= client.is_new
        client.is_new = False

    def get(self, number: int) -> Client | None:
        """Return a connection by its number."""
        return self._clients.get(number)

    def numbers(self) -> list[int]:
        """Return the numbers of all connections."""
        return list(self._clients)

    def all(self) -> list[Client]:
        """Return all connections."""
        return list(self._clients.values())

    def adopt(self, client: Client) -> None:
        """Add an accepted and attached connection."""
        self._clients[client.number] = client
        self.adopted += 1
        self._new += 1

    def remove(self, client: Client) -> bool:
        """Remove a closed connection; False if it was removed before."""
        if self._clients.pop(client.number, None) is None:
            return False
        self._new -= client.is_new
        if client.partition >= 0:
            self._by_partition[client.partition].pop(client.number, None)
        if client.was_open:
            self.lifecycle.disconnected(client)
        return True

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Count a connection that opened."""
        del opened
        self.doors[client.policy.name, client.version] += 1

    def disconnected(self, client: Client) -> None:
        """Count an ended connection."""
        self.doors[client.policy.name, client.version] -= 1

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Ignore subscriptions."""

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Ignore subscriptions."""

    def place(self, client: Client) -> int:
        """Assign a connection to the partition of its client ID, and return it."""
        client.partition = self._node.map.partition_for(client.client_id)
        self._by_partition.setdefault(client.partition, {})[client.number] = client
        return client.partition

    def at_partition(self, partition: int) -> list[Client]:
        """Return the connections of a partition; the index avoids a scan of all clients after a failover."""
        return list(self._by_partition.get(partition, {}).values())

    # --- ending connections

    def end(self, client: Client, last: bytes = b"") -> None:
        """Write the last bytes, stop reading, flush, half-close: the client receives the reason."""
        self._loop.close(client.conn, last)

    def leave(self, client: Client) -> None:
        """Close a client that sent DISCONNECT; its pending output is flushed."""
        self._loop.leave(client.conn)

    def disconnect(self, client: Client, reason_code: int, server: str = "") -> None:
        """Send a v5 client the reason, and close [MQTT-4.13.2-1]; a 3.1.1 client only sees the close.

        Args:
            server: Server Reference, "" for none.
        """
        if reason_code not in ALLOWED_REASON_CODES[PacketType.DISCONNECT]:  # [MQTT-3.14.2-1]
            reason_code = ReasonCode.UNSPECIFIED_ERROR
        client.end_code = int(reason_code)
        told: Properties = {PropertyId.SERVER_REFERENCE: server} if server else {}
        last = encode_packet(Disconnect(reason_code, told), 5) if client.version == 5 else b""
        self.end(client, last)

    def drop(self, client: Client, reason_code: int) -> None:
        """Close a client without its pending output (P9); a v5 client gets the reason if it can be sent at once."""
        client.end_code = int(reason_code)
        told = client.version == 5 and reason_code in ALLOWED_REASON_CODES[PacketType.DISCONNECT]
        self._loop.cut(client.conn, encode_packet(Disconnect(reason_code, {}), 5) if told else b"")

    def drop_unauthorized(self, client: Client, why: str) -> None:
        """Close a client that the authorization sweep rejected, and count the reason."""
        self.count_end(why, client)
        self.drop(client, ReasonCode.NOT_AUTHORIZED)

    def refuse(self, client: Client, reason_code: int) -> None:
        """Write a CONNACK with an error in the client's own version, and close [MQTT-3.2.2-7]."""
        self._node.count(f"connects_{reason_code:#04x}")
        self._node.journal.note(
            "refused", f"{reason_code:#04x}", client.client_id, detail=_source_text(client, "CONNECT")
        )
        if reason_code not in ALLOWED_REASON_CODES[PacketType.CONNACK]:  # [MQTT-3.2.2-8]
            reason_code = ReasonCode.UNSPECIFIED_ERROR
        if client.version == 5:
            data = encode_packet(Connack(False, reason_code, {}), 5)
        else:
            code = connect_return_code(ReasonCode(reason_code))
            data = encode_packet(Connack(False, code, {}), client.version) if code is not None else b""
        self.end(client, data)

    def error(self, conn: LoopConnection, reason_code: int) -> None:
        """End a connection after a protocol error or exceeded bound, as its phase demands."""
        self._node.wake()
        client = conn.context
        if not isinstance(client, Client):
            self._loop.close(conn, linger=False)
            return
        self.count_end(f"{int(reason_code):#04x}", client, self._exceeded_bound(client, reason_code))
        if client.phase == ClientPhase.NEW and reason_code == ReasonCode.UNSPECIFIED_ERROR:
            self._node.count("late_connects")
        if client.phase not in (ClientPhase.NEW, ClientPhase.OPENING, ClientPhase.AUTHENTICATING):
            self.disconnect(client, reason_code)
        elif client.phase == ClientPhase.NEW or reason_code in (
            ReasonCode.UNSPECIFIED_ERROR,
            ReasonCode.KEEP_ALIVE_TIMEOUT,
        ):
            self.end(client)
        else:
            self.refuse(client, reason_code)

    def count_closed(self, client: Client, why: int) -> None:
        """Count the end of a connection; ``why`` is of ``Handler.closed``."""
        refusal = getattr(client.stream_filter, "refusal", "")
        if refusal:
            self._node.count(refusal)
        page = getattr(client.stream_filter, "refused_page", None)
        if page is not None:
            say(
                logger,
                "listener.page_refused",
                listener=client.policy.name,
                origin=page.origin,
                host=page.host,
                why=page.why,
            )
        if client.first_bytes is not None and client.first_bytes.outcome:
            self._node.count(client.first_bytes.outcome)  # no client was known yet
            return
        self._node.count("closed_by_peer" if why == 0 else "closed_by_us" if why == 1 else "closed_failed")

    def cut(self, conn: LoopConnection) -> None:
        """Close a connection that exceeds its memory bound."""
        client = conn.context
        last = b""
        if isinstance(client, Client):
            client.end_code = int(ReasonCode.QUOTA_EXCEEDED)
        if isinstance(client, Client) and client.phase == ClientPhase.OPEN and client.version == 5:
            last = encode_packet(Disconnect(ReasonCode.QUOTA_EXCEEDED, {}), 5)
        self.count_end("memory", client if isinstance(client, Client) else None)
        self._loop.cut(conn, last)

    def close_all(self, reason_code: int) -> None:
        """Close every client: the node is drained, or starts a new incarnation."""
        for client in self.all():
            if client.phase == ClientPhase.OPEN:
                self.disconnect(client, reason_code)
            elif not client.close_by:  # closing that one would mean that its DISCONNECT was accepted
                self.end(client)

    def cut_all(self, reason_code: int) -> None:
        """Close every client at once without its pending output, unlike ``close_all``."""
        last = encode_packet(Disconnect(reason_code, {}), 5)
        for client in self.all():
            client.end_code = reason_code
            told = client.phase == ClientPhase.OPEN and client.version == 5
            self._loop.cut(client.conn, last if told else b"")

    def _exceeded_bound(self, client: Client, reason_code: int) -> str:
        """Return the bound that a client's packet exceeded, for the journal; "" for none."""
        if reason_code != ReasonCode.PACKET_TOO_LARGE:
            return ""
        if not client.was_open:
            return f"first packet above edge.unauthenticated_bytes_max={self._node.limits.unauthenticated_bytes_max}"
        return (
            f"packet above {client.known_bounds.packet_bytes_max} bytes (edge.maximum_packet_size or a stricter limit)"
        )

    def count_end(self, reason: str, client: Client | None = None, why: str = "") -> None:
        """Count the end of a connection by its reason, and record it in the journal of its client."""
        self._node.count(f"disconnects_{reason}")
        if client is not None:
            event = EVENTS.get(reason, "ended")
            whence = _source_text(client, "connection")
            self._node.journal.note(event, reason, client.client_id, detail=f"{why}; {whence}" if why else whence)


def _source_text(client: Client, what: str) -> str:
    return f"{what} from {client.seat.address}" if client.seat is not None and client.seat.address else what
