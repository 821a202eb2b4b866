"""Subscriptions of an agent at its broker: disjoint, and changed without a lost or doubled copy.

Brokers send one copy per overlapping subscription, so the agent subscribes to disjoint hulls. While a set changes, old
and new filters stand side by side: the old filters' copies count before the marker came back, the new ones' after it.
That is exact where the broker has one order for a session's queue. Pure logic. Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

from gateways.federation.events import MARKER_PREFIX, CaptureFilter, Recapture
from gateways.federation.filters import DisjointHulls
from gateways.federation.parts import Parts
from mqtt.topics import matches

__all__ = ["Capture", "Standing"]

MARKER_IDENTIFIER = 1
LAST = b""  # row of the last identifier, which no marker that is on its way may have again
MARKER_LATE_S = 10.0
NARROW_AFTER_S = 2.0  # a filter that nobody wants any more stands so long, should it be wanted again


class Standing(enum.Enum):
    """State of one subscription."""

    ON = "its copies count"
    NEW = "its copies count from the marker on, and before it for topics that no old filter matches"
    OLD = "its copies count up to the marker"


@dataclass(slots=True)
class Held:
    """One filter of the capture set."""

    identifier: int
    lane: int
    standing: Standing


class Capture:
    """See the module.

    Attributes:
        is_changing: The marker has not come back: retained messages may be the broker's old ones.
        is_deferred: It came back while copies waited for room: the old filters stay until those are taken.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.marker_topic = f"{MARKER_PREFIX}{parts.name}/marker"
        self._held: dict[str, Held] = {}
        self._earlier: dict[tuple[str, int], Held] = {}  # old filters that a new one of the same text stands beside
        self._by_identifier: dict[int, list[tuple[str, Held]]] = {}
        self._wanted: set[str] = set()
        self._target: set[str] = set()
        self._last_identifier = MARKER_IDENTIFIER
        self._marker = 0
        self._lanes_past: set[int] = set()
        self._gone: set[tuple[str, int]] = set()
        self._change_at = math.inf
        self._is_host_up = self._is_late_said = False
        self._marker_since = 0.0
        self.is_deferred = False

    @property
    def is_changing(self) -> bool:
        """Return whether a marker is on its way."""
        return self._marker != 0

    def filters(self) -> list[str]:
        """Return the filters whose copies come: the broker has granted them, for it sent a marker behind them back."""
        earlier = {topic_filter for topic_filter, _ in self._earlier}
        return sorted({each for each, held in self._held.items() if held.standing is not Standing.NEW} | earlier)

    def asked(self) -> list[str]:
        """Return the filters that the broker was asked for, or will be when it is there, and has not granted yet."""
        return sorted(set(self._held) - set(self.filters()))

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take back what the spool has; a change that was under way goes on with its marker."""
        for key, value in rows:
            if key == LAST:
                self._last_identifier = max(self._last_identifier, int.from_bytes(value, "big"))
                continue
            lane, standing = value[4], Standing[value[5:].decode()]
            held = Held(int.from_bytes(value[:4], "big"), lane, standing)
            self._held[key.decode()] = held
            self._last_identifier = max(self._last_identifier, held.identifier)
            if standing is Standing.NEW:
                self._marker = max(self._marker, held.identifier)
        self._index()

    # --- the set

    def want(self, now: float, wanted: Iterable[str]) -> None:
        """Take the filters that other agents want."""
        found = set(wanted)
        if found == self._wanted:
            return
        is_wider = not found <= self._wanted
        self._wanted = found
        self._change_at = min(self._change_at, now if is_wider else now + NARROW_AFTER_S)

    def tick(self, now: float) -> None:
        """Begin a change that is due; say once that a marker does not come back."""
        if self._marker and self._is_host_up and not self.is_deferred:
            self._marker_since = self._marker_since or now
            if now > self._marker_since + MARKER_LATE_S and not self._is_late_said:
                self._is_late_said = True
                self._parts.drop("marker_late")
                self._parts.log("federation.not_captured", topic=self.marker_topic)
        else:
            self._marker_since = 0.0
        if now >= self._change_at and not self._marker and self._is_host_up:
            self._change_at = math.inf
            self._change()

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        return self._change_at if not self._marker and self._is_host_up else math.inf

    def _change(self) -> None:
        target = self._hulls()
        if target == set(self._held):
            return
        lane = 0
        added = sorted(target - set(self._held))
        if not self._parts.settings.has_identifiers:  # the whole set moves to the other lane
            lane = 1 - max((held.lane for held in self._held.values()), default=1)
            added = sorted(target)
            self._earlier = {(each, held.lane): held for each, held in self._held.items() if each in target}
        removed = [each for each in self._held if each not in target]
        if not added:
            self._remove([(each, self._held.pop(each).lane) for each in removed])
            self._index()
            return
        for each in removed:
            self._put(each, Held(self._held[each].identifier, self._held[each].lane, Standing.OLD))
        self._last_identifier += 1
        self._marker = self._last_identifier
        self._lanes_past.clear()
        for held in self._earlier.values():
            held.standing = Standing.OLD
        for each in added:
            if self._parts.settings.has_identifiers and each != added[0]:
                self._last_identifier += 1
                self._marker = self._last_identifier
            self._put(each, Held(self._last_identifier, lane, Standing.NEW))
        self._index()
        self._subscribe(added, wants_retained=True)

    def _hulls(self) -> set[str]:
        return DisjointHulls(self._wanted).filters

    def _put(self, topic_filter: str, held: Held) -> None:
        self._held[topic_filter] = held
        value = held.identifier.to_bytes(4, "big") + bytes([held.lane]) + held.standing.name.encode()
        self._parts.put("capture", topic_filter.encode(), value)

    def _remove(self, filters: Iterable[tuple[str, int]]) -> None:
        gone = tuple(sorted(filters))
        for each, _ in gone:
            if each not in self._held:
                self._parts.delete("capture", each.encode())
        self._gone.update(gone)
        if gone:
            self._parts.ready.effects.append(Recapture((), gone))

    def _index(self) -> None:
        self._by_identifier.clear()
        for each, held in self._held.items():
            self._by_identifier.setdefault(held.identifier, []).append((each, held))
        for (each, _), held in self._earlier.items():
            self._by_identifier.setdefault(held.identifier, []).append((each, held))

    def _subscribe(self, filters: Iterable[str], wants_retained: bool) -> None:
        marker = CaptureFilter(self.marker_topic, MARKER_IDENTIFIER, no_local=False, wants_retained=False)
        lanes = sorted({self._held[each].lane for each in filters} | {held.lane for held in self._earlier.values()})
        markers = [marker._replace(lane=lane) for lane in lanes or (0,)]
        wanted = [
            CaptureFilter(each, self._held[each].identifier, True, wants_retained, self._held[each].lane)
            for each in filters
        ]
        self._parts.ready.effects.append(Recapture((*markers, *wanted), (), self._marker))

    # --- the broker

    def host_up(self, is_present: bool) -> None:
        """Subscribe anew at a broker that has no session; go on with a change at one that has."""
        self._is_host_up = True
        if is_present:
            gone = tuple(sorted(each for each in self._gone if each[0] not in self._held))
            self._gone.clear()
            if gone:
                self._parts.ready.effects.append(Recapture((), gone))
            new = [each for each, held in self._held.items() if held.standing is Standing.NEW]
            if not new and self._held:
                # Retained messages of QoS 0 that came while the agent was away are in no queue: ask for all again.
                self._last_identifier += 1
                self._marker = self._last_identifier
                self._parts.put("capture", LAST, self._marker.to_bytes(4, "big"))
                self._lanes_past.clear()
                new = list(self._held)
            if new:
                self._subscribe(sorted(new), wants_retained=True)
            return
        self._gone.clear()
        self._earlier.clear()
        for each in [each for each, held in self._held.items() if held.standing is Standing.OLD]:
            del self._held[each]
            self._parts.delete("capture", each.encode())
        self._marker = self._last_identifier = self._last_identifier + 1
        self._lanes_past.clear()
        lane = 0
        for each in list(self._held):
            if self._parts.settings.has_identifiers:
                self._last_identifier += 1
            self._put(each, Held(self._last_identifier, lane, Standing.NEW))
        self._marker = self._last_identifier
        self._index()
        self._subscribe(sorted(self._held), wants_retained=True)

    def host_down(self) -> None:
        """Note that the connection ended."""
        self._is_host_up = False

    def marker_seen(self, number: int, lane: int, *, may_end: bool = True) -> bool:
        """Note that the marker came back; return True when a change is over by it.

        A change does not end while copies that came before the marker are not acknowledged: if the process died then,
        they would come again by filters that are forgotten. Another marker is sent when they are; see ``go_on``.
        """
        if not self._marker or number != self._marker:
            return False
        if not may_end:
            self.is_deferred = True
            return False
        self._lanes_past.add(lane)
        lanes = {held.lane for held in self._held.values()} | {held.lane for held in self._earlier.values()}
        if not lanes <= self._lanes_past and lanes:
            return False
        self._marker = 0
        old = [(each, held.lane) for each, held in self._held.items() if held.standing is Standing.OLD]
        old += list(self._earlier)
        for each, held in list(self._held.items()):
            if held.standing is Standing.OLD:
                del self._held[each]
            elif held.standing is Standing.NEW:
                self._put(each, Held(held.identifier, held.lane, Standing.ON))
        self._earlier.clear()
        self._index()
        self._remove(old)
        return True

    def go_on(self) -> None:
        """Send the marker once more: what waited for room is taken."""
        self.is_deferred = False
        if self._marker and self._is_host_up:
            self._parts.ready.effects.append(Recapture((), (), self._marker))

    def counts(self, topic: str, identifiers: tuple[int, ...], lane: int) -> bool:
        """Return whether a copy is the one of its publication that counts."""
        if not identifiers:
            return any(matches(each, topic) for each in self._held)
        for identifier in identifiers:
            for topic_filter, held in self._by_identifier.get(identifier, ()):
                if len(self._by_identifier[identifier]) > 1 and not matches(topic_filter, topic):
                    continue
                is_past = lane in self._lanes_past if self._marker else True
                if held.standing is Standing.ON or (held.standing is Standing.NEW and is_past):
                    return True
                if held.standing is Standing.OLD and not is_past:
                    return True
                if held.standing is Standing.NEW and not self._is_old(topic):
                    return True
        return False

    def _is_old(self, topic: str) -> bool:
        old = [each for each, held in self._held.items() if held.standing is Standing.OLD]
        old += [each for each, _ in self._earlier]
        return any(matches(each, topic) for each in old)
