"""State of federated filters: what each core last said, and the members that follow from it. Plain data and rules.

``election.py`` decides who is core; this file decides who is a member, from the words of cores that may be cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gateways.federation.messages import Topic

__all__ = ["CoreMember", "CoreRecord", "TopicState"]


@dataclass(slots=True)
class CoreRecord:
    """A core's newest word about a filter.

    Attributes:
        heard: When.
        until: When it is forgotten: infinity for a core's, three intervals for one that ended.
    """

    incarnation: int
    seq: int
    qos: int
    members: tuple[str, ...]
    digest: int
    heard: float
    is_ended: bool = False
    until: float = math.inf


@dataclass(slots=True)
class CoreMember:
    """A member as its core keeps it; one that is silent is absent, and stays listed for ``hold_s``."""

    heard: float
    qos: int
    is_live: bool


@dataclass(slots=True)
class TopicState:
    """One filter.

    Attributes:
        wanted: Highest QoS of the broker's own clients, None if none wants it.
        records: Words of other cores; under "" the members that the spool remembered.
        core: The core that this agent believes in, "" for none.
        core_since: Since when.
        own: Members of this agent's mesh, if it is the core: others than itself.
        members: All agents that messages go to, this one too if it wants them.
    """

    filter: str
    wanted: int | None = None
    records: dict[str, CoreRecord] = field(default_factory=dict)
    core: str = ""
    core_since: float = -math.inf
    is_core: bool = False
    own: dict[str, CoreMember] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    said: Topic | None = None  # this agent's own last word as core

    def names(self, agent: str) -> bool:
        """Return whether an agent is a member, present or absent, by anybody's word."""
        return (
            agent in self.members or agent in self.own or any(agent in each.members for each in self.records.values())
        )

    def find_members(
        self, name: str, settled_s: float, now: float, is_reached: Callable[[str], bool]
    ) -> frozenset[str]:
        """Return who gets messages of the filter.

        The present core's list counts. What other cores said counts while the core is young, and for agents that cannot
        be reached: who can be reached and wants the filter has joined the present core meanwhile.
        """
        found = set(self.own) if self.is_core else set()
        if self.wanted is not None:
            found.add(name)
        is_settled = bool(self.core) and now > self.core_since + settled_s
        for core, record in self.records.items():
            if (core == self.core and not record.is_ended) or not is_settled:
                found.update(record.members)
            else:
                found.update(each for each in record.members if each != name and not is_reached(each))
        if self.wanted is None:
            found.discard(name)
        return frozenset(found)
