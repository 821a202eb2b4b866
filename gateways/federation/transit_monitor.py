"""Detection of neighbours that acknowledge custody but do not forward messages.

Each agent counts received QoS 1 and 2 messages by capturing agent, and announces the counts in ``fd``. A sender
compares them with the messages that it passed to a neighbour for that agent. A neighbour through which no message of a
flow arrives for a while is distrusted. Pure logic. Decision: docs/adr/0187-who-passes-nothing-on.md.
"""

from __future__ import annotations

import math

from gateways.federation.agent_context import AgentContext
from gateways.federation.messages import ARRIVED_MAX, TopicMessage
from gateways.federation.overlay import NOT_PASSED_ON, Overlay

__all__ = ["TransitMonitor"]

FLOWS_MAX = 4_096  # monitored flows
AVOIDED_S = 30.0  # first time, then doubled
AVOIDED_S_MAX = 3_600.0
FORGIVEN_S = 2 * AVOIDED_S_MAX  # after which the next time counts as the first


class _Flow:
    """Messages of one agent for another one, through one neighbour.

    Attributes:
      open: Sent to the neighbour, and not counted by the destination since.
      since: Time of the last arrival, or of the first sending.
      arrived: The destination's last known count; None: it does not count them.
    """

    __slots__ = ("arrived", "open", "since")

    def __init__(self, arrived: int | None) -> None:
        self.open, self.since, self.arrived = 0, 0.0, arrived


class TransitMonitor:
    """See the module."""

    def __init__(self, parts: AgentContext, overlay: Overlay) -> None:
        self._parts, self._overlay = parts, overlay
        self._flows: dict[tuple[str, str, str], _Flow] = {}  # neighbour, destination, origin
        self._version = -1
        self._compare_at = math.inf

    def record_arrival(self, message: TopicMessage) -> None:
        """Count a message for this agent, even if it is dropped later."""
        arrived, origin = self._parts.arrived, message.agent
        if origin in arrived:
            arrived[origin] += 1
        elif len(arrived) < ARRIVED_MAX:
            arrived[origin] = 1

    def record_handoff(self, now: float, neighbour: str, message: TopicMessage, destinations: tuple[str, ...]) -> None:
        """Record a message sent to a neighbour."""
        for destination in destinations:
            if destination == neighbour:
                continue  # its own ``kept`` acknowledges it
            key = (neighbour, destination, message.agent)
            flow = self._flows.get(key)
            if flow is None:
                if len(self._flows) >= FLOWS_MAX:
                    continue
                flow = self._flows[key] = _Flow(self._announced_count(destination, message.agent))
                self._compare_at = min(self._compare_at, now + self._parts.settings.announce_s)
            if not flow.open:
                flow.since = now
            flow.open += 1

    def _announced_count(self, destination: str, origin: str) -> int | None:
        """Return a destination's announced count for an origin; None if it does not count."""
        known = self._overlay.agents.get(destination)
        if known is None or known.announcement.arrived is None:
            return None
        arrived = known.announcement.arrived
        return next((count for name, count in arrived if name == origin), 0 if len(arrived) < ARRIVED_MAX else None)

    def tick(self, now: float) -> None:
        """Compare counts once an interval; a route change resets all flows."""
        if self._version != self._overlay.version:  # messages may be delayed then
            self._version = self._overlay.version
            self._flows.clear()
            self._compare_at = math.inf
        if now < self._compare_at:
            return
        self._compare_at = now + self._parts.settings.announce_s
        withheld: dict[str, dict[str, int]] = {}
        for (neighbour, destination, origin), flow in self._flows.items():
            self._compare(now, flow, self._announced_count(destination, origin))
            if flow.open and now - flow.since > self.patience_s(destination):
                by_destination = withheld.setdefault(neighbour, {})
                by_destination[destination] = by_destination.get(destination, 0) + flow.open
                flow.open = 0
        for neighbour, by_destination in withheld.items():
            self._report_withholding(now, neighbour, by_destination)

    def _compare(self, now: float, flow: _Flow, announced: int | None) -> None:
        if announced is None or flow.arrived is None or announced < flow.arrived:
            flow.open = 0  # earlier messages cannot be assessed
        elif announced > flow.arrived:
            flow.open = max(0, flow.open - (announced - flow.arrived))
            flow.since = now
        flow.arrived = announced

    def patience_s(self, destination: str) -> float:
        """Return the allowed delay; it grows with the distance, so that the nearest agent acts first."""
        settings = self._parts.settings
        distance = self._overlay.distance(destination)
        return (settings.missed + 2 * distance) * settings.announce_s if distance is not None else math.inf

    def _report_withholding(self, now: float, neighbour: str, by_destination: dict[str, int]) -> None:
        parts, at = self._parts, self._parts.neighbours[neighbour]
        for destination, count in by_destination.items():
            parts.counts[NOT_PASSED_ON] += count
            if destination not in at.not_passed_on:
                parts.log("federation.not_passed_on", neighbour=neighbour, agent=destination, messages=count)
            at.not_passed_on[destination] = at.not_passed_on.get(destination, 0) + count
        if not self._overlay.has_detour(neighbour):
            return
        at.accused = at.accused + 1 if now - at.accused_at < FORGIVEN_S else 1
        at.accused_at = now
        seconds = min(AVOIDED_S * 2.0 ** min(at.accused - 1, 32), AVOIDED_S_MAX)
        self._overlay.distrust(now, neighbour, now + seconds, NOT_PASSED_ON)

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        return self._compare_at
