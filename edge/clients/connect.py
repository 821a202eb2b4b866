"""CONNECT to CONNACK: validation, authentication, claim of the client ID, opening of the session.

Validates CONNECT, applies this edge's caps, claims the client ID at its partition, and writes CONNACK after the claim
is committed. ``edge/login/logins.py`` decides the identity, ``storage/sessions/ownership.py`` the owner of a client ID,
and ``edge/clients/disconnecting.py`` the end of a connection.
Source: MQTT 5.0 sections 3.1, 3.2, 4.12; MQTT 3.1.1 section 3.1.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from edge.clients.abuse_limits import AbuseLimits
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.clients.connack import ConnackBuilder
from edge.clients.connect_turns import ConnectQueue
from edge.clients.disconnecting import GAP_GROWTH_MAX, Disconnecting
from edge.clients.left_will import will_of
from edge.clients.limit_updater import filter_interval_ns
from edge.clients.memory_guard import MemoryGuard
from edge.clients.phase import ClientPhase
from edge.clients.session_rate import SessionRate, payers
from edge.cluster.partition_requests import PartitionRequests
from edge.login.logins import ClientLogins
from edge.login.refusal_records import refusal_record
from edge.loop.options import SessionOptions
from edge.node.node import NS, EdgeNode
from edge.node.ports import SessionIO
from edge.rights.client_rights import ClientRights
from mqtt import property_values
from mqtt.decode_connect import decode_connect
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Connect
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode
from mqtt.topics import is_reserved, validate_topic_name
from wire.messages.sessions import OpenSession, SessionOpened

__all__ = ["Connecting"]

NO_EXPIRY_INTERVAL = 0xFFFFFFFF
DISCONNECT_CODES = {  # after CONNACK: DISCONNECT does not have these codes [MQTT-4.12.1-2]
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.BANNED: ReasonCode.NOT_AUTHORIZED,
    ReasonCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_BUSY,
}
OPEN_REFUSALS: dict[int, str] = {  # for the audit; a busy partition is not a refusal
    ReasonCode.NOT_AUTHORIZED: "the session belongs to another user",
    ReasonCode.QUOTA_EXCEEDED: "too many stored sessions",
}
ORIGIN_REQUEST = ("stratamq-origin", "1")  # user property of CONNECT
CLAIMS_FEW, CLAIMS_MANY = 8, 16  # claims of a batch: the gap between batches grows below, and shrinks above


@dataclass(slots=True)  # not frozen: one is made for each connection
class _Claim:
    """A claimed client ID."""

    connecting: "Connecting"
    client: Client

    def answered(self, answer: SessionOpened) -> None:
        """Open the session, or refuse the client."""
        self.connecting.opened(self.client, answer)


class Connecting:
    """Opens the sessions of one edge's connections.

    Args:
        node: This edge.
        loop: Opens sessions and writes responses.
        clients: The connections.
        requests: Requests to partitions.
        leaving: Reports ends of connections; the reports are sent together with claims.
        logins: Runs the chain of a listener.
        memory: Refuses clients while this edge holds too much memory.
        conduct: Refuses addresses and client IDs by their history.
        rights: Permissions of each client.
        peer_of: Returns the peer's address of a socket, "" if it has none.
        new_client_id: Makes a client ID for a client that has none.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: SessionIO,
        clients: Clients,
        requests: PartitionRequests,
        leaving: Disconnecting,
        logins: ClientLogins,
        memory: MemoryGuard,
        conduct: AbuseLimits,
        rights: ClientRights,
        peer_of: Callable[[int], str],
        new_client_id: Callable[[], str] | None = None,
    ) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._requests = requests
        self._leaving = leaving
        self._logins = logins
        logins.join(self)
        self._memory = memory
        self._conduct = conduct
        self._rights = rights
        self._peer_of = peer_of
        self._connacks = ConnackBuilder(node)
        self._new_client_id = new_client_id or (lambda: "auto-" + secrets.token_hex(10))
        self._waiting: list[Client] = []  # for a lease, or until claim_at
        self._claim_at = 0.0
        self._gap_s = node.limits.claim_gap_s
        self._session_rate = SessionRate(node.limits.session_rate, node.limits.session_burst)
        self.turns = ConnectQueue(node, clients, self._start_login)

    def bound(self) -> None:
        """Apply the node's current limits to the derived state."""
        limits = self._node.limits
        self._session_rate.bound(limits.session_rate, limits.session_burst)
        self.turns.bound()

    # --- CONNECT

    def connect(self, client: Client, first_byte: int, body: bytes) -> None:
        """Handle the first packet of a connection."""
        if first_byte >> 4 != 1:  # [MQTT-3.1.0-1]
            self._clients.count_end("not_connect", client)
            self._clients.end(client)
            return
        try:
            packet = decode_connect(first_byte, body, self._node.packet_limits)
        except RemoteProtocolError as error:
            self._refuse_malformed(client, error)
            return
        client.connect = packet
        self._clients.came(client)
        client.version = packet.protocol_version
        client.bridge = packet.bridge
        client.client_id = packet.client_id
        if client.first_bytes is not None:
            client.address, client.seat = client.first_bytes.source, client.first_bytes.seat
        reason_code = self._conduct.connect_refusal(client, packet.client_id) or self._admit()
        if reason_code:
            self._clients.refuse(client, reason_code)
        elif self.turns.admit_or_queue(client):
            self._start_login(client)

    def _start_login(self, client: Client) -> None:
        """Validate a CONNECT that the queue released, and start its login."""
        assert client.connect is not None
        reason_code = self._validate(client, client.connect)
        if reason_code:
            self._clients.refuse(client, reason_code)
            return
        client.enter(ClientPhase.AUTHENTICATING)
        self._logins.begin(client, self._authenticated)
        if client.phase != ClientPhase.OPENING:
            self._node.wake()

    # --- results of logins

    def _authenticated(self, client: Client) -> None:
        """Open the session of an authenticated client; its certificate may have set its client ID."""
        if client.seat is not None:
            client.seat.authenticated(client.owner, self._node.now)
        if len(client.client_id.encode()) > self._node.limits.client_id_bytes_max:
            self._clients.refuse(client, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
            return
        self._open(client)

    def refused(self, client: Client, code: ReasonCode, *, guessed: bool) -> None:
        """Refuse a client, or disconnect an open one. If its session was opened meanwhile, discard the will."""
        if guessed:
            self._conduct.login_failed(client)
        if client.phase == ClientPhase.OPEN:
            self._clients.drop(client, DISCONNECT_CODES.get(code, code))
            return
        if client.phase == ClientPhase.OPENING and client.owner_epoch:
            self._leaving.report(client, clean=True)
        self._clients.refuse(client, code)

    def expired(self, client: Client) -> None:
        """Disconnect a client after its token or other credential expired."""
        self._node.count("refused_login_expired")
        if client.phase == ClientPhase.OPEN:
            self._clients.count_end("expired", client)
            self._clients.disconnect(client, ReasonCode.NOT_AUTHORIZED)
        elif client.phase in (ClientPhase.AUTHENTICATING, ClientPhase.OPENING):
            self.refused(client, ReasonCode.NOT_AUTHORIZED, guessed=False)

    def renewed(self, client: Client) -> None:
        """Authorize an open client by its new identity: its filters and all later packets."""
        self._rights.renew(client, self._node.now, self._address_of(client))

    def _refuse_malformed(self, client: Client, error: RemoteProtocolError) -> None:
        version = getattr(error, "connect_version", None)
        self._clients.count_end("malformed_connect", client)
        if version is None:
            self._clients.end(client)
            return
        client.version = version
        self._clients.refuse(client, error.reason_code)

    def _admit(self) -> int:
        """Return 0x89 while too many clients are connected: an overloaded edge serves its present clients."""
        if self._clients.connecting > self._node.limits.connections_max:
            self._node.count("refused_connections")
            return ReasonCode.SERVER_BUSY
        if self._memory.refuses:
            self._node.count("memory_refused")
            return ReasonCode.SERVER_BUSY
        return 0

    def _validate(self, client: Client, packet: Connect) -> int:
        """Return 0, or the reason code that refuses the CONNECT."""
        limits = self._node.limits
        if not packet.client_id:
            if packet.protocol_version == 3 or (packet.protocol_version == 4 and not packet.clean_start):
                # MQTT 3.1 section 3.1: one to 23 characters; v3 [MQTT-3.1.3-8]
                return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            client.client_id = self._new_client_id()
        if len(client.client_id.encode()) > limits.client_id_bytes_max:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if packet.will is not None:
            will = packet.will
            try:
                validate_topic_name(
                    will.topic_name, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max
                )
            except RemoteProtocolError as error:
                return int(error.reason_code)
            if is_reserved(will.topic_name):
                self._node.count("refused_will")
                self._node.audit(refusal_record(client, ReasonCode.NOT_AUTHORIZED, "a will of a topic of the broker"))
                return ReasonCode.NOT_AUTHORIZED
            if will.qos > limits.maximum_qos:  # [MQTT-3.2.2-12]
                return ReasonCode.QOS_NOT_SUPPORTED
            if will.retain and not limits.retain_available:  # [MQTT-3.2.2-13]
                return ReasonCode.RETAIN_NOT_SUPPORTED
        return 0

    def _open(self, client: Client) -> None:
        """Claim the client ID; without a lease wait for one, at most until the connect timeout."""
        assert client.connect is not None
        client.bounds = self._rights.bounds_of(client)
        refusal = self._conduct.takeover_refusal(client) or self._conduct.quota_refusal(client)
        refusal = refusal or self._attach_rights(client)
        if refusal:
            self._clients.refuse(client, refusal)
            return
        client.expiry_s = self._expiry(client.connect)
        if not self._connacks.fits(client, client.connect):
            self._clients.count_end("connack_too_large", client)
            self._clients.end(client)
            return
        client.enter(ClientPhase.OPENING)
        self._waiting.append(client)
        self.send_claims(self._node.now)

    def _attach_rights(self, client: Client) -> int:
        """Attach a client's rules; return 0, or the reason code that refuses its will."""
        assert client.connect is not None
        self._rights.admit(client, self._node.now, self._address_of(client))
        will = client.connect.will
        if will is None:
            return 0
        if will.topic_name.count("/") >= client.known_bounds.topic_levels_max:
            self._node.count("refused_topic_levels")
            return ReasonCode.TOPIC_NAME_INVALID
        if self._rights.may_will(client, will.topic_name, will.qos, will.retain):
            return 0
        self._node.count("refused_will")
        self._rights.refused(client, "will", will.topic_name)
        return ReasonCode.NOT_AUTHORIZED

    def _recheck(self, client: Client) -> int:
        """Return 0, or the reason code if the client's rules changed while its session was opened with other bounds."""
        if self._rights.bounds_of(client) != client.bounds:
            return ReasonCode.SERVER_BUSY
        return self._attach_rights(client)

    def _address_of(self, client: Client) -> str:
        return client.seat.address if client.seat is not None else self._peer_of(client.conn.fd)

    def lease_regained(self, now: float) -> None:
        """Send pending claims at once."""
        self._claim_at = now

    def send_claims(self, now: float) -> None:
        """Send pending claims if the lease and the batching gap allow; batching makes them much cheaper."""
        claims = bool(self._waiting) and now >= self._claim_at and self._node.may_admit()
        if not (claims or now >= self._leaving.report_at):
            return
        with self._requests.together(now):
            self._leaving.send_reports()
            if claims:
                waiting, self._waiting = self._waiting, []
                self._gap_s = self._next_batch_gap_s(len(waiting))
                self._claim_at = now + self._gap_s
                for client in waiting:
                    if not client.conn.closed:
                        self._claim(client, now)

    def _next_batch_gap_s(self, claimed: int) -> float:
        """Return the gap until the next batch: TLS handshakes thin out a connect storm, and small batches save
        little.
        """
        gap_s = self._node.limits.claim_gap_s
        if claimed == 1 or claimed > CLAIMS_MANY:
            return max(gap_s, self._gap_s / 2)
        return min(gap_s * GAP_GROWTH_MAX, self._gap_s * 2) if claimed < CLAIMS_FEW else self._gap_s

    def next_deadline(self) -> float:
        """Return when the next batch of claims or reports is due."""
        if self._waiting and self._node.may_admit():
            return min(self._claim_at, self._leaving.report_at)
        return self._leaving.report_at

    def _claim(self, client: Client, now: float) -> None:
        packet = client.connect
        assert packet is not None
        partition, bounds = self._clients.place(client), client.known_bounds
        receive_maximum = 65_535
        if packet.properties:
            receive_maximum = property_values.receive_maximum(packet.properties)
        client.receive_maximum = bounds.inflight(receive_maximum)
        number = self._requests.next_number()
        request = OpenSession(
            number,
            partition,
            0,
            client.client_id,
            client.number,
            packet.clean_start,
            client.expiry_s,
            will_of(client),
            packet.protocol_version,
            client.receive_maximum,
            may_create=self._take_token(client, now),
            owner=client.owner,
            owner_made=client.owner_made,
            judged=0 if self._rights.has_no_rules else number,  # no other rules: all filters are returned
            sessions_max=bounds.sessions_user_max,
            queue_messages_max=bounds.queue_messages_max,
            queue_bytes_max=bounds.queue_bytes_max,
        )
        client.opening = request
        if not self._requests.ask(request, _Claim(self, client).answered, now):
            self._settle_token(client, made=False)
            self._clients.refuse(client, ReasonCode.SERVER_BUSY)

    def _take_token(self, client: Client, now: float) -> bool:
        """Consume a token of the client's address and user if its CONNECT may create a durable session."""
        if not client.expiry_s or not self._session_rate.enabled:
            return True
        keys = payers(client, self._peer_of)
        if not self._session_rate.take_each(keys, now):
            return False
        client.session_tokens = keys
        return True

    def _settle_token(self, client: Client, *, made: bool) -> None:
        tokens, client.session_tokens = client.session_tokens, ()
        if not made:
            for key in tokens:
                self._session_rate.give_back(key, self._node.now)

    def _expiry(self, packet: Connect) -> int:
        """Return the session expiry of this connection in seconds; 0 is ephemeral."""
        cap = self._node.limits.session_expiry_max_s
        if packet.protocol_version < 5:
            return 0 if packet.clean_start else (cap or NO_EXPIRY_INTERVAL)
        wanted = property_values.session_expiry_interval(packet.properties) or 0
        return min(wanted, cap) if cap else wanted

    def opened(self, client: Client, answer: SessionOpened) -> None:
        """Handle the partition's response to a claim."""
        client.opening = None
        if client.session_tokens:
            self._settle_token(client, made=not (answer.reason_code or answer.session_present))
        client.owner_epoch = answer.owner_epoch
        client.session = answer.session
        if client.conn.closed:
            if answer.reason_code == 0:
                self._leaving.report(client, clean=False)
            return
        if answer.reason_code:
            why = OPEN_REFUSALS.get(answer.reason_code)
            if why is not None:
                self._node.audit(refusal_record(client, answer.reason_code, why))
            self._clients.refuse(client, answer.reason_code)
            return
        self._opened(client, answer)
        if client.phase != ClientPhase.OPEN or client.session:
            self._node.wake()

    def _opened(self, client: Client, answer: SessionOpened) -> None:
        """Write CONNACK, unless the client lost its permission to connect."""
        in_call: list[Client] = [client]
        is_valid = self._logins.stands(client, partial(self._recheck_finished, answer=answer, in_call=in_call))
        in_call.clear()
        if not is_valid:
            return
        if not self._rights.has_joined(client) and (refusal := self._recheck(client)):
            self.refused(client, ReasonCode(refusal), guessed=False)
            return
        packet = client.connect
        assert packet is not None
        client.enter(ClientPhase.OPEN)
        client.opened_at, client.clean_start = self._node.now, packet.clean_start
        limits, properties, bounds = self._node.limits, packet.properties, client.known_bounds
        keep_alive_s, announced_keep_alive = self._connacks.keep_alive(bounds, packet)
        client.filter_interval_ns = filter_interval_ns(bounds.subscribe_rate_max)
        options = SessionOptions(
            version=packet.protocol_version,
            keep_alive_ns=keep_alive_s * NS,
            announced_receive_maximum=bounds.inflight(limits.receive_maximum),
            announced_maximum_packet_size=bounds.packet_bytes_max,
            announced_topic_alias_maximum=limits.topic_alias_maximum,
            receive_maximum=client.receive_maximum,
            fresh=packet.clean_start,
            resumed=answer.session_present,
            session=client.session,
            owner_epoch=client.owner_epoch,
            retain_available=limits.retain_available,
            maximum_qos=limits.maximum_qos,
            publish_rate_max=bounds.publish_rate_max,
            byte_rate_max=bounds.byte_rate_max,
            metered=self._conduct.is_metered(client),
        )
        if properties:
            options.maximum_packet_size = property_values.maximum_packet_size(properties)
            alias_maximum = property_values.topic_alias_maximum(properties)
            options.topic_alias_maximum = min(alias_maximum, limits.topic_alias_maximum)
            # [MQTT-3.1.2-29]: without problem information PUBACK and PUBREC have no user property.
            wants_origins = ORIGIN_REQUEST in property_values.user_properties(properties)
            options.tells_origins = wants_origins and property_values.wants_problem_information(properties)
        client.wants_reason_strings = packet.protocol_version == 5 and property_values.wants_problem_information(
            properties
        )
        self._loop.open_session(client.conn, options)
        if client.seat is not None and (purse := client.seat.purse) is not None:
            self._loop.share(client.conn, purse)
        if client.session:
            self._loop.set_primary_of(client.conn, self._node.primary_peer(client.partition))
            client.subscriptions = {subscription.topic_filter: subscription for subscription in answer.subscriptions}
            filters_unknown = answer.session_present and not (answer.judged or answer.subscriptions)
            self._rights.opened(client, answer.session_present, len(client.subscriptions), untold=filters_unknown)
        # Session Present as the partition reported it [MQTT-3.2.2-2] [MQTT-3.2.2-3].
        connack = self._connacks.encoded(client, packet, answer.session_present, announced_keep_alive)
        if connack:
            self._loop.write(client.conn, connack, needs_lease=True)
        self._node.count("connects_0x00")
        will = packet.will
        client.has_will = will is not None
        if will is not None:
            client.will_at_once = not (client.expiry_s and will.properties.get(PropertyId.WILL_DELAY_INTERVAL))
        client.connect = None  # the partition stores the will and the properties
        self._loop.resume(client.conn)
        self._clients.lifecycle.connected(client, answer)

    def _recheck_finished(self, client: Client, answer: SessionOpened, in_call: list[Client]) -> None:
        """Resume at once, or make the client reconnect: copies pushed to its session meanwhile were not delivered."""
        if in_call or not client.session:
            self._opened(client, answer)
        else:
            self._clients.refuse(client, ReasonCode.SERVER_BUSY)

    def ended(self, client: Client) -> None:
        """Remove a closed connection from all pending work."""
        if client.phase == ClientPhase.OPENING and client in self._waiting:
            self._waiting.remove(client)
        if client.phase == ClientPhase.OPENING and client.owner_epoch:
            self._leaving.report(client, clean=True)  # it was authenticated again, and has no CONNACK
        if client.opening is not None:
            client.opening.withdrawn = True  # ignored if it is sent again to another primary
        self._leaving.ended(client)
