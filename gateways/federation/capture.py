"""Subscriptions of an agent at its broker: disjoint, and changed without losing or duplicating a copy.

Brokers send one copy per overlapping subscription, so the agent subscribes to disjoint hulls. During a change, old and
new filters are subscribed together. Copies of old filters count before the marker is received, those of new filters
after it. This is exact if the broker keeps one order for a session's queue. A broker without subscription identifiers
does not indicate the filter of a copy. There the whole set moves to another connection, which distinguishes old from
new. Pure logic. Decisions: docs/adr/0086-federation.md, docs/adr/0138-lanes-of-a-3-1-1-broker.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateways.federation.agent_context import AgentContext
from gateways.federation.events import MARKER_PREFIX, AckHost, CaptureFilter, Recapture
from gateways.federation.filters import DisjointHulls
from mqtt.topics import matches

__all__ = ["Capture", "CaptureState"]

MARKER_IDENTIFIER = 1
BETWEEN = b"\0"  # between filter and connection, in the key of a row
PAST = BETWEEN  # row of the connections that received the marker, while another one waits for it
LAST = b""  # row of the last identifier, which a pending marker must not reuse
MARKER_LATE_S = 10.0
NARROW_AFTER_S = 2.0  # an unwanted filter stays subscribed this long, in case it is wanted again


class CaptureState(enum.Enum):
    """State of one subscription."""

    ON = "its copies count"
    NEW = "its copies count after the marker, and before it for topics without a matching old filter"
    OLD = "its copies count before the marker"
    GONE = "an UNSUBSCRIBE was sent and may not have been received"


@dataclass(slots=True)
class CaptureSubscription:
    """One subscription of the capture set; its key is (filter, connection)."""

    identifier: int
    state: CaptureState


class Capture:
    """See the module.

    Attributes:
      is_changing: The marker is pending: retained messages may be old ones of the broker.
      is_deferred: The marker was received while copies were backlogged; it is acknowledged after them.
      connection: Connection of the granted filters, used for publishing.
    """

    def __init__(self, parts: AgentContext) -> None:
        self._parts = parts
        self.marker_topic = f"{MARKER_PREFIX}{parts.name}/marker"
        self._subscriptions: dict[tuple[str, int], CaptureSubscription] = {}  # by filter and connection
        self._by_identifier: dict[int, list[tuple[str, CaptureSubscription]]] = {}
        self._wanted: set[str] = set()
        self._target: set[str] = set()
        self._last_identifier = MARKER_IDENTIFIER
        self._marker = 0
        self._marker_lanes: set[int] = set()
        self._unsubscribed: set[tuple[str, int]] = set()
        self._ending: set[tuple[str, int]] = set()  # unsubscribed before the filters of the present marker
        self._change_at = math.inf
        self._is_host_up = self._is_late_logged = False
        self._marker_since = 0.0
        self._markers: list[int] = []  # refs of received, unacknowledged markers
        self.is_deferred = False
        self.connection = 0

    @property
    def is_changing(self) -> bool:
        """Return whether a marker is pending."""
        return self._marker != 0

    def filters(self) -> list[str]:
        """Return the granted filters: the broker returned a marker sent after them."""
        return sorted(
            {
                each
                for (each, _), subscription in self._subscriptions.items()
                if subscription.state is not CaptureState.NEW
            }
        )

    def pending_filters(self) -> list[str]:
        """Return the filters not granted yet."""
        return sorted({each for each, _ in self._subscriptions} - set(self.filters()))

    def may_echo(self, topic: str) -> bool:
        """Return whether a message published on ``connection`` may return as a counted copy."""
        settings = self._parts.settings
        if settings.has_no_local and settings.has_identifiers:
            return False
        # No Local applies to one connection: the other one receives a copy
        silent = self.connection if settings.has_no_local else -1
        return any(at != silent and matches(each, topic) for each, at in self._subscriptions)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the state of the spool; a pending change resumes with its marker."""
        past = b""
        for key, value in rows:
            if key == PAST:
                past = value
                continue
            if key == LAST:
                self._last_identifier = max(self._last_identifier, int.from_bytes(value, "big"))
                continue
            place = (key.partition(BETWEEN)[0].decode(), value[4])
            subscription = CaptureSubscription(int.from_bytes(value[:4], "big"), CaptureState[value[5:].decode()])
            if subscription.state is CaptureState.GONE:
                self._unsubscribed.add(place)
                continue
            self._subscriptions[place] = subscription
            if key != _row_key(place):  # of a release with one row for both connections
                self._parts.delete("capture", key)
                self._put(place, subscription)
            self._last_identifier = max(self._last_identifier, subscription.identifier)
            if subscription.state is CaptureState.NEW:
                self._marker = max(self._marker, subscription.identifier)
        if past and int.from_bytes(past[:4], "big") == self._marker:
            self._marker_lanes = set(past[4:])
        self._index()

    # --- the set

    def set_wanted(self, now: float, wanted: Iterable[str]) -> None:
        """Set the filters that other agents want."""
        found = set(wanted)
        if found == self._wanted:
            return
        is_wider = not found <= self._wanted
        self._wanted = found
        self._change_at = min(self._change_at, now if is_wider else now + NARROW_AFTER_S)

    def tick(self, now: float) -> bool:
        """Start a due change, and return whether one started; log a late marker once."""
        if self._marker and self._is_host_up and not self.is_deferred:
            self._marker_since = self._marker_since or now
            if now > self._marker_since + MARKER_LATE_S and not self._is_late_logged:
                self._is_late_logged = True
                self._parts.drop("marker_late")
                self._parts.log("federation.not_captured", topic=self.marker_topic)
        else:
            self._marker_since = 0.0
        if now >= self._change_at and not self._marker and self._is_host_up:
            self._change_at = math.inf
            self._change()
            return self.is_changing
        return False

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        return self._change_at if not self._marker and self._is_host_up else math.inf

    def _change(self) -> None:
        target, present = self._hulls(), {each for each, _ in self._subscriptions}
        added = sorted(target - present)
        if not added:
            self._remove([place for place in self._subscriptions if place[0] not in target])
            self._index()
            return
        has_identifiers = self._parts.settings.has_identifiers
        connection = 0 if has_identifiers else 1 - self.connection if self._subscriptions else self.connection
        if not has_identifiers:
            added = sorted(target)  # the whole set moves to the other connection
        for place, subscription in self._subscriptions.items():
            if place[1] != connection or place[0] not in target:
                self._put(place, CaptureSubscription(subscription.identifier, CaptureState.OLD))
        self._begin([(each, connection) for each in added])

    def _begin(self, places: list[tuple[str, int]]) -> None:
        """Request filters, with separate identifiers if supported, and a marker."""
        self._last_identifier += 1
        for number, place in enumerate(places):
            self._last_identifier += number > 0 and self._parts.settings.has_identifiers
            self._put(place, CaptureSubscription(self._last_identifier, CaptureState.NEW))
        self._marker = self._last_identifier
        self._marker_lanes.clear()
        self._ending = set(self._unsubscribed)
        self._index()
        self._subscribe(places)

    def _hulls(self) -> set[str]:
        return DisjointHulls(self._wanted).filters

    def _put(self, place: tuple[str, int], subscription: CaptureSubscription) -> None:
        self._subscriptions[place] = subscription
        self._unsubscribed.discard(place)
        self._store(place, subscription)

    def _store(self, place: tuple[str, int], subscription: CaptureSubscription) -> None:
        value = subscription.identifier.to_bytes(4, "big") + bytes([place[1]]) + subscription.state.name.encode()
        self._parts.put("capture", _row_key(place), value)

    def _remove(self, places: Iterable[tuple[str, int]]) -> None:
        gone = tuple(sorted(places))
        for place in gone:
            self._store(place, CaptureSubscription(self._subscriptions.pop(place).identifier, CaptureState.GONE))
        self._unsubscribed.update(gone)
        if gone:
            self._parts.ready.effects.append(Recapture((), gone))

    def _index(self) -> None:
        self._by_identifier.clear()
        for (each, _), subscription in self._subscriptions.items():
            self._by_identifier.setdefault(subscription.identifier, []).append((each, subscription))
        granted = [
            connection
            for (_, connection), subscription in self._subscriptions.items()
            if subscription.state is not CaptureState.NEW
        ]
        self.connection = next(
            iter(granted), next((connection for _, connection in self._subscriptions), self.connection)
        )

    def _subscribe(self, places: Iterable[tuple[str, int]]) -> None:
        marker = CaptureFilter(self.marker_topic, MARKER_IDENTIFIER, no_local=False, wants_retained=False)
        markers = [
            marker._replace(connection=connection)
            for connection in sorted({connection for _, connection in self._subscriptions}) or (0,)
        ]
        wanted = [
            CaptureFilter(each, self._subscriptions[each, connection].identifier, True, True, connection)
            for each, connection in places
        ]
        self._parts.ready.effects.append(Recapture((*markers, *wanted), (), self._marker))

    # --- the broker

    def host_up(self, is_present: bool) -> None:
        """Subscribe again at a broker without session; resume a change at one with a session."""
        self._is_host_up = True
        if is_present:
            if self._unsubscribed:
                self._parts.ready.effects.append(Recapture((), tuple(sorted(self._unsubscribed))))
            new = [
                place for place, subscription in self._subscriptions.items() if subscription.state is CaptureState.NEW
            ]
            if not new and self._subscriptions:
                # QoS 0 retained messages sent during an absence are not queued: request all again.
                self._last_identifier += 1
                self._marker = self._last_identifier
                self._parts.put("capture", LAST, self._marker.to_bytes(4, "big"))
                self._marker_lanes.clear()
                self._ending = set(self._unsubscribed)
                new = list(self._subscriptions)
            if new:
                self._subscribe(sorted(new))
            return
        self._markers.clear()
        self.is_deferred = False
        former, connection = dict(self._subscriptions), self.connection
        self._subscriptions.clear()
        places = sorted(
            {
                (each, connection)
                for (each, _), subscription in former.items()
                if subscription.state is not CaptureState.OLD
            }
        )
        for place in former:
            self._parts.delete("capture", _row_key(place))
        others = (former.keys() | self._unsubscribed) - set(places)
        if others and not self._parts.settings.has_identifiers:  # one of two sessions may still exist
            self._parts.ready.effects.append(Recapture((), tuple(sorted(others))))
        self._begin(places)

    def host_down(self) -> None:
        """Record the disconnection."""
        self._is_host_up = False
        self._ending.clear()

    def marker_seen(self, ref: int, number: int, connection: int, *, may_end: bool = True) -> bool:
        """Handle the marker; return True if it completes a change.

        It is acknowledged only after all earlier copies. Otherwise, after a crash, those would be redelivered for
        filters that are already forgotten. An unacknowledged marker is redelivered behind them.
        """
        if not self._marker or number != self._marker:
            self._parts.ready.effects.append(AckHost(ref))
            return False
        self._markers.append(ref)
        self._marker_lanes.add(connection)
        self.is_deferred = not may_end
        return may_end and self.complete_change()

    def complete_change(self) -> bool:
        """Acknowledge received markers after all earlier copies; return True if a change is complete."""
        self.is_deferred = False
        self._parts.ready.effects += [AckHost(ref) for ref in self._markers]
        self._markers.clear()
        if not {connection for _, connection in self._subscriptions} <= self._marker_lanes:
            value = self._marker.to_bytes(4, "big") + bytes(sorted(self._marker_lanes))
            self._parts.put("capture", PAST, value)
            return False
        if len(self._marker_lanes) > 1:
            self._parts.delete("capture", PAST)
        self._marker = 0
        for place in [each for each in self._ending & self._unsubscribed if each[1] in self._marker_lanes]:
            self._unsubscribed.discard(place)
            self._parts.delete("capture", _row_key(place))
        for place, subscription in self._subscriptions.items():
            if subscription.state is CaptureState.NEW:
                self._put(place, CaptureSubscription(subscription.identifier, CaptureState.ON))
        self._remove(
            [place for place, subscription in self._subscriptions.items() if subscription.state is CaptureState.OLD]
        )
        self._index()
        return True

    def is_counted(self, topic: str, identifiers: tuple[int, ...], connection: int) -> bool:
        """Return whether a copy is the counted one of its publication."""
        if not identifiers and self._parts.settings.has_identifiers:
            return any(matches(each, topic) for each, _ in self._subscriptions)
        is_past = connection in self._marker_lanes if self._marker else True
        for subscription in self._subscriptions_for(topic, identifiers, connection):
            if subscription.state is CaptureState.ON or (subscription.state is CaptureState.NEW and is_past):
                return True
            if subscription.state is CaptureState.OLD and not is_past:
                return True
            if subscription.state is CaptureState.NEW and not self._is_old(topic):
                return True
        return False

    def _subscriptions_for(
        self, topic: str, identifiers: tuple[int, ...], connection: int
    ) -> Iterator[CaptureSubscription]:
        """Yield the subscriptions that a copy was sent for."""
        if not self._parts.settings.has_identifiers:
            for (each, at), subscription in self._subscriptions.items():
                if at == connection and matches(each, topic):
                    yield subscription
            return
        for identifier in identifiers:
            found = self._by_identifier.get(identifier, ())
            for each, subscription in found:
                if len(found) == 1 or matches(each, topic):
                    yield subscription

    def _is_old(self, topic: str) -> bool:
        return any(
            subscription.state is CaptureState.OLD and matches(each, topic)
            for (each, _), subscription in self._subscriptions.items()
        )


def _row_key(place: tuple[str, int]) -> bytes:
    topic_filter, connection = place
    return topic_filter.encode() + (BETWEEN + bytes((connection,)) if connection else b"")
