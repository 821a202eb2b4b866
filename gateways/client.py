"""The trio shell of one MQTT client session: it opens ways to a broker, for ever, and moves the session's bytes.

Decides which address is tried next and when, that every filter must be granted, and which Server Reference is followed
(``gateways/addresses.py``). Packets, timers and what is sent again are ``mqtt/client_session.py``; what a message means
is the user's, who is called synchronously and sends by ``publish`` and ``acknowledge``.
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

Keep = Callable[[list[StateChange], Callable[[], None]], None]  # make changes durable, and then call

BOUNDS = ClientBounds(connect_timeout_s=10.0, goodbye_timeout_s=1.0, silence_s=45.0, window=1024)
SUBSCRIBE_TOKEN = -1  # tokens of publishes are 0 or greater; below are those of filters that came later
TOGETHER_MAX = 64  # filters of one SUBSCRIBE on a new connection
REDIRECTING = (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED)
ENDINGS = {
    "refused": "the broker refused the connection",
    "silent": "the broker does not answer",
    "protocol": "the broker broke the protocol",
    "local": "closed",
}
MANY_BYTES = 256 * 1024  # users stop to publish above a bound of their own, which is greater
GOODBYE_S = 1.0  # for a last DISCONNECT to leave
PACED_FROM, PACE_S = 64, 0.001  # with so many messages under way, reads wait, so that one read brings several
WELL_AFTER_S = 5.0  # a connection that held so long does not count as a failed attempt


class RefusedFilter(UserError):
    """The broker does not grant a filter; half a gateway is not run."""


class ClientUser(Protocol):
    """The gateway that owns a client; called between two awaits, and waits for nothing."""

    def connected(self, accepted: Accepted) -> None:
        """A connection stands, and every filter is asked for."""

    def parted(self, reason: str) -> None:
        """An attempt failed, or a connection ended; the reason in words."""

    def received(self, packet: Publish) -> None:
        """A message came; ``GatewayClient.acknowledge`` when it is done."""

    def answered(self, token: int, reason_code: int) -> None:
        """A publish of QoS 1 or 2 was answered."""

    def room(self) -> None:
        """There may be room for more publishes."""


# Messages of QoS 2 under way at a broker of 3.1.1, which tells no Receive Maximum: Mosquitto 2.0 ends who has more, and
# again whenever it comes back with them.
WINDOW_3_1_1 = 20


@dataclass(frozen=True, slots=True)
class GatewayClientOptions:
    """One client of one broker.

    Attributes:
        addresses: Tried in turn.
        connect: Makes the CONNECT of the next connection, with client ID, version and properties.
        filters: Subscribed on each connection.
        context: TLS; None for the system's authorities.
        bounds: Of each connection.
        server_references: Hosts beside ``addresses`` that the broker may send this client to, with its credentials:
            ``host``, ``host:port`` or ``*`` (MQTT 5.0 section 4.11).
        full_qos: A filter that is granted at less than its QoS counts as refused.
    """

    addresses: tuple[Address, ...]
    connect: Callable[[], Connect]
    filters: tuple[SubscriptionRequest, ...] = ()
    context: ssl.SSLContext | None = None
    bounds: ClientBounds = field(default=BOUNDS)
    server_references: tuple[str, ...] = ()
    full_qos: bool = False


class GatewayClient:
    """One client identifier at one broker; ``run`` ends by cancellation or ``RefusedFilter`` only.

    Attributes:
        session: To ask whether there is room, and for identifiers.
        granted: Set when the broker has granted every filter once.
        is_granted: The present connection stands, and the broker has granted every filter of its session.
        was_granted: A former process asked for the same filters, and kept its session.
        counts: Server References of brokers: ``references_followed``, ``references_refused``.
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
            when_granted: Told the answer to each filter of ``subscribe``.
            counts: The user's, to count there too.
            keep: Where the session outlives its process: what leaves waits until the changes before it are durable.
        """
        self.session = ClientSession(is_kept=keep is not None)
        self.granted = trio.Event()
        self.is_granted = False
        self.was_granted = False
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._options, self._user = options, user
        self._selector = AddressSelector(options.addresses, options.server_references, self.counts)
        self._delay = RetryDelay(random)
        self._outgoing = bytearray()  # bounded by the session's windows and ``outgoing_bytes``, which the user heeds
        self._idle = trio.Event()  # set while nothing waits to be sent
        self._wake = trio.Event()
        self._keep = keep
        self._held_bytes = 0  # that wait for ``keep``
        self._asked: tuple[SubscriptionRequest, ...] = ()
        self._when_granted = when_granted
        self._later: dict[str, SubscriptionRequest] = {}  # filters beside those of the options
        self._later_asked: dict[int, tuple[str, ...]] = {}  # by token, on this connection
        self._later_token = SUBSCRIBE_TOKEN
        self._asked_then: dict[int, Callable[[list[int]], None]] = {}  # by token, on this connection
        self._version = 5
        self._reason = ""
        self._tells_why = False
        self._refusal: RefusedFilter | None = None
        self._over = trio.Event()  # of the present connection

    @property
    def address(self) -> Address:
        """Return the door of the present connection or attempt."""
        return self._selector.current

    @property
    def filters(self) -> tuple[SubscriptionRequest, ...]:
        """Return what is subscribed on each connection."""
        return self._options.filters

    @property
    def is_connected(self) -> bool:
        """Whether messages may be published."""
        return self.session.state is ClientState.CONNECTED

    @property
    def has_room(self) -> bool:
        """Whether a QoS 1 or 2 message may be published now."""
        return self.session.has_room

    @property
    def outgoing_bytes(self) -> int:
        """Return the bytes that wait for the kernel: QoS 0 messages have no other bound."""
        return len(self._outgoing) + self._held_bytes

    def publish(self, packet: Publish, token: int) -> bool:
        """Send a message on the present connection; for QoS 1 and 2 the session has room.

        Returns:
            False for a message that is too large for this broker.
        """
        if packet.qos:
            packet.packet_identifier = self.session.next_identifier()
        taken = self.session.publish(packet, token)
        self._flush()
        return taken

    def subscribe(self, wanted: SubscriptionRequest) -> None:
        """Want one more filter, now and on each later connection."""
        self._later[wanted.topic_filter] = wanted
        if self.is_connected:
            self._ask_later([wanted])
            self._flush()

    def unsubscribe(self, topic_filter: str) -> None:
        """Want a filter of ``subscribe`` no more."""
        if self._later.pop(topic_filter, None) is not None and self.is_connected:
            self._later_token -= 1
            self.session.request(Unsubscribe(self.session.next_identifier(), [topic_filter]), self._later_token)
            self._flush()

    def ask(self, packet: Subscribe | Unsubscribe, then: Callable[[list[int]], None]) -> None:
        """Send a request on the present connection, and on no other; ``then`` takes the codes of its answer."""
        packet.packet_identifier = self.session.next_identifier()
        self._later_token -= 1
        self._asked_then[self._later_token] = then
        self.session.request(packet, self._later_token)
        self._flush()

    def acknowledge(self, packet: Publish) -> bool:
        """Note that a message is done; after the end of its connection the session remembers it.

        Returns:
            Whether it is handed over now, and not for a second time.
        """
        first = self.session.acknowledge(packet)
        if self._keep is None:
            self._wake.set()  # the writer takes all answers of a turn together
        else:
            self._flush()
        return first

    def pass_over(self, packet: Publish) -> None:
        """Leave a message, and all behind it, to the broker, which sends them on the next connection."""
        self.session.pass_over(packet)

    def break_off(self, reason: str) -> None:
        """End the present connection at once; ``run`` opens the next one."""
        self._end(reason)

    def refuse(self, text: str) -> None:
        """End the connection, and ``run`` with it: this broker does not do what the user needs."""
        self._refusal = RefusedFilter(text)
        self._end(text)

    async def leave(self) -> None:
        """End the present connection in order; the will is published, for it says that this client is away."""
        if self.is_connected and self._version == 5:
            self.session.disconnect(trio.current_time(), ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
            self._flush()
            with trio.move_on_after(GOODBYE_S):
                await self._idle.wait()
        self._end("left")

    async def run(self) -> None:
        """Keep a connection, for ever.

        Raises:
            RefusedFilter: One line for the operator.
        """
        while True:
            begun = trio.current_time()
            await self._connection(self._selector.advance())
            self._user.parted(self._reason)
            if self._refusal is not None:
                raise self._refusal
            if trio.current_time() - begun > WELL_AFTER_S:
                self._delay.reset()
                self._selector.reset_hops()
            if self._selector.is_referred:
                continue  # at once: this broker sent us
            await trio.sleep(self._delay.next())

    async def _connection(self, address: Address) -> None:
        """Run one attempt, and the connection that it leads to, to its end; ``_reason`` says how it ended."""
        self._outgoing.clear()
        self.is_granted = False
        self._held_bytes = 0
        self._reason, self._over, self._tells_why = "", trio.Event(), False
        self.session.begin(trio.current_time(), self._options.bounds)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._time_loop)
                nursery.start_soon(self._live, address)
                await self._over.wait()
                if self._tells_why:
                    with trio.move_on_after(GOODBYE_S):
                        await self._idle.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.session.closed()
            self.is_granted = False

    async def _live(self, address: Address) -> None:
        try:
            transport = await open_transport(address, self._options.context, self._selector.judge)
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
                await self._read_loop(transport)  # the writer may have a last DISCONNECT to send: see _connection
        finally:
            with trio.CancelScope(shield=True):
                await transport.close()

    async def _read_loop(self, transport: Transport) -> None:
        while not self._over.is_set():
            try:
                data = await transport.receive()
            except OSError as error:
                self._end(str(error))
                return
            if not data:
                self._end("the broker closed the connection")
                return
            self._take(data)
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
                    return  # the reader finds the end, after what was still readable
                if len(data) >= MANY_BYTES:
                    self._user.room()
            self._flush()
            if not self._outgoing:
                if not self._held_bytes:
                    self._idle.set()
                self._wake = trio.Event()
                await self._wake.wait()

    async def _time_loop(self) -> None:
        while not self._over.is_set():
            await trio.sleep_until(self.session.next_deadline())
            self._take(b"")

    def _take(self, data: bytes) -> None:
        """Take bytes, and the time; act on each event."""
        self.session.handle(trio.current_time(), data)
        ending: MustClose | None = None
        while (event := self.session.next_event()) is not None:
            if isinstance(event, MustClose):
                ending = event
            else:
                self._act(event)
        if self.is_connected and not self._over.is_set():
            self._user.room()
        self._flush()
        if ending is not None:
            self._tells_why = ending.reason == "protocol"  # by DISCONNECT, which waits to be sent
            self._end(f"{ENDINGS[ending.reason]}: {ending.detail}" if ending.detail else ENDINGS[ending.reason])

    def _act(self, event: Event) -> None:
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
                    self._granted(packet.reason_codes)
                elif token in self._asked_then:
                    self._asked_then.pop(token)(packet.reason_codes)
                else:
                    self._later_granted(self._later_asked.pop(token, ()), packet.reason_codes)
            case ConnectRefused(connack):
                code = connack.reason_code
                self._left(f"the broker refused the connection: {self._words(code)}", code, connack.properties)
            case ServerDisconnect(packet):
                self._left(
                    f"the broker ended the connection: {self._words(packet.reason_code)}",
                    packet.reason_code,
                    packet.properties,
                )
            case MustClose():
                pass  # ``_take`` acts on it, behind the output

    def _subscribe(self, session_present: bool) -> None:
        """Subscribe; a session of 3.1.1 that has the filters is left alone, or all retained messages came again."""
        filters = self._options.filters
        is_known = self.was_granted or bool(self._asked)
        if filters and not (self._version != 5 and session_present and is_known):
            identifier = self.session.next_identifier()
            self.session.request(Subscribe(identifier, list(filters)), SUBSCRIBE_TOKEN)
            self._asked = filters
        else:
            self._all_granted()
        self._later_asked.clear()
        self._asked_then.clear()
        later = list(self._later.values())
        for first in range(0, len(later), TOGETHER_MAX):
            self._ask_later(later[first : first + TOGETHER_MAX])

    def _ask_later(self, wanted: list[SubscriptionRequest]) -> None:
        self._later_token -= 1
        self._later_asked[self._later_token] = tuple(each.topic_filter for each in wanted)
        self.session.request(Subscribe(self.session.next_identifier(), wanted), self._later_token)

    def _later_granted(self, filters: tuple[str, ...], codes: list[int]) -> None:
        for topic_filter, code in zip(filters, codes, strict=False):
            if code >= FAILURE:
                self._later.pop(topic_filter, None)
            if self._when_granted is not None:
                self._when_granted(topic_filter, code < FAILURE)

    def _granted(self, codes: list[int]) -> None:
        for wanted, code in zip(self._asked, codes, strict=False):
            if code >= FAILURE:
                self.refuse(f"{self.address} refuses the filter {wanted.topic_filter}: {self._words(code)}")
                return
            if self._options.full_qos and code < wanted.qos:
                text = f"{self.address} grants the filter {wanted.topic_filter} at QoS {code} only, not {wanted.qos}"
                self.refuse(text)
                return
        if len(codes) != len(self._asked):
            self.refuse(f"{self.address} answers {len(codes)} of {len(self._asked)} filters")
            return
        self._all_granted()

    def _all_granted(self) -> None:
        self.is_granted = True
        self.granted.set()

    def _left(self, reason: str, code: int, properties: Mapping[int, object]) -> None:
        reference = properties.get(PropertyId.SERVER_REFERENCE, "")
        if code in REDIRECTING and reference and isinstance(reference, str):
            self._selector.refer(reference)
        self._end(reason)

    def _words(self, code: int) -> str:
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
            self._keep(changes, partial(self._release, self._over, output))
        if output and self._idle.is_set():
            self._idle = trio.Event()
        if self._outgoing:
            self._wake.set()

    def _release(self, connection: trio.Event, output: bytes) -> None:
        """Let go what ``keep`` held, unless its connection is gone."""
        if connection is self._over:
            self._held_bytes -= len(output)
            self._outgoing += output
            self._wake.set()

    def _end(self, reason: str) -> None:
        """End the present connection; the first reason counts."""
        self._reason = self._reason or reason
        self._over.set()
