"""The trio shell of one MQTT client session: it keeps a connection to a broker and moves the session's bytes.

Decides the next address and delay, requires every filter to be granted, and follows Server References
(``gateways/addresses.py``). Packets, timers and retransmission are in ``mqtt/client_session.py``. The user is called
synchronously for each message and sends with ``publish`` and ``acknowledge``.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

import trio

from conf.errors import UserError
from gateways.address_selector import AddressSelector
from gateways.addresses import Address, ReferenceRefused
from gateways.retry_delay import RetryDelay
from gateways.transport import Transport, open_transport
from mqtt.client_session import (
    Accepted,
    ClientBounds,
    ClientSession,
    ClientState,
    ConnectRefused,
    Event,
    MustClose,
    PublishAnswered,
    PublishReceived,
    RequestAnswered,
    ServerDisconnect,
    StateChange,
)
from mqtt.packets import Connect, Publish, Subscribe, SubscriptionRequest, Unsubscribe
from mqtt.properties import PropertyId
from mqtt.reasons import FAILURE, ConnectReturnCode, ReasonCode

__all__ = ["WINDOW_3_1_1", "ClientUser", "GatewayClient", "GatewayClientOptions", "Keep", "RefusedFilter"]

Keep = Callable[[list[StateChange], Callable[[], None]], None]  # makes changes durable, then calls the function

BOUNDS = ClientBounds(connect_timeout_s=10.0, goodbye_timeout_s=1.0, silence_s=45.0, window=1024)
SUBSCRIBE_TOKEN = -1  # tokens of publishes are >= 0; lower ones belong to filters added later
FILTERS_PER_SUBSCRIBE = 64  # filters of one SUBSCRIBE on a new connection
REDIRECTING = (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED)
ENDINGS = {
    "refused": "the broker refused the connection",
    "silent": "the broker does not answer",
    "protocol": "the broker broke the protocol",
    "local": "closed",
}
LARGE_WRITE_BYTES = 256 * 1024  # users stop publishing above a larger bound of their own
GOODBYE_S = 1.0  # time to send a last DISCONNECT
PACED_FROM, PACE_S = 64, 0.001  # with this many in-flight messages, reads are delayed so that one read returns several
STABLE_AFTER_S = 5.0  # a connection of at least this duration is no failed attempt


class RefusedFilter(UserError):
    """The broker does not grant a filter; the gateway stops."""


class ClientUser(Protocol):
    """The gateway that owns a client; its methods are called synchronously and must not block."""

    def connected(self, accepted: Accepted) -> None:
        """A connection is accepted, and every filter is requested."""

    def disconnected(self, reason: str) -> None:
        """An attempt failed, or a connection ended; ``reason`` is readable text."""

    def received(self, packet: Publish) -> None:
        """A message was received; call ``GatewayClient.acknowledge`` when it is processed."""

    def answered(self, token: int, reason_code: int) -> None:
        """A QoS 1 or 2 publish was acknowledged."""

    def writable(self) -> None:
        """More publishes may be possible."""


# Largest number of in-flight QoS 2 messages at a 3.1.1 broker, which sends no Receive Maximum. Mosquitto 2.0
# disconnects a client with more, again after each reconnection.
WINDOW_3_1_1 = 20


@dataclass(frozen=True, slots=True)
class GatewayClientOptions:
    """One client of one broker.

    Attributes:
      addresses: Tried in rotation.
      connect: Makes the CONNECT of the next connection, with client ID, version and properties.
      filters: Subscribed on each connection.
      context: TLS; None for the system's authorities.
      bounds: Bounds of each connection.
      server_references: Further hosts of Server References, which receive the client's credentials:
        ``host``, ``host:port`` or ``*`` (MQTT 5.0 section 4.11).
      full_qos: A filter granted at a lower QoS counts as refused.
    """

    addresses: tuple[Address, ...]
    connect: Callable[[], Connect]
    filters: tuple[SubscriptionRequest, ...] = ()
    context: ssl.SSLContext | None = None
    bounds: ClientBounds = field(default=BOUNDS)
    server_references: tuple[str, ...] = ()
    full_qos: bool = False


class GatewayClient:
    """One client identifier at one broker; ``run`` ends only by cancellation or ``RefusedFilter``.

    Attributes:
      session: The MQTT session.
      granted: Set when the broker has granted every filter once.
      is_granted: The broker has granted every filter on the present connection.
      was_granted: A former process subscribed to the same filters, and its session is stored.
      counts: Server References: ``references_followed``, ``references_refused``.
    """

    def __init__(
        self,
        options: GatewayClientOptions,
        user: ClientUser,
        random: Random,
        when_granted: Callable[[str, bool], None] | None = None,
        keep: Keep | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        """Set up.

        Args:
          options: Of the client.
          user: Called at each event.
          random: For delays.
          when_granted: Called with the result of each filter of ``subscribe``.
          counts: The user's counter, or None for a new one.
          keep: For a persistent session: output is sent after the changes before it are durable.
        """
        self.session = ClientSession(is_kept=keep is not None)
        self.granted = trio.Event()
        self.is_granted = False
        self.was_granted = False
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._options, self._user = options, user
        self._selector = AddressSelector(options.addresses, options.server_references, self.counts)
        self._delay = RetryDelay(random)
        # bounded by the session's windows and by the user, which checks ``outgoing_bytes``
        self._outgoing = bytearray()
        self._idle = trio.Event()  # set while no output is pending
        self._wake = trio.Event()
        self._keep = keep
        self._held_bytes = 0  # output held until ``keep`` is done
        self._requested: tuple[SubscriptionRequest, ...] = ()
        self._when_granted = when_granted
        self._added_filters: dict[str, SubscriptionRequest] = {}  # filters added by ``subscribe``
        self._added_pending: dict[int, tuple[str, ...]] = {}  # by token, on this connection
        self._last_token = SUBSCRIBE_TOKEN
        self._pending_requests: dict[int, Callable[[list[int]], None]] = {}  # by token, on this connection
        self._version = 5
        self._reason = ""
        self._sends_reason = False
        self._refusal: RefusedFilter | None = None
        self._ended = trio.Event()  # of the present connection

    @property
    def address(self) -> Address:
        """Return the address of the present connection or attempt."""
        return self._selector.current

    @property
    def filters(self) -> tuple[SubscriptionRequest, ...]:
        """Return the filters subscribed on each connection."""
        return self._options.filters

    @property
    def is_connected(self) -> bool:
        """Whether messages may be published."""
        return self.session.state is ClientState.CONNECTED

    @property
    def has_capacity(self) -> bool:
        """Whether a QoS 1 or 2 message may be published now."""
        return self.session.has_room

    @property
    def outgoing_bytes(self) -> int:
        """Return the unsent bytes; QoS 0 messages have no other bound."""
        return len(self._outgoing) + self._held_bytes

    def publish(self, packet: Publish, token: int) -> bool:
        """Send a message on the present connection; for QoS 1 and 2 check ``has_capacity`` first.

        Returns:
          False for a message that is too large for this broker.
        """
        if packet.qos:
            packet.packet_identifier = self.session.next_identifier()
        taken = self.session.publish(packet, token)
        self._flush()
        return taken

    def subscribe(self, wanted: SubscriptionRequest) -> None:
        """Subscribe to one more filter, now and on each later connection."""
        self._added_filters[wanted.topic_filter] = wanted
        if self.is_connected:
            self._subscribe_added([wanted])
            self._flush()

    def unsubscribe(self, topic_filter: str) -> None:
        """Remove a filter added by ``subscribe``."""
        if self._added_filters.pop(topic_filter, None) is not None and self.is_connected:
            self._last_token -= 1
            self.session.request(Unsubscribe(self.session.next_identifier(), [topic_filter]), self._last_token)
            self._flush()

    def ask(self, packet: Subscribe | Unsubscribe, then: Callable[[list[int]], None]) -> None:
        """Send a request on the present connection only; ``then`` receives the reason codes of its answer."""
        packet.packet_identifier = self.session.next_identifier()
        self._last_token -= 1
        self._pending_requests[self._last_token] = then
        self.session.request(packet, self._last_token)
        self._flush()

    def acknowledge(self, packet: Publish) -> bool:
        """Mark a message as processed; after its connection ended the session remembers it.

        Returns:
          Whether it is acknowledged for the first time.
        """
        first = self.session.acknowledge(packet)
        if self._keep is None:
            self._wake.set()  # the writer sends all answers of an iteration together
        else:
            self._flush()
        return first

    def pass_over(self, packet: Publish) -> None:
        """Leave a message and all later ones unacknowledged; the broker resends them on the next connection."""
        self.session.pass_over(packet)

    def break_off(self, reason: str) -> None:
        """End the present connection at once; ``run`` opens the next one."""
        self._end(reason)

    def refuse(self, text: str) -> None:
        """End the connection and ``run``: this broker lacks a required feature."""
        self._refusal = RefusedFilter(text)
        self._end(text)

    async def leave(self) -> None:
        """End the present connection with DISCONNECT 0x04; the will is published, because it reports this client's
        absence.
        """
        if self.is_connected and self._version == 5:
            self.session.disconnect(trio.current_time(), ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
            self._flush()
            with trio.move_on_after(GOODBYE_S):
                await self._idle.wait()
        self._end("left")

    async def run(self) -> None:
        """Keep a connection until cancelled.

        Raises:
          RefusedFilter: The message is one line for the operator.
        """
        while True:
            begun = trio.current_time()
            await self._connection(self._selector.advance())
            self._user.disconnected(self._reason)
            if self._refusal is not None:
                raise self._refusal
            if trio.current_time() - begun > STABLE_AFTER_S:
                self._delay.reset()
                self._selector.reset_hops()
            if self._selector.is_referred:
                continue  # at once: a Server Reference is followed
            await trio.sleep(self._delay.next())

    async def _connection(self, address: Address) -> None:
        """Run one attempt and its connection to the end; ``_reason`` holds the reason."""
        self._outgoing.clear()
        self.is_granted = False
        self._held_bytes = 0
        self._reason, self._ended, self._sends_reason = "", trio.Event(), False
        self.session.begin(trio.current_time(), self._options.bounds)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._time_loop)
                nursery.start_soon(self._live, address)
                await self._ended.wait()
                if self._sends_reason:
                    with trio.move_on_after(GOODBYE_S):
                        await self._idle.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.session.closed()
            self.is_granted = False

    async def _live(self, address: Address) -> None:
        try:
            transport = await open_transport(address, self._options.context, self._selector.check_reach)
        except ReferenceRefused as error:
            self._selector.refuse(str(address), error)
            self._end(f"the Server Reference {address} is not followed: {error}")
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        self._selector.peer_ip = transport.peer_ip
        try:
            connect = self._options.connect()
            self._version = connect.protocol_version
            self.session.opened(trio.current_time(), connect)
            self._flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_loop, transport)
                await self._read_loop(transport)  # the writer may have to send a last DISCONNECT: see _connection
        finally:
            with trio.CancelScope(shield=True):
                await transport.close()

    async def _read_loop(self, transport: Transport) -> None:
        while not self._ended.is_set():
            try:
                data = await transport.receive()
            except OSError as error:
                self._end(str(error))
                return
            if not data:
                self._end("the broker closed the connection")
                return
            self._handle(data)
            if self.session.in_flight >= PACED_FROM:
                await trio.sleep(PACE_S)

    async def _write_loop(self, transport: Transport) -> None:
        while True:
            self._flush()
            data, self._outgoing = bytes(self._outgoing), bytearray()
            if data:
                try:
                    await transport.send(data)
                except OSError:
                    return  # the reader detects the end, after the remaining bytes
                if len(data) >= LARGE_WRITE_BYTES:
                    self._user.writable()
            self._flush()
            if not self._outgoing:
                if not self._held_bytes:
                    self._idle.set()
                self._wake = trio.Event()
                await self._wake.wait()

    async def _time_loop(self) -> None:
        while not self._ended.is_set():
            await trio.sleep_until(self.session.next_deadline())
            self._handle(b"")

    def _handle(self, data: bytes) -> None:
        """Handle received bytes and the time, and each resulting event."""
        self.session.handle(trio.current_time(), data)
        ending: MustClose | None = None
        while (event := self.session.next_event()) is not None:
            if isinstance(event, MustClose):
                ending = event
            else:
                self._handle_event(event)
        if self.is_connected and not self._ended.is_set():
            self._user.writable()
        self._flush()
        if ending is not None:
            self._sends_reason = ending.reason == "protocol"  # by DISCONNECT, which is still unsent
            self._end(f"{ENDINGS[ending.reason]}: {ending.detail}" if ending.detail else ENDINGS[ending.reason])

    def _handle_event(self, event: Event) -> None:
        match event:
            case Accepted():
                self._subscribe(event.connack.session_present)
                self._user.connected(event)
            case PublishReceived(packet):
                if self.session.is_repeat(packet):
                    self.session.acknowledge(packet)
                else:
                    self._user.received(packet)
            case PublishAnswered(token, reason_code):
                self._user.answered(token, reason_code)
            case RequestAnswered(token, packet):
                if token == SUBSCRIBE_TOKEN:
                    self._on_granted(packet.reason_codes)
                elif token in self._pending_requests:
                    self._pending_requests.pop(token)(packet.reason_codes)
                else:
                    self._on_added_granted(self._added_pending.pop(token, ()), packet.reason_codes)
            case ConnectRefused(connack):
                code = connack.reason_code
                self._on_broker_disconnect(
                    f"the broker refused the connection: {self._code_text(code)}", code, connack.properties
                )
            case ServerDisconnect(packet):
                self._on_broker_disconnect(
                    f"the broker ended the connection: {self._code_text(packet.reason_code)}",
                    packet.reason_code,
                    packet.properties,
                )
            case MustClose():
                pass  # ``_handle`` handles it, after the output

    def _subscribe(self, session_present: bool) -> None:
        """Subscribe. A 3.1.1 session with the filters keeps them: another SUBSCRIBE would resend all retained
        messages.
        """
        filters = self._options.filters
        is_known = self.was_granted or bool(self._requested)
        if filters and not (self._version != 5 and session_present and is_known):
            identifier = self.session.next_identifier()
            self.session.request(Subscribe(identifier, list(filters)), SUBSCRIBE_TOKEN)
            self._requested = filters
        else:
            self._set_granted()
        self._added_pending.clear()
        self._pending_requests.clear()
        later = list(self._added_filters.values())
        for first in range(0, len(later), FILTERS_PER_SUBSCRIBE):
            self._subscribe_added(later[first : first + FILTERS_PER_SUBSCRIBE])

    def _subscribe_added(self, wanted: list[SubscriptionRequest]) -> None:
        self._last_token -= 1
        self._added_pending[self._last_token] = tuple(each.topic_filter for each in wanted)
        self.session.request(Subscribe(self.session.next_identifier(), wanted), self._last_token)

    def _on_added_granted(self, filters: tuple[str, ...], codes: list[int]) -> None:
        for topic_filter, code in zip(filters, codes, strict=False):
            if code >= FAILURE:
                self._added_filters.pop(topic_filter, None)
            if self._when_granted is not None:
                self._when_granted(topic_filter, code < FAILURE)

    def _on_granted(self, codes: list[int]) -> None:
        for wanted, code in zip(self._requested, codes, strict=False):
            if code >= FAILURE:
                self.refuse(f"{self.address} refuses the filter {wanted.topic_filter}: {self._code_text(code)}")
                return
            if self._options.full_qos and code < wanted.qos:
                text = f"{self.address} grants the filter {wanted.topic_filter} at QoS {code} only, not {wanted.qos}"
                self.refuse(text)
                return
        if len(codes) != len(self._requested):
            self.refuse(f"{self.address} answers {len(codes)} of {len(self._requested)} filters")
            return
        self._set_granted()

    def _set_granted(self) -> None:
        self.is_granted = True
        self.granted.set()

    def _on_broker_disconnect(self, reason: str, code: int, properties: Mapping[int, object]) -> None:
        reference = properties.get(PropertyId.SERVER_REFERENCE, "")
        if code in REDIRECTING and reference and isinstance(reference, str):
            self._selector.refer(reference)
        self._end(reason)

    def _code_text(self, code: int) -> str:
        names = ReasonCode if self._version == 5 else ConnectReturnCode
        try:
            return f"{names(code).name.lower().replace('_', ' ')} (0x{code:02x})"
        except ValueError:
            return f"code 0x{code:02x}"

    def _flush(self) -> None:
        output = b"".join(self.session.take_output())
        if self._keep is None:
            self._outgoing += output
        else:
            changes = self.session.take_changes()
            if not output and not changes:
                return
            self._held_bytes += len(output)
            self._keep(changes, partial(self._release, self._ended, output))
        if output and self._idle.is_set():
            self._idle = trio.Event()
        if self._outgoing:
            self._wake.set()

    def _release(self, connection: trio.Event, output: bytes) -> None:
        """Queue the held output, unless its connection has ended."""
        if connection is self._ended:
            self._held_bytes -= len(output)
            self._outgoing += output
            self._wake.set()

    def _end(self, reason: str) -> None:
        """End the present connection; the first reason is kept."""
        self._reason = self._reason or reason
        self._ended.set()
