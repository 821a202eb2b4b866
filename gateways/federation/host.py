"""An agent's client at its broker: capture subscriptions, captured and injected messages, acknowledgements.

Maps effects of the core to the session and the session's events to the core. Output is sent only after its rows are
synced: it is held by ``leadership_turns.py``. A 3.1.1 broker has no subscription identifiers: two connections
distinguish filters (``gateways/federation/capture.py``). If these connect as bridges, a third one publishes markers,
since a bridge connection does not receive its own messages.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from gateways.client import GatewayClient, GatewayClientOptions
from gateways.federation.events import Captured, Event, HostAcked, HostDown, HostUp, Inject, MarkerSeen, Recapture
from gateways.federation.interest.interest import Adapter
from gateways.federation.session_rows import SessionRows, restore_session
from gateways.spool_rows import Write
from mqtt.client_session import Accepted, ClientState, StateChange
from mqtt.errors import MqttError
from mqtt.packets import Publish, Subscribe, SubscriptionRequest, Unsubscribe
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import FAILURE

__all__ = ["LocalBroker", "log_filters"]

OUTGOING_BYTES_MAX = 16 * 1024 * 1024  # unsent bytes: QoS 0 is dropped above it
MARKER_TOKEN = 0  # of a publish without an answer to the core
QOS = 2
RETAINED_NEVER = 2  # Retain Handling
DIGITS_MAX = 20
CONNECTIONS_MAX = 2

Rows = Sequence[tuple[bytes, bytes]]


class LocalBroker:
    """All connections to one broker.

    Attributes:
      is_up: All connections are up.
      reason: Why not, as text.
      counts: Events, by name.
    """

    def __init__(
        self,
        options: Sequence[GatewayClientOptions],
        adapter: Adapter,
        marker_topic: str,
        put_event: Callable[[Event], None],
        hold: Callable[[list[Write], Callable[[], None]], None],
        is_full: Callable[[], bool],
        wall_s: Callable[[], float],
        random: Random,
    ) -> None:
        """Set up; the first of ``options`` is connection 0.

        Args:
          put_event: Receives events for the core.
          hold: Receives rows, and a callback that releases the output after their commit.
          is_full: Whether the event queue is full, so that QoS 0 messages are dropped.
          wall_s: UTC.
        """
        self.counts: Counter[str] = Counter()
        self.is_up = False
        self.reason = "not connected yet"
        self.adapter = adapter
        self._marker_topic, self._put_event, self._hold, self._wall_s = marker_topic, put_event, hold, wall_s
        self._is_full = is_full
        self._is_5 = len(options) == 1
        self.connections = [_BrokerConnection(self, number, each, random) for number, each in enumerate(options)]
        self._present = True
        self._waiting: deque[Inject] = deque()  # until a connection has capacity
        self._open: dict[int, int] = {}  # refs in a session or waiting for it: connection
        self._released: set[int] = set()
        self._refs: dict[int, tuple[_BrokerConnection, Publish]] = {}
        self._last_ref = 0

    def restore(self, sent: Rows, taken: Rows) -> None:
        """Restore the sessions of a former process.

        Raises:
          ValueError: A row cannot be read.
        """
        for connection in self.connections:
            connection.rows = restore_session(connection.client.session, connection.number, sent, taken)
            for publish in connection.client.session.outbound.values():
                self._open[publish.token] = connection.number
                if publish.released:
                    self._released.add(publish.token)

    @property
    def is_listening(self) -> bool:
        """Whether the broker has granted the interest filters: later changes will be received."""
        return self.is_up and all(each.client.is_granted for each in self.connections)

    # --- effects of the core, performed before their commit: output is held for it

    def acknowledge(self, ref: int) -> None:
        """Acknowledge a message of the broker."""
        found = self._refs.pop(ref, None)
        if found is not None:
            connection, packet = found
            connection.client.acknowledge(packet)

    def inject(self, effect: Inject) -> None:
        """Publish a message, now or when there is capacity."""
        if not effect.ref:
            self._publish_at_once(effect)
            return
        if effect.ref in self._open:
            if effect.ref in self._released:
                self._put_event(HostAcked(effect.ref))
            return
        self._open[effect.ref] = effect.connection
        self._waiting.append(effect)
        self.pump()

    def recapture(self, effect: Recapture) -> None:
        """Change the subscriptions; the core repeats requests lost with a connection."""
        if not self.is_up or not all(each.client.is_connected for each in self.connections):
            return
        for topic_filter, connection in effect.unsubscribe:
            self._get_connection(connection).client.ask(Unsubscribe(0, [topic_filter]), _ignore)
        open_requests = {"count": len(effect.subscribe)}

        def granted(topic_filter: str, codes: list[int]) -> None:
            if not codes or codes[0] >= FAILURE:
                self._refuse(topic_filter, codes[0] if codes else FAILURE)
                return
            self.counts["granted_below_qos_2"] += codes[0] < QOS
            open_requests["count"] -= 1
            if open_requests["count"] == 0 and effect.marker:
                self._publish_marker(effect.marker)

        for each in effect.subscribe:
            wanted = SubscriptionRequest(each.filter, QOS)
            properties: Properties = {}
            if self._is_5:
                wanted.no_local, wanted.retain_as_published = each.no_local, True
                wanted.retain_handling = 0 if each.wants_retained else RETAINED_NEVER
                properties = {PropertyId.SUBSCRIPTION_IDENTIFIER: [each.identifier]}
            self._get_connection(each.connection).client.ask(
                Subscribe(0, [wanted], properties), partial(granted, each.filter)
            )
        if not effect.subscribe and effect.marker:
            self._publish_marker(effect.marker)

    def pump(self) -> None:
        """Publish pending messages within the capacity."""
        while (
            self._waiting
            and self.is_up
            and (client := self._get_connection(self._waiting[0].connection).client).has_capacity
        ):
            effect = self._waiting.popleft()
            if not self._publish(client, self._packet(effect), effect.ref):
                self._close_ref(effect.ref)
                self._put_event(HostAcked(effect.ref, is_refused=True))

    # --- connections

    def connection_up(self, connection: _BrokerConnection, is_present: bool) -> None:
        """Record a connection; when all are up, the core may start."""
        self._present = self._present and is_present
        if not is_present:
            for ref in [ref for ref, (at, _) in self._refs.items() if at is connection]:
                del self._refs[ref]
            self._waiting = deque(each for each in self._waiting if each.connection != connection.number)
            for ref in [ref for ref, at in self._open.items() if at == connection.number]:
                self._close_ref(ref)
        if all(each.client.is_connected for each in self.connections):
            self.is_up, self.reason = True, ""
            self.counts["connections"] += 1
            if self.adapter.reconnected(self._wall_s(), is_present):
                self.counts["interest_gaps"] += 1
            self._put_event(HostUp(self._present))
            self._present = True

    def connection_down(self, reason: str) -> None:
        """Record the end of a connection, or of an attempt."""
        self.reason = reason
        if self.is_up:
            self.is_up = False
            self.adapter.disconnected(self._wall_s())
            self._put_event(HostDown())

    def received(self, connection: _BrokerConnection, packet: Publish) -> None:
        """Handle a message of the broker."""
        topic = packet.topic_name
        if self.adapter.accepts(topic):
            self.adapter.received(self._wall_s(), topic, packet.payload)
            self.take_interest()
            connection.client.acknowledge(packet)
            return
        ref = 0
        if packet.qos:
            self._last_ref += 1
            ref = self._last_ref
            self._refs[ref] = (connection, packet)
        if topic == self._marker_topic:
            digits = packet.payload[:DIGITS_MAX]
            self._put_event(MarkerSeen(ref, int(digits) if digits.isdigit() else 0, connection.number))
            return
        if not packet.qos and self._is_full():
            self.counts["dropped_queue_full"] += 1
            return
        properties = dict(packet.properties)
        identifiers = properties.pop(PropertyId.SUBSCRIPTION_IDENTIFIER, ())
        assert isinstance(identifiers, list | tuple)
        self._put_event(
            Captured(
                ref, topic, packet.payload, packet.qos, packet.retain, properties, tuple(identifiers), connection.number
            )
        )

    def answered(self, token: int, reason_code: int) -> None:
        """Handle the broker's answer to an injected message."""
        if token == MARKER_TOKEN:
            return
        self._released.add(token)
        self._put_event(HostAcked(token, is_refused=reason_code >= FAILURE))

    def keep(self, connection: _BrokerConnection, changes: list[StateChange], then: Callable[[], None]) -> None:
        """Hold output until its rows are on disk."""
        for change in changes:
            if change.kind == "ended":
                self._close_ref(change.token)
        self._hold(connection.rows.writes(changes), then)

    def take_interest(self) -> None:
        """Report changes of interest to the core, and store them."""
        change = self.adapter.interest.take_change()
        if change is not None:
            self._put_event(change)
        rows = self.adapter.interest.take_rows()
        if rows:
            self._hold(rows, _no_op)

    def _close_ref(self, ref: int) -> None:
        self._open.pop(ref, None)
        self._released.discard(ref)

    def _publish_at_once(self, effect: Inject) -> None:
        client = self._get_connection(effect.connection).client
        if not (self.is_up and client.is_connected) or client.outgoing_bytes > OUTGOING_BYTES_MAX:
            self.counts["dropped_qos_0"] += 1
        else:
            self._publish(client, self._packet(effect), MARKER_TOKEN)

    def _publish(self, client: GatewayClient, packet: Publish, token: int) -> bool:
        """Publish; return False, counted, for a message that this broker does not support."""
        try:
            taken = client.publish(packet, token)
        except MqttError:
            if not client.is_connected:
                raise
            self.counts["dropped_unfit_for_the_broker"] += 1
            return False
        self.counts["dropped_too_large_for_the_broker"] += not taken
        return taken

    def _packet(self, effect: Inject) -> Publish:
        properties = dict(effect.properties) if self._is_5 else {}
        return Publish(effect.topic, effect.payload, effect.qos, effect.is_retained, properties=properties)

    def _publish_marker(self, number: int) -> None:
        client = self.connections[-1 if len(self.connections) > CONNECTIONS_MAX else 0].client
        if client.has_capacity:
            client.publish(Publish(self._marker_topic, b"%d" % number, QOS), MARKER_TOKEN)
        else:
            client.break_off("no send quota for the marker")  # the core requests it again on the next connection

    def _refuse(self, topic_filter: str, code: int) -> None:
        client = self.connections[0].client
        client.refuse(f"{client.address} refuses the filter {topic_filter} (0x{code:02x}): the agent needs all filters")

    def _get_connection(self, number: int) -> _BrokerConnection:
        return self.connections[min(number, CONNECTIONS_MAX - 1, len(self.connections) - 1)]


class _BrokerConnection:
    """One connection; a ``ClientUser``."""

    def __init__(self, host: LocalBroker, number: int, options: GatewayClientOptions, random: Random) -> None:
        self.number = number
        self._host = host
        self.client = GatewayClient(
            options, self, random, keep=lambda changes, then: host.keep(self, changes, then), counts=host.counts
        )
        self.rows = SessionRows(self.client.session, number)

    def connected(self, accepted: Accepted) -> None:
        """Record the connection."""
        self._host.connection_up(self, accepted.connack.session_present)

    def disconnected(self, reason: str) -> None:
        """Record the disconnection."""
        self._host.connection_down(reason)

    def received(self, packet: Publish) -> None:
        """Handle a message."""
        self._host.received(self, packet)

    def answered(self, token: int, reason_code: int) -> None:
        """Handle an answer."""
        self._host.answered(token, reason_code)

    def writable(self) -> None:
        """Publish pending messages."""
        if self.client.session.state is ClientState.CONNECTED:
            self._host.pump()


def log_filters(filters: Iterable[str]) -> tuple[SubscriptionRequest, ...]:
    """Return the subscriptions of an adapter."""
    return tuple(SubscriptionRequest(each, QOS, retain_handling=RETAINED_NEVER) for each in filters)


def _ignore(codes: list[int]) -> None:
    del codes


def _no_op() -> None:
    return None
