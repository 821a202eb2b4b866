"""CONNECT to CONNACK: judging a CONNECT, proving who the client is, claiming its client ID, opening the session.

Checks what the specification demands of CONNECT, applies this edge's caps, claims the client ID at its partition, and
writes CONNACK when the claim is committed. Who owns a client ID is decided in ``storage/sessions/ownership.py``, not
here; how a connection ends, in ``edge/clients/leaving.py``. Source: MQTT 5.0 sections 3.1, 3.2, 4.12; MQTT 3.1.1
section 3.1.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from edge.clients.authentication import Accepted, Authenticator, Challenge, Refused
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.connack import Connacks
from edge.clients.leaving import GAP_GROWTH_MAX, Leaving
from edge.clients.memory_guard import MemoryGuard
from edge.clients.phase import Phase
from edge.clients.session_rate import SessionRate, metered_address
from edge.cluster.partition_requests import PartitionRequests
from edge.hot.options import SessionOptions
from edge.hot.state import Conn
from edge.node.node import NS, EdgeNode
from edge.node.ports import SessionIO
from mqtt import property_values
from mqtt.codec import Limits, encode_packet
from mqtt.decode_connect import decode_connect
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from mqtt.properties import encode_properties as encode_block
from mqtt.reasons import ReasonCode
from mqtt.topics import is_reserved, validate_topic_name
from wire.messages.control import Control
from wire.messages.sessions import OpenSession, SessionOpened
from wire.messages.wills import Will

__all__ = ["Connecting"]

NO_EXPIRY_INTERVAL = 0xFFFFFFFF
CLAIMS_FEW, CLAIMS_MANY = 8, 16  # leave together: the gap between claims grows below, and shrinks above


@dataclass(slots=True)  # not frozen: one is made for each connection
class _Claim:
    """A client ID that was claimed."""

    connecting: "Connecting"
    client: Client

    def answered(self, answer: Control) -> None:
        """Open the session, or refuse the client."""
        self.connecting.opened(self.client, answer)


class Connecting:
    """Opens the sessions of one edge's connections.

    Args:
        node: This edge.
        loop: Where sessions are opened and answers written.
        clients: The connections.
        requests: Requests to partitions.
        leaving: How connections end: reports of ends leave with claims.
        authenticator: Runs the exchanges of CONNECT and AUTH.
        memory: Whether this edge holds too much already.
        identify: Whom a connection's certificate names, "" for none; None: a node, which is refused.
        peer_of: Returns the peer's address of a socket, "" if it has none.
        new_client_id: Makes a client ID for a client that has none.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: SessionIO,
        clients: Clients,
        requests: PartitionRequests,
        leaving: Leaving,
        authenticator: Authenticator,
        memory: MemoryGuard,
        identify: Callable[[Conn], str | None],
        peer_of: Callable[[int], str],
        new_client_id: Callable[[], str] | None = None,
    ) -> None:
        self._node = node
        self._limits = node.limits
        self._loop = loop
        self._clients = clients
        self._requests = requests
        self._leaving = leaving
        self._authenticator = authenticator
        self._memory = memory
        self._identify = identify
        self._peer_of = peer_of
        self._connacks = Connacks(node.limits)
        self._codec_limits = Limits(
            maximum_packet_size=node.limits.maximum_packet_size,
            user_properties_bytes_max=node.limits.user_property_bytes_max,
            from_client=True,
        )
        self._new_client_id = new_client_id or (lambda: "auto-" + secrets.token_hex(10))
        self._waiting: list[Client] = []  # for a lease, or until claim_at
        self._claim_at = 0.0
        self._gap_s = node.limits.claim_gap_s
        self._session_rate = SessionRate(node.limits.session_rate, node.limits.session_burst)
        self._tokens = max(1.0, node.limits.connect_rate_max)  # CONNECTs that may still be taken
        self._filled_at = 0.0

    # --- CONNECT

    def connect(self, client: Client, first_byte: int, body: bytes) -> None:
        """Take the first packet of a connection."""
        if first_byte >> 4 != 1:  # [MQTT-3.1.0-1]
            self._clients.count_end("not_connect")
            self._clients.end(client)
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
            self._clients.refuse(client, reason_code)
            return
        if packet.properties and PropertyId.AUTHENTICATION_METHOD in packet.properties:
            client.enter(Phase.AUTHENTICATING)
            self._authenticated(client, self._authenticator.begin(client, packet))
            return
        self._open(client)

    def authenticate(self, client: Client, first_byte: int, body: bytes) -> None:
        """Take an AUTH packet.

        Raises:
            MqttError: It is malformed or out of turn.
        """
        self._authenticated(client, self._authenticator.step(client, first_byte, body))

    def _authenticated(self, client: Client, outcome: Challenge | Accepted | Refused) -> None:
        """Answer a client as its exchange demands; one that proved who it is before CONNACK is let in."""
        is_open, running = client.phase == Phase.OPEN, client.authentication
        if isinstance(outcome, Refused):
            (self._clients.disconnect if is_open else self._clients.refuse)(client, outcome.reason_code)
            return
        assert running is not None
        if isinstance(outcome, Accepted) and not is_open:
            client.identity = outcome.identity
            running.final = outcome.data
            self._open(client)
            return
        code = ReasonCode.SUCCESS if isinstance(outcome, Accepted) else ReasonCode.CONTINUE_AUTHENTICATION
        answer: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: running.method}
        if outcome.data:
            answer[PropertyId.AUTHENTICATION_DATA] = outcome.data
        self._loop.write(client.conn, encode_packet(Auth(code, answer), 5))
        self._loop.resume(client.conn)

    def _refuse_malformed(self, client: Client, error: RemoteProtocolError) -> None:
        version = getattr(error, "connect_version", None)
        self._clients.count_end("malformed_connect")
        if version is None:
            self._clients.end(client)
            return
        client.version = version
        self._clients.refuse(client, error.reason_code)

    def _admit(self) -> int:
        """Return 0x89 while too many are connected or connect at once: an edge in a storm serves those that it has."""
        limits, now = self._limits, self._node.now
        if len(self._clients) > limits.connections_max:
            return ReasonCode.SERVER_BUSY
        if self._memory.refuses:
            self._node.count("memory_refused")
            return ReasonCode.SERVER_BUSY
        if limits.connect_rate_max:
            burst = max(1.0, limits.connect_rate_max)
            self._tokens = min(burst, self._tokens + (now - self._filled_at) * limits.connect_rate_max)
            self._filled_at = now
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
        reason_code = self._find_identity(client, packet)
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

    def _find_identity(self, client: Client, packet: Connect) -> int:
        """Say who the client is: its verified certificate, else its exchange decides, else the listener's policy."""
        identity = self._identify(client.conn)
        client.identity = identity or ""
        if identity:
            return 0
        if identity is None:
            self._node.count("certificates_of_nodes_refused")
            return ReasonCode.NOT_AUTHORIZED
        if packet.properties and PropertyId.AUTHENTICATION_METHOD in packet.properties:
            return 0
        if not client.policy.allow_anonymous:  # nothing here knows passwords: that takes a method
            return ReasonCode.NOT_AUTHORIZED if packet.username is None else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        client.identity = packet.username or ""
        return 0

    def _open(self, client: Client) -> None:
        """Claim the client ID; without a lease wait for one, at most until the connect timeout."""
        assert client.connect is not None
        client.expiry_s = self._expiry(client.connect)
        if not self._connacks.fits(client, client.connect):
            self._clients.count_end("connack_too_large")
            self._clients.end(client)
            return
        client.enter(Phase.OPENING)
        self._waiting.append(client)
        self.claim_waiting(self._node.now)

    def lease_regained(self, now: float) -> None:
        """Claim what waits at once."""
        self._claim_at = now

    def claim_waiting(self, now: float) -> None:
        """Claim what waits, for the lease or for company: in a storm claims that go together cost a fraction."""
        claims = bool(self._waiting) and now >= self._claim_at and self._node.has_lease()
        if claims or now >= self._leaving.report_at:
            self._leaving.report_waiting()
        if not claims:
            return
        waiting, self._waiting = self._waiting, []
        self._gap_s = self._next_gap_s(len(waiting))
        self._claim_at = now + self._gap_s
        for client in waiting:
            if not client.conn.closed:
                self._claim(client, now)

    def _next_gap_s(self, claimed: int) -> float:
        """Return how long the next claims wait for company: TLS handshakes thin a storm out, and few gain little."""
        gap_s = self._limits.claim_gap_s
        if claimed == 1 or claimed > CLAIMS_MANY:
            return max(gap_s, self._gap_s / 2)
        return min(gap_s * GAP_GROWTH_MAX, self._gap_s * 2) if claimed < CLAIMS_FEW else self._gap_s

    def next_deadline(self) -> float:
        """Return when claims or reports that wait for company are due."""
        if self._waiting and self._node.has_lease():
            return min(self._claim_at, self._leaving.report_at)
        return self._leaving.report_at

    def _claim(self, client: Client, now: float) -> None:
        packet = client.connect
        assert packet is not None
        partition = self._clients.place(client)
        receive_maximum = 65_535
        if packet.properties:
            receive_maximum = property_values.receive_maximum(packet.properties)
        request = OpenSession(
            self._requests.next_number(),
            partition,
            0,
            client.client_id,
            client.number,
            packet.clean_start,
            client.expiry_s,
            _will(packet),
            packet.protocol_version,
            receive_maximum,
            may_create=self._take_token(client, now),
        )
        client.opening = request
        if not self._requests.ask(request, _Claim(self, client).answered, now):
            self._settle_token(client, made=False)
            self._clients.refuse(client, ReasonCode.SERVER_BUSY)

    def _take_token(self, client: Client, now: float) -> bool:
        """Take a token of the client's address where its CONNECT may make a stored session."""
        if not client.expiry_s or not self._session_rate.enabled:
            return True
        address = metered_address(client, self._peer_of)
        if address is None:
            return True
        if self._session_rate.take(address, now):
            client.session_token = address
            return True
        return False

    def _settle_token(self, client: Client, *, made: bool) -> None:
        address, client.session_token = client.session_token, None
        if address is not None and not made:
            self._session_rate.give_back(address, self._node.now)

    def _expiry(self, packet: Connect) -> int:
        """Return the session expiry that this connection gets, in seconds; 0 is ephemeral."""
        cap = self._limits.session_expiry_max_s
        if packet.protocol_version < 5:
            return 0 if packet.clean_start else (cap or NO_EXPIRY_INTERVAL)
        wanted = property_values.session_expiry_interval(packet.properties) or 0
        return min(wanted, cap) if cap else wanted

    def opened(self, client: Client, answer: Control) -> None:
        """Take the partition's answer to a claim."""
        client.opening = None
        made = isinstance(answer, SessionOpened) and not (answer.reason_code or answer.session_present)
        self._settle_token(client, made=made)
        if not isinstance(answer, SessionOpened):
            self._clients.refuse(client, ReasonCode.SERVER_UNAVAILABLE)
            return
        client.owner_epoch = answer.owner_epoch
        client.session = answer.session
        if client.conn.closed:
            if answer.reason_code == 0:
                self._leaving.report(client, clean=False)
            return
        if answer.reason_code:
            self._clients.refuse(client, answer.reason_code)
            return
        packet = client.connect
        assert packet is not None
        client.enter(Phase.OPEN)
        keep_alive_s, told_keep_alive = self._connacks.keep_alive(packet)
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
            options.receive_maximum = property_values.receive_maximum(properties)
            options.maximum_packet_size = property_values.maximum_packet_size(properties)
            alias_maximum = property_values.topic_alias_maximum(properties)
            options.topic_alias_maximum = min(alias_maximum, limits.topic_alias_maximum)
        self._loop.open_session(client.conn, options)
        if client.session:
            self._loop.set_primary_of(client.conn, self._node.primary_peer(client.partition))
        # Session Present as the partition found it [MQTT-3.2.2-2] [MQTT-3.2.2-3].
        connack = self._connacks.encoded(client, packet, answer.session_present, told_keep_alive)
        if connack:
            self._loop.write(client.conn, connack, needs_lease=True)
        self._node.count("connects_0x00")
        client.has_will = packet.will is not None
        client.connect = None  # the will and the properties live at the partition
        self._loop.resume(client.conn)

    def ended(self, client: Client) -> None:
        """Note that a connection is gone, whatever it waited for."""
        if client.phase == Phase.OPENING and client in self._waiting:
            self._waiting.remove(client)
        if client.opening is not None:
            client.opening.withdrawn = True  # should it be asked again, of another primary
        self._leaving.ended(client)


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
