"""Watch whether messages that neighbours took into custody come on to their destinations.

Each agent counts the messages of QoS 1 and 2 that came to it, by the agent that captured them, and says the counts in
its ``fd``. Whoever hands a message to a neighbour for an agent behind it compares: a neighbour through which nothing of
a flow comes for a while withholds it. Pure logic. Decision: docs/adr/0187-who-passes-nothing-on.md.
"""

from __future__ import annotations

import math

from gateways.federation.agent_context import AgentContext
from gateways.federation.messages import ARRIVED_MAX, TopicMessage
from gateways.federation.overlay import NOT_PASSED_ON, Overlay

__all__ = ["TransitMonitor"]

FLOWS_MAX = 4_096  # that are watched; the others are not
AVOIDED_S = 30.0  # the first time, then doubled
AVOIDED_S_MAX = 3_600.0
FORGIVEN_S = 2 * AVOIDED_S_MAX  # after which the next time is a first one


class _Flow:
    """Messages of one agent for another one, through one neighbour.

    Attributes:
        open: Handed to the neighbour, and not among what the destination counted since.
        since: When one of them came last, or the first of them was handed over.
        arrived: The destination's count when it was last looked at; None: it does not count them.
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
        self._look_at = math.inf

    def arrived(self, message: TopicMessage) -> None:
        """Count a message that is for this agent, whatever becomes of it here."""
        arrived, origin = self._parts.arrived, message.agent
        if origin in arrived:
            arrived[origin] += 1
        elif len(arrived) < ARRIVED_MAX:
            arrived[origin] = 1

    def handed(self, now: float, neighbour: str, message: TopicMessage, destinations: tuple[str, ...]) -> None:
        """Note that a neighbour is given a message."""
        for destination in destinations:
            if destination == neighbour:
                continue  # its own ``kept`` says it
            key = (neighbour, destination, message.agent)
            flow = self._flows.get(key)
            if flow is None:
                if len(self._flows) >= FLOWS_MAX:
                    continue
                flow = self._flows[key] = _Flow(self._told(destination, message.agent))
                self._look_at = min(self._look_at, now + self._parts.settings.announce_s)
            if not flow.open:
                flow.since = now
            flow.open += 1

    def _told(self, destination: str, origin: str) -> int | None:
        """Return how many messages of an agent came to another one, by its own word; None if it does not count them."""
        known = self._overlay.agents.get(destination)
        if known is None or known.word.arrived is None:
            return None
        arrived = known.word.arrived
        return next((count for name, count in arrived if name == origin), 0 if len(arrived) < ARRIVED_MAX else None)

    def tick(self, now: float) -> None:
        """Compare, once an interval; after a change of ways everything begins anew."""
        if self._version != self._overlay.version:  # messages may take a while to find their way then
            self._version = self._overlay.version
            self._flows.clear()
            self._look_at = math.inf
        if now < self._look_at:
            return
        self._look_at = now + self._parts.settings.announce_s
        withheld: dict[str, dict[str, int]] = {}
        for (neighbour, destination, origin), flow in self._flows.items():
            self._compare(now, flow, self._told(destination, origin))
            if flow.open and now - flow.since > self.patience_s(destination):
                for_whom = withheld.setdefault(neighbour, {})
                for_whom[destination] = for_whom.get(destination, 0) + flow.open
                flow.open = 0
        for neighbour, for_whom in withheld.items():
            self._accuse(now, neighbour, for_whom)

    def _compare(self, now: float, flow: _Flow, told: int | None) -> None:
        if told is None or flow.arrived is None or told < flow.arrived:
            flow.open = 0  # nothing can be said of what was handed over until now
        elif told > flow.arrived:
            flow.open = max(0, flow.open - (told - flow.arrived))
            flow.since = now
        flow.arrived = told

    def patience_s(self, destination: str) -> float:
        """Return how long nothing may come on; nearer agents judge first, and others see the way change."""
        settings = self._parts.settings
        distance = self._overlay.distance(destination)
        return (settings.missed + 2 * distance) * settings.announce_s if distance is not None else math.inf

    def _accuse(self, now: float, neighbour: str, for_whom: dict[str, int]) -> None:
        parts, at = self._parts, self._parts.neighbours[neighbour]
        for destination, count in for_whom.items():
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
        return self._look_at
