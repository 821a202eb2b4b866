"""Subscriptions of an agent at its broker: disjoint, and changed without a lost or doubled copy.

Brokers send one copy per overlapping subscription, so the agent subscribes to disjoint hulls. While a set changes, old
and new filters stand side by side: the old filters' copies count before the marker came back, the new ones' after it.
That is exact where the broker has one order for a session's queue. A broker without subscription identifiers does not
tell which filter a copy is for: there the whole set moves to another connection (*lane*), and the lane tells old from
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
BETWEEN = b"\0"  # a filter and its lane, in the key of a row
PAST = BETWEEN  # row of the lanes that the marker has passed, while another one waits for it
LAST = b""  # row of the last identifier, which no marker that is on its way may have again
MARKER_LATE_S = 10.0
NARROW_AFTER_S = 2.0  # a filter that nobody wants any more stands so long, should it be wanted again


class CaptureState(enum.Enum):
    """State of one subscription."""

    ON = "its copies count"
    NEW = "its copies count from the marker on, and before it for topics that no old filter matches"
    OLD = "its copies count up to the marker"
    GONE = "the broker was told to end it, and may not have heard that"


@dataclass(slots=True)
class CaptureSubscription:
    """One subscription of the capture set; its key is (filter, lane)."""

    identifier: int
    standing: CaptureState


class Capture:
    """See the module.

    Attributes:
        is_changing: The marker has not come back: retained messages may be the broker's old ones.
        is_deferred: It came back while copies waited for room: it is acknowledged when those are taken.
        lane: Of the filters that are granted: messages are handed over there.
    """

    def __init__(self, parts: AgentContext) -> None:
        self._parts = parts
        self.marker_topic = f"{MARKER_PREFIX}{parts.name}/marker"
        self._held: dict[tuple[str, int], CaptureSubscription] = {}  # by filter and lane
        self._by_identifier: dict[int, list[tuple[str, CaptureSubscription]]] = {}
        self._wanted: set[str] = set()
        self._target: set[str] = set()
        self._last_identifier = MARKER_IDENTIFIER
        self._marker = 0
        self._lanes_past: set[int] = set()
        self._gone: set[tuple[str, int]] = set()
        self._ending: set[tuple[str, int]] = set()  # of those, the ones told before the present marker's filters
        self._change_at = math.inf
        self._is_host_up = self._is_late_said = False
        self._marker_since = 0.0
        self._markers: list[int] = []  # refs of those that came back and are not acknowledged
        self.is_deferred = False
        self.lane = 0

    @property
    def is_changing(self) -> bool:
        """Return whether a marker is on its way."""
        return self._marker != 0

    def filters(self) -> list[str]:
        """Return the filters whose copies come: the broker has granted them, for it sent a marker behind them back."""
        return sorted({each for (each, _), held in self._held.items() if held.standing is not CaptureState.NEW})

    def asked(self) -> list[str]:
        """Return the filters that the broker was asked for, or will be when it is there, and has not granted yet."""
        return sorted({each for each, _ in self._held} - set(self.filters()))

    def may_echo(self, topic: str) -> bool:
        """Return whether a message that is handed over on ``lane`` may come back as a copy that counts."""
        settings = self._parts.settings
        if settings.has_no_local and settings.has_identifiers:
            return False
        silent = self.lane if settings.has_no_local else -1  # No Local is of a connection: the other one has a copy
        return any(at != silent and matches(each, topic) for each, at in self._held)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take back what the spool has; a change that was under way goes on with its marker."""
        past = b""
        for key, value in rows:
            if key == PAST:
                past = value
                continue
            if key == LAST:
                self._last_identifier = max(self._last_identifier, int.from_bytes(value, "big"))
                continue
            place = (key.partition(BETWEEN)[0].decode(), value[4])
            held = CaptureSubscription(int.from_bytes(value[:4], "big"), CaptureState[value[5:].decode()])
            if held.standing is CaptureState.GONE:
                self._gone.add(place)
                continue
            self._held[place] = held
            if key != _row(place):  # of a release that had one row for both lanes
                self._parts.delete("capture", key)
                self._put(place, held)
            self._last_identifier = max(self._last_identifier, held.identifier)
            if held.standing is CaptureState.NEW:
                self._marker = max(self._marker, held.identifier)
        if past and int.from_bytes(past[:4], "big") == self._marker:
            self._lanes_past = set(past[4:])
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

    def tick(self, now: float) -> bool:
        """Begin a change that is due, and return whether one began; say once that a marker does not come back."""
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
            return self.is_changing
        return False

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        return self._change_at if not self._marker and self._is_host_up else math.inf

    def _change(self) -> None:
        target, present = self._hulls(), {each for each, _ in self._held}
        added = sorted(target - present)
        if not added:
            self._remove([place for place in self._held if place[0] not in target])
            self._index()
            return
        has_identifiers = self._parts.settings.has_identifiers
        lane = 0 if has_identifiers else 1 - self.lane if self._held else self.lane
        if not has_identifiers:
            added = sorted(target)  # the whole set moves to the other lane
        for place, held in self._held.items():
            if place[1] != lane or place[0] not in target:
                self._put(place, CaptureSubscription(held.identifier, CaptureState.OLD))
        self._begin([(each, lane) for each in added])

    def _begin(self, places: list[tuple[str, int]]) -> None:
        """Ask for filters, each under an identifier of its own where the broker has those, and for a marker."""
        self._last_identifier += 1
        for number, place in enumerate(places):
            self._last_identifier += number > 0 and self._parts.settings.has_identifiers
            self._put(place, CaptureSubscription(self._last_identifier, CaptureState.NEW))
        self._marker = self._last_identifier
        self._lanes_past.clear()
        self._ending = set(self._gone)
        self._index()
        self._subscribe(places)

    def _hulls(self) -> set[str]:
        return DisjointHulls(self._wanted).filters

    def _put(self, place: tuple[str, int], held: CaptureSubscription) -> None:
        self._held[place] = held
        self._gone.discard(place)
        self._store(place, held)

    def _store(self, place: tuple[str, int], held: CaptureSubscription) -> None:
        value = held.identifier.to_bytes(4, "big") + bytes([place[1]]) + held.standing.name.encode()
        self._parts.put("capture", _row(place), value)

    def _remove(self, places: Iterable[tuple[str, int]]) -> None:
        gone = tuple(sorted(places))
        for place in gone:
            self._store(place, CaptureSubscription(self._held.pop(place).identifier, CaptureState.GONE))
        self._gone.update(gone)
        if gone:
            self._parts.ready.effects.append(Recapture((), gone))

    def _index(self) -> None:
        self._by_identifier.clear()
        for (each, _), held in self._held.items():
            self._by_identifier.setdefault(held.identifier, []).append((each, held))
        granted = [lane for (_, lane), held in self._held.items() if held.standing is not CaptureState.NEW]
        self.lane = next(iter(granted), next((lane for _, lane in self._held), self.lane))

    def _subscribe(self, places: Iterable[tuple[str, int]]) -> None:
        marker = CaptureFilter(self.marker_topic, MARKER_IDENTIFIER, no_local=False, wants_retained=False)
        markers = [marker._replace(lane=lane) for lane in sorted({lane for _, lane in self._held}) or (0,)]
        wanted = [CaptureFilter(each, self._held[each, lane].identifier, True, True, lane) for each, lane in places]
        self._parts.ready.effects.append(Recapture((*markers, *wanted), (), self._marker))

    # --- the broker

    def host_up(self, is_present: bool) -> None:
        """Subscribe anew at a broker that has no session; go on with a change at one that has."""
        self._is_host_up = True
        if is_present:
            if self._gone:
                self._parts.ready.effects.append(Recapture((), tuple(sorted(self._gone))))
            new = [place for place, held in self._held.items() if held.standing is CaptureState.NEW]
            if not new and self._held:
                # Retained messages of QoS 0 that came while the agent was away are in no queue: ask for all again.
                self._last_identifier += 1
                self._marker = self._last_identifier
                self._parts.put("capture", LAST, self._marker.to_bytes(4, "big"))
                self._lanes_past.clear()
                self._ending = set(self._gone)
                new = list(self._held)
            if new:
                self._subscribe(sorted(new))
            return
        self._markers.clear()
        self.is_deferred = False
        former, lane = dict(self._held), self.lane
        self._held.clear()
        places = sorted({(each, lane) for (each, _), held in former.items() if held.standing is not CaptureState.OLD})
        for place in former:
            self._parts.delete("capture", _row(place))
        others = (former.keys() | self._gone) - set(places)
        if others and not self._parts.settings.has_identifiers:  # of two sessions one may stand
            self._parts.ready.effects.append(Recapture((), tuple(sorted(others))))
        self._begin(places)

    def host_down(self) -> None:
        """Note that the connection ended."""
        self._is_host_up = False
        self._ending.clear()

    def marker_seen(self, ref: int, number: int, lane: int, *, may_end: bool = True) -> bool:
        """Note that the marker came back; return True when a change is over by it.

        It is not acknowledged while copies that came before it are not: if the process died then, they would come again
        by filters that are forgotten. So it comes again where it stood, behind them.
        """
        if not self._marker or number != self._marker:
            self._parts.ready.effects.append(AckHost(ref))
            return False
        self._markers.append(ref)
        self._lanes_past.add(lane)
        self.is_deferred = not may_end
        return may_end and self.go_on()

    def go_on(self) -> bool:
        """Acknowledge markers that came back: what was before them is taken; return True when a change is over."""
        self.is_deferred = False
        self._parts.ready.effects += [AckHost(ref) for ref in self._markers]
        self._markers.clear()
        if not {lane for _, lane in self._held} <= self._lanes_past:
            value = self._marker.to_bytes(4, "big") + bytes(sorted(self._lanes_past))
            self._parts.put("capture", PAST, value)
            return False
        if len(self._lanes_past) > 1:
            self._parts.delete("capture", PAST)
        self._marker = 0
        for place in [each for each in self._ending & self._gone if each[1] in self._lanes_past]:
            self._gone.discard(place)
            self._parts.delete("capture", _row(place))
        for place, held in self._held.items():
            if held.standing is CaptureState.NEW:
                self._put(place, CaptureSubscription(held.identifier, CaptureState.ON))
        self._remove([place for place, held in self._held.items() if held.standing is CaptureState.OLD])
        self._index()
        return True

    def counts(self, topic: str, identifiers: tuple[int, ...], lane: int) -> bool:
        """Return whether a copy is the one of its publication that counts."""
        if not identifiers and self._parts.settings.has_identifiers:
            return any(matches(each, topic) for each, _ in self._held)
        is_past = lane in self._lanes_past if self._marker else True
        for held in self._held_for(topic, identifiers, lane):
            if held.standing is CaptureState.ON or (held.standing is CaptureState.NEW and is_past):
                return True
            if held.standing is CaptureState.OLD and not is_past:
                return True
            if held.standing is CaptureState.NEW and not self._is_old(topic):
                return True
        return False

    def _held_for(self, topic: str, identifiers: tuple[int, ...], lane: int) -> Iterator[CaptureSubscription]:
        """Yield the subscriptions that a copy was sent for."""
        if not self._parts.settings.has_identifiers:
            for (each, at), held in self._held.items():
                if at == lane and matches(each, topic):
                    yield held
            return
        for identifier in identifiers:
            found = self._by_identifier.get(identifier, ())
            for each, held in found:
                if len(found) == 1 or matches(each, topic):
                    yield held

    def _is_old(self, topic: str) -> bool:
        return any(held.standing is CaptureState.OLD and matches(each, topic) for (each, _), held in self._held.items())


def _row(place: tuple[str, int]) -> bytes:
    topic_filter, lane = place
    return topic_filter.encode() + (BETWEEN + bytes((lane,)) if lane else b"")
