"""Overlay of a federation: live neighbours, known agents, and the next hops to each of them.

Each agent floods its neighbours (fd); distances and next hops come from a breadth-first search over links that both
ends announce. Resolves duplicate identifiers (rc), and handles the management core (ca) and departures (tu). Pure
logic. Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from gateways.federation.agent_context import AgentContext, Neighbour
from gateways.federation.events import FederationLinkUp
from gateways.federation.messages import (
    DISTANCE_MAX,
    NEIGHBOURS_MAX,
    VERSION,
    CoreAnnouncement,
    Federate,
    HelloBack,
    NeighbourHello,
    Reconsider,
    TopologyUpdate,
)

__all__ = ["NOT_KEPT", "NOT_PASSED_ON", "Overlay"]

ANNOUNCE_GAP_S = 0.1  # minimum interval of own fd, however often neighbours change
NOT_KEPT, NOT_PASSED_ON = "not_kept", "not_passed_on"  # reasons of distrust
AGENTS_MAX = 1024  # further agents are ignored
UPDATE_EPOCHS = 4096  # remembered operators' updates


@dataclass(slots=True)
class KnownMember:
    """The newest announcement of another agent."""

    announcement: Federate
    last_seen: float


class Overlay:
    """See the module.

    Attributes:
      agents: Other agents seen within three intervals, by name.
      version: Increases when a next hop may have changed.
      core_announcement: Newest announcement of the management core.
    """

    def __init__(self, parts: AgentContext) -> None:
        self._parts = parts
        self.agents: dict[str, KnownMember] = {}
        self.version = 0
        self.core_announcement: CoreAnnouncement | None = None
        self._seq, self._core_seq, self._epoch = 1, 0, 0
        self._announced = -math.inf
        self._announce_at = 0.0
        self._core_at = 0.0
        self._updates: dict[tuple[str, int, int], None] = {}
        self._announced_members: frozenset[str] = frozenset()
        self._reconsidered: set[tuple[int, str]] = set()
        self._hops: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._live: list[tuple[int, str]] = []
        self._hops_version = -1

    # --- neighbours

    def link_up(self, now: float, event: FederationLinkUp) -> None:
        """Register a linked neighbour and send it all known announcements."""
        parts = self._parts
        at = parts.neighbours.setdefault(event.neighbour, Neighbour(event.neighbour))
        if at.incarnation != event.incarnation:  # a new process, without former accusations
            at.not_passed_on, at.accused = {}, 0
        at.incarnation, at.link, at.is_linked = event.incarnation, event.link, True
        at.set_policy(event.policy)
        self._hello(now, at)
        self._parts.send(at.name, self._own_announcement(0))
        for known in self.agents.values():
            if known.announcement.agent != at.name and known.announcement.distance < DISTANCE_MAX:
                parts.send(at.name, _forwarded(known.announcement))
        if self.core_announcement is not None and self.core_announcement.distance < DISTANCE_MAX:
            parts.send(at.name, _forwarded_announcement(self.core_announcement))

    def link_down(self, now: float, neighbour: str) -> None:
        """Record the disconnection of a link."""
        at = self._parts.neighbours.get(neighbour)
        if at is not None:
            at.is_linked = False
            self._set_up(now, at, False)

    def hello(self, neighbour: str, message: NeighbourHello) -> None:
        """Answer a hello."""
        self._parts.send(neighbour, HelloBack(message.seq))

    def hello_back(self, now: float, neighbour: str, message: HelloBack) -> None:
        """Record that a neighbour answers."""
        at = self._parts.neighbours[neighbour]
        if message.seq == at.hello_seq and at.last_seen < at.hello_at:
            at.round_trip_ms = (now - at.hello_at) * 1000
        elif message.seq > at.hello_seq:
            return self._parts.drop("hello_back")
        at.last_seen = now
        return self._set_up(now, at, True)

    def distrust(self, now: float, neighbour: str, until: float, why: str) -> None:
        """Exclude a neighbour as next hop until a time."""
        at = self._parts.neighbours[neighbour]
        at.distrusted_until, at.distrusted_for = until, why
        self._changed(now)

    def trust(self, now: float, neighbour: str) -> None:
        """Record a custody acknowledgement: ends a distrust for missing ones."""
        at = self._parts.neighbours[neighbour]
        if at.distrusted_for == NOT_KEPT:
            at.distrusted_until, at.distrusted_for = 0.0, ""
            self._changed(now)

    def up(self) -> list[str]:
        """Return the usable neighbours, sorted by name."""
        return sorted(name for name, at in self._parts.neighbours.items() if at.is_up and not at.distrusted_until)

    def _hello(self, now: float, at: Neighbour) -> None:
        at.hello_seq += 1
        at.hello_at = now
        self._parts.send(at.name, NeighbourHello(at.hello_seq))

    def _set_up(self, now: float, at: Neighbour, is_up: bool) -> None:
        if at.is_up is not is_up:
            at.is_up = is_up
            self._changed(now)

    def _changed(self, now: float) -> None:
        self.version += 1
        self._announce_at = min(self._announce_at, max(now, self._announced + ANNOUNCE_GAP_S))

    # --- agents

    def federate(self, now: float, neighbour: str, message: Federate) -> None:
        """Apply an agent's announcement; a new one is forwarded."""
        parts = self._parts
        if message.distance == 0 and message.agent != neighbour:
            return parts.refuse(neighbour, "identity")
        if message.agent == parts.name:
            if (message.incarnation, message.seq) > (parts.incarnation, self._seq):
                parts.drop("own_name")
                parts.log("federation.name_taken", agent=parts.name, neighbour=neighbour)
            return None
        known = self.agents.get(message.agent)
        if known is not None and _age(known.announcement) >= _age(message):
            if _age(known.announcement) == _age(message) and known.announcement.distance > message.distance:
                known.announcement = message  # the same announcement over a shorter path
            return None
        if known is None and len(self.agents) >= AGENTS_MAX:
            return parts.drop("agents")
        is_change = (
            known is None
            or known.announcement.neighbours != message.neighbours
            or known.announcement.incarnation != message.incarnation
            or known.announcement.id != message.id
        )
        self.agents[message.agent] = KnownMember(message, now)
        if is_change:
            self.version += 1
            self._compare_ids(now, message)
        if message.distance < DISTANCE_MAX:
            parts.flood(_forwarded(message), neighbour)
        return None

    def _compare_ids(self, now: float, announcement: Federate) -> None:
        parts = self._parts
        if announcement.id == parts.id:
            if announcement.agent < parts.name:
                self._draw(now)
            else:
                self._send_reconsider(Reconsider(announcement.id, parts.name, announcement.agent))
        for other in self.agents.values():
            if other.announcement.id == announcement.id and other.announcement.agent != announcement.agent:
                lower, greater = sorted((other.announcement.agent, announcement.agent))
                self._send_reconsider(Reconsider(announcement.id, lower, greater))

    def _send_reconsider(self, message: Reconsider) -> None:
        if (message.id, message.greater) not in self._reconsidered:
            self._reconsidered.add((message.id, message.greater))
            self._send_towards(message.greater, message)

    def _send_towards(self, agent: str, message: Reconsider) -> None:
        for hop in self.next_hops(agent)[:1]:
            self._parts.send(hop, message)

    def _draw(self, now: float) -> None:
        parts = self._parts
        parts.id = parts.random.getrandbits(63) + 1
        parts.put("agent", b"id", parts.id.to_bytes(8, "big"))
        parts.drop("ids_drawn")
        self._changed(now)

    def reconsider(self, now: float, message: Reconsider) -> None:
        """Draw a new id if this agent is the greater name; otherwise forward the message."""
        if message.greater == self._parts.name:
            if message.id == self._parts.id:
                self._draw(now)
        elif message.distance < DISTANCE_MAX:
            self._send_towards(
                message.greater, Reconsider(message.id, message.lower, message.greater, message.distance + 1)
            )

    def _own_announcement(self, distance: int) -> Federate:
        parts = self._parts
        return Federate(
            parts.name,
            parts.id,
            parts.incarnation,
            self._seq,
            distance,
            VERSION,
            parts.settings.addresses,
            tuple(self.up()[:NEIGHBOURS_MAX]),
            tuple(parts.arrived.items()),
        )

    def announce(self, now: float) -> None:
        """Flood a new announcement of this agent."""
        self._seq += 1
        self._announced, self._announce_at = now, now + self._parts.settings.announce_s
        self._parts.flood(self._own_announcement(0))

    # --- distances

    def next_hops(self, agent: str) -> tuple[str, ...]:
        """Return the neighbours at the least distance to an agent; empty if unreachable, or for this agent."""
        return self._routes().get(agent, (0, ()))[1]

    def path(self, agent: str, through: str) -> list[str]:
        """Return the agents of a shortest path to an agent through a next hop, from the announcements."""
        before = {self._parts.name: "", through: self._parts.name}
        ahead = [through]
        for name in ahead:
            known = self.agents.get(name)
            for other in known.announcement.neighbours if known is not None else ():
                if other not in before and self._is_link(other, name):
                    before[other] = name
                    ahead.append(other)
        found = [agent] if agent in before else []
        while found and before[found[0]]:
            found.insert(0, before[found[0]])
        return found

    def distance(self, agent: str) -> int | None:
        """Return the hops to an agent, None if unreachable."""
        return 0 if agent == self._parts.name else self._routes().get(agent, (None, ()))[0]

    def live(self) -> list[tuple[int, str]]:
        """Return (id, name) of the reachable agents, including this one, lowest first."""
        self._routes()
        return self._live

    def incarnation(self, agent: str) -> int:
        """Return the newest known incarnation of an agent, 0 for none."""
        if agent == self._parts.name:
            return self._parts.incarnation
        known = self.agents.get(agent)
        return known.announcement.incarnation if known is not None else 0

    def edges(self) -> Iterator[tuple[str, str]]:
        """Yield the links between agents, each once."""
        me = self._parts.name
        for other in self.up():
            yield min(me, other), max(me, other)
        for name, known in sorted(self.agents.items()):
            for other in known.announcement.neighbours:
                if name < other and self._is_link(other, name):
                    yield name, other

    def _is_link(self, name: str, other: str) -> bool:
        known = self.agents.get(name)
        return known is not None and other in known.announcement.neighbours

    def _routes(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        if self._hops_version != self.version:
            self._hops, self._hops_version = self._search(self.up()), self.version
            found = [(known.announcement.id, name) for name, known in self.agents.items() if name in self._hops]
            self._live = sorted([*found, (self._parts.id, self._parts.name)])
        return self._hops

    def has_detour(self, neighbour: str) -> bool:
        """Return whether all reachable agents, including a neighbour, stay reachable without the link to it."""
        others = [each for each in self.up() if each != neighbour]
        return self._search(others).keys() == self._routes().keys()

    def _search(self, first: list[str]) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return distance and next hops of each agent reachable through some neighbours."""
        routes: dict[str, tuple[int, tuple[str, ...]]] = {name: (1, (name,)) for name in first}
        layer, distance = list(routes), 1
        while layer:
            distance += 1
            found: dict[str, set[str]] = {}
            for name in layer:
                known = self.agents.get(name)
                for other in known.announcement.neighbours if known is not None else ():
                    if other not in routes and other != self._parts.name and self._is_link(other, name):
                        found.setdefault(other, set()).update(routes[name][1])
            for name, hops in found.items():
                routes[name] = (distance, tuple(sorted(hops)))
            layer = sorted(found)
        return routes

    # --- management core

    def core(self) -> str:
        """Return the management core: the lowest live id."""
        return self.live()[0][1]

    def announcement(self, neighbour: str, message: CoreAnnouncement) -> None:
        """Apply the management core's settings, unless an agent's own are stricter."""
        parts, last = self._parts, self.core_announcement
        if message.core == parts.name:
            return parts.drop("own_core") if message.incarnation > parts.incarnation else None
        if message.core != self.core():
            return parts.drop("not_core")
        if last is not None and last.core == message.core and _core_age(last) >= _core_age(message):
            return None
        self.core_announcement = message
        parts.dedup_s = max(parts.settings.dedup_s, message.dedup_s)
        parts.hold_s = min(parts.settings.hold_s, message.hold_s)
        if message.members_digest != self._members_digest():
            parts.drop("members_differ")  # announcements are in transit; the fd of the next interval repairs the rest
        if message.distance < DISTANCE_MAX:
            parts.flood(_forwarded_announcement(message), neighbour)
        return None

    def _members_digest(self) -> int:
        names = "\n".join(f"{name} {self.incarnation(name)}" for _, name in self.live())
        return int.from_bytes(blake2b(names.encode(), digest_size=8).digest(), "big")

    def _act_as_core(self, now: float) -> None:
        parts = self._parts
        live = frozenset(self.agents)
        if live != self._announced_members:
            joined, left = tuple(sorted(live - self._announced_members)), tuple(sorted(self._announced_members - live))
            self._announced_members = live
            self._send_update(joined, left, False, "silent for three intervals" if left else "heard")
        if now >= self._core_at:
            self._core_at = now + parts.settings.announce_s
            self._core_seq += 1
            digest = self._members_digest()
            parts.dedup_s, parts.hold_s = parts.settings.dedup_s, parts.settings.hold_s
            self.core_announcement = CoreAnnouncement(
                parts.name, parts.incarnation, self._core_seq, 0, digest, parts.dedup_s, parts.hold_s
            )
            parts.flood(self.core_announcement)

    def _send_update(self, joined: tuple[str, ...], left: tuple[str, ...], is_forget: bool, why: str) -> None:
        self._epoch += 1
        parts = self._parts
        message = TopologyUpdate(parts.name, parts.incarnation, self._epoch, 0, joined, left, is_forget, why)
        self._updates[(parts.name, parts.incarnation, self._epoch)] = None
        parts.flood(message)

    def forget(self, agent: str) -> None:
        """Remove an agent at an operator's request, unless it is reachable."""
        if self.distance(agent) is not None:
            return self._parts.log("federation.not_forgotten", agent=agent)
        self._forgotten(agent)
        return self._send_update((), (agent,), True, "the operator's word")

    def update(self, now: float, neighbour: str, message: TopologyUpdate) -> None:
        """Apply an update of departures; reachable agents are kept."""
        parts, key = self._parts, (message.core, message.incarnation, message.epoch)
        if key in self._updates or message.core == parts.name:
            return None
        if not message.is_forget and message.core != self.core():
            return parts.drop("not_core")
        self._updates[key] = None
        while len(self._updates) > UPDATE_EPOCHS:
            del self._updates[next(iter(self._updates))]
        for agent in message.left:
            if agent == parts.name:
                self._changed(now)
            elif self.distance(agent) is not None:
                parts.drop("not_gone")
            elif message.is_forget:
                self._forgotten(agent)
            else:
                self.agents.pop(agent, None)
        if message.distance < DISTANCE_MAX:
            parts.flood(_forwarded_update(message), neighbour)
        return None

    def _forgotten(self, agent: str) -> None:
        self.agents.pop(agent, None)
        self._parts.forgotten.append(agent)

    # --- time

    def tick(self, now: float) -> None:
        """Send due messages, and detect silent neighbours and agents."""
        parts, settings = self._parts, self._parts.settings
        for at in parts.neighbours.values():
            if at.is_linked and now >= at.hello_at + settings.hello_s:
                self._hello(now, at)
            if at.is_up and now > at.last_seen + settings.missed * settings.hello_s + settings.hello_s / 2:
                self._set_up(now, at, False)
            if at.distrusted_until and now >= at.distrusted_until:
                at.distrusted_until, at.distrusted_for = 0.0, ""
                self._changed(now)
        silent_at = now - settings.missed * settings.announce_s
        for name in [name for name, known in self.agents.items() if known.last_seen < silent_at]:
            del self.agents[name]
            self.version += 1
        if now >= self._announce_at:
            self.announce(now)
            self._reconsidered.clear()
        if self.core() == parts.name:
            self._act_as_core(now)

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        parts, settings = self._parts, self._parts.settings
        due = self._announce_at
        for at in parts.neighbours.values():
            if at.is_linked:
                due = min(due, at.hello_at + settings.hello_s)
            if at.is_up:
                due = min(due, at.last_seen + (settings.missed + 0.5) * settings.hello_s + 1e-6)
            if at.distrusted_until:
                due = min(due, at.distrusted_until)
        if self.core() == parts.name:
            due = min(due, self._core_at)
        return due


def _age(announcement: Federate) -> tuple[int, int]:
    return announcement.incarnation, announcement.seq


def _core_age(announcement: CoreAnnouncement) -> tuple[int, int]:
    return announcement.incarnation, announcement.seq


def _forwarded(announcement: Federate) -> Federate:
    return Federate(
        announcement.agent,
        announcement.id,
        announcement.incarnation,
        announcement.seq,
        announcement.distance + 1,
        announcement.version,
        announcement.addresses,
        announcement.neighbours,
        announcement.arrived,
    )


def _forwarded_announcement(announcement: CoreAnnouncement) -> CoreAnnouncement:
    return CoreAnnouncement(
        announcement.core,
        announcement.incarnation,
        announcement.seq,
        announcement.distance + 1,
        announcement.members_digest,
        announcement.dedup_s,
        announcement.hold_s,
    )


def _forwarded_update(announcement: TopologyUpdate) -> TopologyUpdate:
    return TopologyUpdate(
        announcement.core,
        announcement.incarnation,
        announcement.epoch,
        announcement.distance + 1,
        announcement.joined,
        announcement.left,
        announcement.is_forget,
        announcement.why,
    )
