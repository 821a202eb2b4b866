"""Meshes of filters: the soft state that words of members leave on their way to the cores.

A member's ``ts`` goes from neighbour to neighbour towards the core; each agent on the way becomes part of the mesh and
keeps which neighbour it came from. ``redundancy`` equally near parents are told. Nobody says that a mesh ends: what is
not repeated for three intervals is forgotten. Pure logic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateways.federation.agent_context import AgentContext
from gateways.federation.messages import DISTANCE_MAX, SubscriptionRequest, TopicSubscribe
from gateways.federation.overlay import Overlay
from gateways.federation.pages import cut_pages

__all__ = ["DistributionTrees"]

CHILDREN_MAX = 200_000  # of all filters: (filter, neighbour, member)


class DistributionTrees:
    """See the module.

    Attributes:
        version: Grows whenever a member is found behind another neighbour.
    """

    def __init__(self, parts: AgentContext, overlay: Overlay) -> None:
        self._parts, self._overlay = parts, overlay
        self.version = 0
        self._seq = 0
        self._count = 0
        self._children: dict[str, dict[str, dict[str, float]]] = {}  # filter, neighbour, member: until when
        self._behind: dict[str, dict[str, float]] = {}  # member, neighbour: until when
        self._latest: dict[tuple[str, str], tuple[int, int]] = {}  # member and core: incarnation, seq

    def parents(self, core: str) -> tuple[str, ...]:
        """Return the neighbours that a member of a core's filters speaks to."""
        return self._overlay.next_hops(core)[: self._parts.settings.redundancy]

    def children(self, topic_filter: str) -> list[str]:
        """Return the neighbours behind which there are members of a filter."""
        return sorted(self._children.get(topic_filter, ()))

    def is_behind(self, member: str, neighbour: str) -> bool:
        """Return whether a member's words came from a neighbour."""
        return neighbour in self._behind.get(member, ())

    def filters(self) -> Iterator[str]:
        """Yield the filters whose mesh this agent is part of for others' sake."""
        return iter(self._children)

    def tell(self, core: str, wishes: Iterable[SubscriptionRequest]) -> None:
        """Send this agent's own words towards a core, or another agent."""
        parts = self._parts
        for page in cut_pages(wishes):
            self._seq += 1
            message = TopicSubscribe(parts.name, parts.incarnation, self._seq, core, 0, page)
            for parent in self.parents(core):
                parts.send(parent, message)

    def pass_on(self, now: float, neighbour: str, message: TopicSubscribe) -> bool:
        """Keep what a member said, pass it on towards its core; return whether it is news."""
        key, age = (message.member, message.core), (message.incarnation, message.seq)
        last = self._latest.get(key, (0, 0))
        if message.member == self._parts.name or age < last:
            return False
        until = now + self._parts.settings.missed * self._parts.settings.announce_s
        for wish in message.wishes:
            if wish.is_join:
                self._join(wish.filter, neighbour, message.member, until)
            elif wish.is_leave:
                self._leave(wish.filter, message.member)
        if age == last:
            return False  # the same word through a second parent
        self._latest[key] = age
        if message.core != self._parts.name and message.distance < DISTANCE_MAX:
            farther = TopicSubscribe(
                message.member,
                message.incarnation,
                message.seq,
                message.core,
                message.distance + 1,
                message.wishes,
            )
            for parent in self.parents(message.core):
                if parent != neighbour:
                    self._parts.send(parent, farther)
        return True

    def _join(self, topic_filter: str, neighbour: str, member: str, until: float) -> None:
        members = self._children.setdefault(topic_filter, {}).setdefault(neighbour, {})
        if member not in members:
            if self._count >= CHILDREN_MAX:
                return self._parts.drop("mesh_full")
            self._count += 1
        members[member] = until
        behind = self._behind.setdefault(member, {})
        if neighbour not in behind:
            self.version += 1
        behind[neighbour] = until
        return None

    def _leave(self, topic_filter: str, member: str) -> None:
        for neighbour in list(self._children.get(topic_filter, ())):
            self._drop(topic_filter, neighbour, member)

    def _drop(self, topic_filter: str, neighbour: str, member: str) -> None:
        members = self._children[topic_filter][neighbour]
        if members.pop(member, None) is not None:
            self._count -= 1
        if not members:
            del self._children[topic_filter][neighbour]
            if not self._children[topic_filter]:
                del self._children[topic_filter]

    def forget(self, agent: str) -> None:
        """Forget an agent that was given up."""
        for topic_filter in list(self._children):
            self._leave(topic_filter, agent)
        self._behind.pop(agent, None)

    def expire(self, now: float) -> None:
        """Forget what was not repeated, once an interval."""
        for topic_filter, neighbours in list(self._children.items()):
            for neighbour, members in list(neighbours.items()):
                for member in [each for each, until in members.items() if until < now]:
                    self._drop(topic_filter, neighbour, member)
        for member, behind in list(self._behind.items()):
            for neighbour in [each for each, until in behind.items() if until < now]:
                del behind[neighbour]
                self.version += 1
            if not behind:
                del self._behind[member]
        if len(self._latest) > CHILDREN_MAX:
            self._latest.clear()
