"""Delivery of messages to an agent's own broker: order, early messages, the window, and recovery after a lost session.

A message waits at most ``early_ms`` for the previous message of its topic. Rows and ids are in ``rows.py``. Pure logic.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable

from gateways.federation.agent_context import AgentContext
from gateways.federation.capture import Capture
from gateways.federation.echoes import ExpectedEchoes
from gateways.federation.events import Captured, Inject
from gateways.federation.loops import build_marks
from gateways.federation.messages import TopicMessage, unpack_properties
from gateways.federation.rows import HOST, Rows, StoredMessage, message_key
from mqtt.properties import PropertyId

__all__ = ["FederatedDelivery"]


class FederatedDelivery:
    """See the module.

    Attributes:
      is_up: The session with the broker is connected.
    """

    def __init__(
        self,
        parts: AgentContext,
        rows: Rows,
        echoes: ExpectedEchoes,
        capture: Capture,
        assert_retained: Callable[[float, TopicMessage], bool],
    ) -> None:
        self._parts, self._rows, self._echoes, self._assert_retained = parts, rows, echoes, assert_retained
        self._capture = capture
        self._has_echoes = not (parts.settings.has_no_local and parts.settings.has_identifiers)
        self._echoing: set[int] = set()  # in-flight refs with an expected echo
        self.is_up = False
        self._queue: deque[bytes] = deque()
        self._in_flight: dict[int, bytes] = {}
        self._refs: dict[int, bytes] = {}  # all messages owed to the broker
        self._last_ref = 0
        self._early: dict[bytes, list[bytes]] = {}  # id: messages waiting for it
        self._early_keys: set[bytes] = set()
        self._due: list[tuple[float, bytes, bytes]] = []  # deadline, waiting message, awaited id

    def begin(self) -> None:
        """Start numbering of this incarnation, and queue the spool's messages for the broker."""
        self._last_ref = self._parts.incarnation << 20
        for stored in self._rows.stored.values():
            if HOST in stored.owed:
                self._refs[stored.ref] = stored.key
                self._queue.append(stored.key)

    def take(self, now: float, stored: StoredMessage) -> None:
        """Add a message for the broker."""
        message = stored.message
        self._last_ref += 1
        self._rows.add_destination(stored, HOST, self._last_ref)
        self._refs[self._last_ref] = stored.key
        if message.after:
            before = message_key(message.agent, message.incarnation, message.after)
            if not self._rows.is_seen(before) or before in self._early_keys:
                self._early.setdefault(before, []).append(stored.key)
                self._early_keys.add(stored.key)
                heapq.heappush(self._due, (now + self._parts.settings.early_ms / 1000, stored.key, before))
                self._parts.counts["early"] += 1
                return
        self._enqueue(stored.key)

    def _enqueue(self, key: bytes) -> None:
        ready = [key]
        while ready:
            first = ready.pop()
            self._early_keys.discard(first)
            self._queue.append(first)
            ready.extend(reversed(self._early.pop(first, ())))

    def inject(self, now: float, message: TopicMessage, born_ms: int, ref: int) -> None:
        """Publish a message at the broker."""
        properties = unpack_properties(message.properties)
        if message.expiry_ms:
            left_ms = message.expiry_ms - (self._parts.wall_ms(now) - born_ms)
            properties[PropertyId.MESSAGE_EXPIRY_INTERVAL] = max(1, left_ms // 1000)
        is_repeat = ref > 0 and self._rows.may_be_repeat(now, born_ms)
        self._parts.counts["possible_duplicates"] += is_repeat
        named = build_marks(self._parts.settings.federation, message, self._parts.name, is_repeat)
        own = properties.get(PropertyId.USER_PROPERTY, [])
        assert isinstance(own, list)
        properties[PropertyId.USER_PROPERTY] = [*own, *named]
        is_retained = message.is_retained and self._assert_retained(now, message)
        if self._has_echoes:
            self._expect_echo(now, message, ref)
        self._parts.ready.effects.append(
            Inject(ref, message.topic, message.payload, message.qos, is_retained, properties, self._capture.connection)
        )
        self._parts.counts["injected"] += 1

    # --- echoes

    def _expect_echo(self, now: float, message: TopicMessage, ref: int) -> None:
        if self._capture.may_echo(message.topic):
            self._echoes.add(now, message.topic, message.payload, message.qos)
            self._echoing.add(ref)

    def expect_echoes(self, now: float) -> None:
        """Expect echoes of earlier messages that the changed filters may return."""
        for ref, key in self._in_flight.items() if self._has_echoes else ():
            stored = self._rows.stored.get(key)
            if stored is not None and ref not in self._echoing:
                self._expect_echo(now, stored.message, ref)

    def is_echo(self, now: float, captured: Captured) -> bool:
        """Return whether a captured message is an echo; it is then counted off."""
        return self._has_echoes and self._echoes.take(now, captured.topic, captured.payload, captured.qos)

    # --- the broker

    def host_up(self, is_present: bool) -> None:
        """Start publishing; without a session all in-flight messages are sent again."""
        self.is_up = True
        if not is_present:
            self._queue.extendleft(reversed(self._in_flight.values()))
            self._in_flight.clear()
            self._echoing.clear()

    def acked(self, ref: int, is_refused: bool) -> StoredMessage | None:
        """Record that the broker accepted or refused a message; return it."""
        self._in_flight.pop(ref, None)
        self._echoing.discard(ref)
        key = self._refs.pop(ref, None)
        stored = self._rows.stored.get(key) if key is not None else None
        if stored is None or HOST not in stored.owed:
            return None
        if is_refused:
            self._parts.drop("host_refused")
        self._rows.settle(stored, HOST)
        return stored

    def discard(self, stored: StoredMessage) -> None:
        """Remove an expired message."""
        self._refs.pop(stored.ref, None)
        self._in_flight.pop(stored.ref, None)
        self._echoing.discard(stored.ref)

    def tick(self, now: float) -> None:
        """Release early messages after their wait, and fill the broker's window."""
        while self._due and self._due[0][0] <= now:
            _, key, before = heapq.heappop(self._due)
            if key in self._early_keys:
                others = self._early.get(before, [])
                if key in others:
                    others.remove(key)
                    if not others:
                        del self._early[before]
                self._parts.counts["early_given_up"] += 1
                self._enqueue(key)
        while self.is_up and self._queue and len(self._in_flight) < self._parts.settings.host_window:
            stored = self._rows.stored.get(self._queue.popleft())
            if stored is None or HOST not in stored.owed or stored.ref in self._in_flight:
                continue
            self._in_flight[stored.ref] = stored.key
            self.inject(now, stored.message, stored.born_ms, stored.ref)

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        return self._due[0][0] if self._due else math.inf
