"""Distribution trees of filters: soft state from members' requests on their path to the cores.

A member's ``ts`` is forwarded towards the core; each agent on the path joins the tree and stores the neighbour it came
from. It goes to ``redundancy`` equally near parents. Trees have no explicit end: state that is not refreshed for three
intervals expires. Pure logic.
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
      version: Increases when a member is found behind another neighbour.
    """

    def __init__(self, parts: AgentContext, overlay: Overlay) -> None:
        self._parts, self._overlay = parts, overlay
        self.version = 0
        self._seq = 0
        self._count = 0
        self._children: dict[str, dict[str, dict[str, float]]] = {}  # filter, neighbour, member: expiry
        self._behind: dict[str, dict[str, float]] = {}  # member, neighbour: expiry
        self._latest: dict[tuple[str, str], tuple[int, int]] = {}  # member and core: incarnation, seq

    def parents(self, core: str) -> tuple[str, ...]:
        """Return the neighbours to which a member sends requests for a core."""
        return self._overlay.next_hops(core)[: self._parts.settings.redundancy]

    def children(self, topic_filter: str) -> list[str]:
        """Return the neighbours that lead to members of a filter."""
        return sorted(self._children.get(topic_filter, ()))

    def is_behind(self, member: str, neighbour: str) -> bool:
        """Return whether a member's requests came from a neighbour."""
        return neighbour in self._behind.get(member, ())

    def filters(self) -> Iterator[str]:
        """Yield the filters with tree state for other agents."""
        return iter(self._children)

    def send_requests(self, core: str, requests: Iterable[SubscriptionRequest]) -> None:
        """Send this agent's own requests towards a core, or another agent."""
        parts = self._parts
        for page in cut_pages(requests):
            self._seq += 1
            message = TopicSubscribe(parts.name, parts.incarnation, self._seq, core, 0, page)
            for parent in self.parents(core):
                parts.send(parent, message)

    def forward(self, now: float, neighbour: str, message: TopicSubscribe) -> bool:
        """Store a member's request, forward it towards its core; return whether it is new."""
        key, age = (message.member, message.core), (message.incarnation, message.seq)
        last = self._latest.get(key, (0, 0))
        if message.member == self._parts.name or age < last:
            return False
        until = now + self._parts.settings.missed * self._parts.settings.announce_s
        for request in message.requests:
            if request.is_join:
                self._join(request.filter, neighbour, message.member, until)
            elif request.is_leave:
                self._leave(request.filter, message.member)
        if age == last:
            return False  # the same request by a second parent
        self._latest[key] = age
        if message.core != self._parts.name and message.distance < DISTANCE_MAX:
            forwarded = TopicSubscribe(
                message.member,
                message.incarnation,
                message.seq,
                message.core,
                message.distance + 1,
                message.requests,
            )
            for parent in self.parents(message.core):
                if parent != neighbour:
                    self._parts.send(parent, forwarded)
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
        """Remove an agent."""
        for topic_filter in list(self._children):
            self._leave(topic_filter, agent)
        self._behind.pop(agent, None)

    def expire(self, now: float) -> None:
        """Remove state that was not refreshed, once an interval."""
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
