"""CONNECT to CONNACK, takeover, DISCONNECT: opening and closing the session of a connection.

Checks what the specification demands of CONNECT, applies this edge's caps, claims the client ID at its partition, and
writes CONNACK when the claim is committed. Who owns a client ID is decided there (``storage/claims.py``), not here.
Source: MQTT 5.0 sections 3.1, 3.2, 3.14, 4.13; MQTT 3.1.1 section 3.1.
"""

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edge.client import Client, Phase
from edge.hot.options import SessionOptions
from edge.partition_requests import RequestsFull
from edge.session_rate import SessionRate, metered_address
from mqtt.codec import Limits, decode_packet, encode_packet
from mqtt.decode_connect import decode_connect
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Connack, Connect, Disconnect
from mqtt.properties import PropertyId
from mqtt.properties import encode_properties as encode_block
from mqtt.reasons import ALLOWED_REASON_CODES, PacketType, ReasonCode, connect_return_code
from mqtt.topics import is_reserved, validate_topic_name
from wire.messages import (
    CloseSession,
    Control,
    KickSession,
    OpenSession,
    SessionClosed,
    SessionKicked,
    SessionOpened,
    Will,
)

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["ConnectDesk"]

NO_EXPIRY_INTERVAL = 0xFFFFFFFF
NS = 1_000_000_000
LEAVE_S = 10.0  # a client that said DISCONNECT is kept so long, at most, until its will is surely discarded
CLAIMS_FEW, CLAIMS_MANY = 8, 16  # leave together: the gap between claims grows below, and shrinks above
GAP_GROWTH_MAX = 4  # of claim_gap_s
PACKET_BYTES_MAX = 268_435_460  # of the protocol (section 2.1.4): no limit of ours


class ConnectDesk:
    """Opens and closes the sessions of one edge's connections."""

    def __init__(self, edge: "EdgeCore", new_client_id: Callable[[], str] | None = None) -> None:
        self._edge = edge
        self._limits = edge.limits
        self._codec_limits = Limits(
            maximum_packet_size=edge.limits.maximum_packet_size,
            user_properties_bytes_max=edge.limits.user_property_bytes_max,
            from_client=True,
        )
        self._new_client_id = new_client_id or (lambda: "auto-" + secrets.token_hex(10))
        self._waiting: list[Client] = []  # for a lease, or until claim_at
        self.claim_at = 0.0
        self._gap_s = edge.limits.claim_gap_s
        self._unreported: list[Client] = []  # ended, and left nothing behind: reported with the next claims
        self._report_at = float("inf")  # or then
        self._leaving: deque[Client] = deque()  # their DISCONNECT 0x00 is reported, and not accepted yet
        # (version, Session Present) -> a CONNACK that says nothing of the client's own
        self._plain_connacks: dict[tuple[int, bool], bytes] = {}
        self._session_rate = SessionRate(edge.limits.session_rate, edge.limits.session_burst)
        self._tokens = max(1.0, edge.limits.connect_rate_max)  # CONNECTs that may still be taken
        self._filled_at = 0.0

    # --- CONNECT

    def connect(self, client: Client, first_byte: int, body: bytes) -> None:
        """The first packet of a connection."""
        edge = self._edge
        if first_byte >> 4 != 1:  # [MQTT-3.1.0-1]
            edge.count_disconnect("not_connect")
            edge.end(client)
            return
        try:
            packet = decode_connect(first_byte, body, self._codec_limits)
        except RemoteProtocolError as error:
            self._refuse_malformed(client, error)
            return
        client.connect = packet
        client.version = packet.protocol_version
        client.bridge = packet.bridge
        client.client_id = packet.client_id
        if client.first_bytes is not None:
            client.address = client.first_bytes.source
        reason_code = self._admit() or self._judge(client, packet)
        if reason_code:
            self.refuse(client, reason_code)
            return
        if packet.properties and PropertyId.AUTHENTICATION_METHOD in packet.properties:
            edge.authentication.begin(client, packet)
            return
        self.open(client)

    def _refuse_malformed(self, client: Client, error: RemoteProtocolError) -> None:
        version = getattr(error, "connect_version", None)
        self._edge.count_disconnect("malformed_connect")
        if version is None:
            self._edge.end(client)
            return
        client.version = version
        self.refuse(client, error.reason_code)

    def _admit(self) -> int:
        """Return 0x89 while too many are connected or connect at once: an edge in a storm serves those that it has."""
        edge, limits = self._edge, self._limits
        if edge.client_count > limits.connections_max:
            return ReasonCode.SERVER_BUSY
        if edge.memory.refuses:
            edge.count("memory_refused")
            return ReasonCode.SERVER_BUSY
        if limits.connect_rate_max:
            burst = max(1.0, limits.connect_rate_max)
            self._tokens = min(burst, self._tokens + (edge.now - self._filled_at) * limits.connect_rate_max)
            self._filled_at = edge.now
            if self._tokens < 1.0:
                return ReasonCode.SERVER_BUSY
            self._tokens -= 1.0
        return 0

    def _judge(self, client: Client, packet: Connect) -> int:
        """Return 0, or the reason code that refuses the CONNECT."""
        if not packet.client_id:
            if packet.protocol_version == 3 or (packet.protocol_version == 4 and not packet.clean_start):
                # MQTT 3.1 section 3.1: one to 23 characters; v3 [MQTT-3.1.3-8]
                return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            client.client_id = self._new_client_id()
        if len(client.client_id.encode()) > self._limits.client_id_bytes_max:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        reason_code = self._identify(client, packet)
        if reason_code:
            return reason_code
        if packet.will is not None:
            will = packet.will
            try:
                validate_topic_name(
                    will.topic_name, bytes_max=self._limits.topic_bytes_max, levels_max=self._limits.topic_levels_max
                )
            except RemoteProtocolError as error:
                return int(error.reason_code)
            if is_reserved(will.topic_name):
                return ReasonCode.NOT_AUTHORIZED
            if will.qos > self._limits.maximum_qos:  # [MQTT-3.2.2-12]
                return ReasonCode.QOS_NOT_SUPPORTED
            if will.retain and not self._limits.retain_available:  # [MQTT-3.2.2-13]
                return ReasonCode.RETAIN_NOT_SUPPORTED
        return 0

    def _identify(self, client: Client, packet: Connect) -> int:
        """Say who the client is: its verified certificate, else its exchange decides, else the listener's policy."""
        identity = self._edge.identify(client.conn)
        if identity is None:
            self._edge.count("certificates_of_nodes_refused")
            return ReasonCode.NOT_AUTHORIZED
        client.identity = identity
        if client.identity or PropertyId.AUTHENTICATION_METHOD in packet.properties:
            return 0
        if not client.policy.allow_anonymous:  # nothing here knows passwords: that takes a method
            return ReasonCode.NOT_AUTHORIZED if packet.username is None else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        client.identity = packet.username or ""
        return 0

    def open(self, client: Client) -> None:
        """Claim the client ID; without a lease wait for one, at most until the connect timeout."""
        assert client.connect is not None
        client.expiry_s = self._expiry(client.connect)
        if not self._fits(client, client.connect):
            self._edge.count_disconnect("connack_too_large")
            self._edge.end(client)
            return
        client.phase = Phase.OPENING
        self._waiting.append(client)
        self.claim_waiting(self._edge.now)

    @property
    def waits(self) -> bool:
        """Whether a client that said DISCONNECT has not been let go."""
        return bool(self._leaving)

    @property
    def reports(self) -> int:
        """Ends of connections that wait to be reported."""
        return len(self._unreported)

    def claim_waiting(self, now: float) -> None:
        """Claim what waits, for the lease or for company: in a storm claims that go together cost a fraction."""
        claims = bool(self._waiting) and now >= self.claim_at and self._edge.has_lease()
        if claims or now >= self._report_at:
            self._report_unreported()
        if not claims:
            return
        waiting, self._waiting = self._waiting, []
        self._gap_s = self._next_gap_s(len(waiting))
        self.claim_at = now + self._gap_s
        for client in waiting:
            if not client.conn.closed:
                self._claim(client, now)

    def _next_gap_s(self, claimed: int) -> float:
        """Return how long the next claims wait for company: TLS handshakes thin a storm out, and few gain little."""
        gap_s = self._limits.claim_gap_s
        if claimed == 1 or claimed > CLAIMS_MANY:
            return max(gap_s, self._gap_s / 2)
        return min(gap_s * GAP_GROWTH_MAX, self._gap_s * 2) if claimed < CLAIMS_FEW else self._gap_s

    def _report_unreported(self) -> None:
        unreported, self._unreported = self._unreported, []
        self._report_at = float("inf")
        for client in unreported:
            self._report(client, clean=client.clean)

    def next_deadline(self) -> float:
        """Return when claims or reports that wait for company are due."""
        if self._waiting and self._edge.has_lease():
            return min(self.claim_at, self._report_at)
        return self._report_at

    def _claim(self, client: Client, now: float) -> None:
        edge, packet = self._edge, client.connect
        assert packet is not None
        partition = edge.place(client)
        receive_maximum = 65_535
        if packet.properties:
            receive_maximum = int(packet.properties.get(PropertyId.RECEIVE_MAXIMUM, 65_535))  # type: ignore[call-overload]
        request = OpenSession(
            edge.requests.next_number(),
            partition,
            0,
            client.client_id,
            client.number,
            packet.clean_start,
            client.expiry_s,
            _will(packet),
            packet.protocol_version,
            receive_maximum,
            now - client.opened_at,
            may_create=self._may_create(client, now),
        )
        client.opening = request
        try:
            edge.requests.ask(request, partial(self._opened, client), now)
        except RequestsFull:
            self._settle_token(client, made=False)
            self.refuse(client, ReasonCode.SERVER_BUSY)

    def _may_create(self, client: Client, now: float) -> bool:
        """Take a token of the client's address where its CONNECT may make a stored session."""
        if not client.expiry_s or not self._session_rate.enabled:
            return True
        address = metered_address(client, self._edge.peer_of)
        if address is None:
            return True
        if self._session_rate.take(address, now):
            client.session_token = address
            return True
        return False

    def _settle_token(self, client: Client, *, made: bool) -> None:
        address, client.session_token = client.session_token, None
        if address is not None and not made:
            self._session_rate.give_back(address, self._edge.now)

    def _expiry(self, packet: Connect) -> int:
        """Return the session expiry that this connection gets, in seconds; 0 is ephemeral."""
        cap = self._limits.session_expiry_max_s
        if packet.protocol_version < 5:
            return 0 if packet.clean_start else (cap or NO_EXPIRY_INTERVAL)
        wanted: int = int(packet.properties.get(PropertyId.SESSION_EXPIRY_INTERVAL, 0))  # type: ignore[call-overload]
        return min(wanted, cap) if cap else wanted

    def _opened(self, client: Client, answer: Control) -> None:
        edge = self._edge
        client.opening = None
        made = isinstance(answer, SessionOpened) and not (answer.reason_code or answer.session_present)
        self._settle_token(client, made=made)
        if not isinstance(answer, SessionOpened):
            self.refuse(client, ReasonCode.SERVER_UNAVAILABLE)
            return
        client.owner_epoch = answer.owner_epoch
        client.session = answer.session
        if client.conn.closed:
            if answer.reason_code == 0:
                self._report(client, clean=False)
            return
        if answer.reason_code:
            self.refuse(client, answer.reason_code)
            return
        packet = client.connect
        assert packet is not None
        client.phase = Phase.OPEN
        keep_alive_s, told_keep_alive = self._keep_alive(packet)
        limits, properties = self._limits, packet.properties
        options = SessionOptions(
            version=packet.protocol_version,
            keep_alive_ns=keep_alive_s * NS,
            announced_receive_maximum=limits.receive_maximum,
            announced_maximum_packet_size=limits.maximum_packet_size,
            announced_topic_alias_maximum=limits.topic_alias_maximum,
            fresh=packet.clean_start,
            session=client.session,
            owner_epoch=client.owner_epoch,
            retain_available=limits.retain_available,
            maximum_qos=limits.maximum_qos,
        )
        if properties:
            options.receive_maximum = int(properties.get(PropertyId.RECEIVE_MAXIMUM, 65_535))  # type: ignore[call-overload]
            options.maximum_packet_size = int(properties.get(PropertyId.MAXIMUM_PACKET_SIZE, 0))  # type: ignore[call-overload]
            alias_maximum = int(properties.get(PropertyId.TOPIC_ALIAS_MAXIMUM, 0))  # type: ignore[call-overload]
            options.topic_alias_maximum = min(alias_maximum, limits.topic_alias_maximum)
        edge.hot.open_session(client.conn, options)
        if client.session:
            edge.hot.set_home(client.conn, edge.primary_peer(client.partition))
        # Session Present as the partition found it [MQTT-3.2.2-2] [MQTT-3.2.2-3].
        self._write_connack(client, packet, answer.session_present, told_keep_alive)
        edge.opened(client)
        client.has_will = packet.will is not None
        client.connect = None  # the will and the properties live at the partition
        edge.hot.resume(client.conn)

    def _keep_alive(self, packet: Connect) -> tuple[int, int | None]:
        """Return the effective keep alive and what to announce as Server Keep Alive [MQTT-3.2.2-21]."""
        cap = self._limits.keep_alive_max_s
        if 0 < packet.keep_alive_s <= cap:
            return packet.keep_alive_s, None
        return cap, cap if packet.protocol_version == 5 else None

    def _announcements(self, client: Client, keep_alive_s: int | None) -> dict[int, object]:
        packet = client.connect
        assert packet is not None
        if client.version < 5:
            return {}
        limits = self._limits
        properties: dict[int, object] = {
            PropertyId.TOPIC_ALIAS_MAXIMUM: limits.topic_alias_maximum,
            PropertyId.RECEIVE_MAXIMUM: limits.receive_maximum,
        }
        asked = limits.announce_maximum_packet_size or PropertyId.MAXIMUM_PACKET_SIZE in packet.properties
        if asked and limits.maximum_packet_size < PACKET_BYTES_MAX:
            # Whom it is not told learns of it by DISCONNECT 0x95 (section 3.2.2.3.6).
            properties[PropertyId.MAXIMUM_PACKET_SIZE] = limits.maximum_packet_size
        wanted = limits.response_information and packet.properties.get(PropertyId.REQUEST_RESPONSE_INFORMATION)
        if wanted and not set(client.client_id) & set("+#/"):  # it becomes one level of a topic name
            properties[PropertyId.RESPONSE_INFORMATION] = limits.response_information + client.client_id
        if limits.maximum_qos < 2:
            properties[PropertyId.MAXIMUM_QOS] = limits.maximum_qos
        if not limits.retain_available:
            properties[PropertyId.RETAIN_AVAILABLE] = 0
        if not packet.client_id:
            properties[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client.client_id  # [MQTT-3.2.2-16]
        if keep_alive_s is not None:
            properties[PropertyId.SERVER_KEEP_ALIVE] = keep_alive_s
        if client.expiry_s != packet.properties.get(PropertyId.SESSION_EXPIRY_INTERVAL, 0):
            properties[PropertyId.SESSION_EXPIRY_INTERVAL] = client.expiry_s
        properties.update(self._edge.authentication.connack_properties(client))
        return properties

    def _fits(self, client: Client, packet: Connect) -> bool:
        """False if our CONNACK, of which nothing may be left out, is too large for the client [MQTT-3.1.2-24]."""
        if not packet.properties:
            return True
        limit: int = int(packet.properties.get(PropertyId.MAXIMUM_PACKET_SIZE, 0))  # type: ignore[call-overload]
        if not limit:
            return True
        announced = self._announcements(client, self._keep_alive(packet)[1])
        return len(encode_packet(Connack(False, ReasonCode.SUCCESS, announced), 5)) <= limit

    def _write_connack(self, client: Client, packet: Connect, session_present: bool, keep_alive_s: int | None) -> None:
        plain = client.version < 5 or not (
            packet.properties
            or client.expiry_s
            or keep_alive_s is not None
            or client.authentication is not None
            or not packet.client_id
        )
        key = (client.version, session_present)
        data = self._plain_connacks.get(key) if plain else None
        if data is None:
            announced = self._announcements(client, keep_alive_s)
            data = encode_packet(Connack(session_present, ReasonCode.SUCCESS, announced), client.version)
            if plain:
                self._plain_connacks[key] = data
        limit = 0
        if packet.properties:
            limit = int(packet.properties.get(PropertyId.MAXIMUM_PACKET_SIZE, 0))  # type: ignore[call-overload]
        if not limit or len(data) <= limit:  # [MQTT-3.1.2-24]
            self._edge.hot.write(client.conn, data, needs_lease=True)

    def refuse(self, client: Client, reason_code: int, properties: dict[int, object] | None = None) -> None:
        """Write a CONNACK with an error in the client's own version, and close [MQTT-3.2.2-7]."""
        edge = self._edge
        edge.count_connect(reason_code)
        if reason_code not in ALLOWED_REASON_CODES[PacketType.CONNACK]:  # [MQTT-3.2.2-8]
            reason_code = ReasonCode.UNSPECIFIED_ERROR
        if client.version == 5:
            data = encode_packet(Connack(False, reason_code, properties or {}), 5)
        else:
            code = connect_return_code(ReasonCode(reason_code))
            data = encode_packet(Connack(False, code, {}), client.version) if code is not None else b""
        edge.end(client, data)

    # --- the end

    def disconnect(self, client: Client, first_byte: int, body: bytes) -> None:
        """DISCONNECT of the client: 0x00 discards the will [MQTT-3.14.4-3]; the expiry may change, not from 0."""
        clean, changed = True, -1
        if body or first_byte != 0xE0:  # section 3.14.2.1: without a body it is 0x00
            packet = decode_packet(first_byte, body, client.version, self._codec_limits)
            assert isinstance(packet, Disconnect)
            clean = packet.reason_code == 0
            expiry = packet.properties.get(PropertyId.SESSION_EXPIRY_INTERVAL) if client.version == 5 else None
            if expiry is not None:
                changed = min(int(expiry), self._limits.session_expiry_max_s or NO_EXPIRY_INTERVAL)  # type: ignore[call-overload]
                if changed and not client.expiry_s:
                    raise RemoteProtocolError("session expiry 0 cannot be raised at DISCONNECT")  # section 3.14.2.2.2
        client.clean = clean
        if not client.clean or not client.has_will:
            # The report leaves before the socket closes: what the primary took has happened.
            self._report_end(client, changed)
            self._edge.end(client)
            return
        # That we close says that the will is discarded, whatever dies next: so the report is committed first.
        client.leaves_at = self._edge.now + LEAVE_S
        self._leaving.append(client)
        self._report(client, clean=True, expiry_s=changed)

    def ended(self, client: Client) -> None:
        """A connection is gone without DISCONNECT, or after one that was reported."""
        if client.phase == Phase.OPENING and client in self._waiting:
            self._waiting.remove(client)
        if client.opening is not None:
            client.opening.withdrawn = True  # should it be asked again, of another primary
        if client.phase == Phase.OPEN:
            self._report_end(client)
        client.phase = Phase.ENDED

    def tick(self, now: float) -> None:
        """Close what said DISCONNECT long ago: its partition has no primary."""
        while self._leaving and self._leaving[0].leaves_at <= now:
            self._edge.end(self._leaving.popleft())

    def _report_end(self, client: Client, expiry_s: int = -1) -> None:
        """Report the end of a connection; where it leaves no session and no will, with the next claims.

        Whoever connects with that client ID meanwhile takes the claim over from a connection that is gone.
        """
        client.phase = Phase.ENDED
        if client.session or client.has_will or not self._limits.claim_gap_s:
            self._report(client, clean=client.clean, expiry_s=expiry_s)
            return
        if not self._unreported:
            self._report_at = self._edge.now + self._limits.claim_gap_s * GAP_GROWTH_MAX
        self._unreported.append(client)

    def _report(self, client: Client, *, clean: bool, expiry_s: int = -1) -> None:
        edge = self._edge
        client.phase = Phase.ENDED
        request = CloseSession(
            edge.requests.next_number(), client.partition, 0, client.client_id, client.owner_epoch, clean, expiry_s
        )
        try:
            edge.requests.ask(request, partial(self._left, client) if client.leaves_at else _told, edge.now)
        except RequestsFull:
            edge.count_disconnect("reports_dropped")

    def _left(self, client: Client, answer: Control) -> None:
        """The answer to the report of a client that waits for it."""
        if isinstance(answer, SessionClosed) and answer.accepted:
            self._edge.end(client)

    def kick(self, order: KickSession) -> SessionKicked:
        """Another connection owns the client ID [MQTT-3.1.4-3]: say so, close, and return the answer."""
        edge = self._edge
        client = edge.client(order.connection)
        clean = False
        if client is not None and client.client_id == order.client_id and client.owner_epoch <= order.owner_epoch:
            clean = client.clean
            client.phase = Phase.ENDED
            if not client.leaves_at:  # the answer to its report says whether it left in time
                edge.count_disconnect("taken_over")
                edge.disconnect(client, ReasonCode.SESSION_TAKEN_OVER)
        return SessionKicked(order.request, order.client_id, clean, order.owner_epoch)


def _told(_: Control) -> None:
    """The answer to a report that nobody waits for."""


def _will(packet: Connect) -> Will | None:
    will = packet.will
    if will is None:
        return None
    properties = dict(will.properties)
    delay_s = int(properties.pop(PropertyId.WILL_DELAY_INTERVAL, 0))  # type: ignore[call-overload]
    expiry_s = int(properties.pop(PropertyId.MESSAGE_EXPIRY_INTERVAL, NO_EXPIRY_INTERVAL))  # type: ignore[call-overload]
    block = _without_length(encode_block(properties)) if properties else b""
    return Will(will.topic_name, will.payload, will.qos, will.retain, block, delay_s, expiry_s)


def _without_length(block: bytes) -> bytes:
    """Strip the varint length of a property block."""
    at = 0
    while block[at] & 0x80:
        at += 1
    return block[at + 1 :]
