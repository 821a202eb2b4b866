"""State of federated filters: the last announcement of each core, and the resulting members. Plain data and rules.

``election.py`` elects cores; this file computes members from announcements of possibly unreachable cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gateways.federation.messages import Topic

__all__ = ["CoreMember", "CoreRecord", "TopicState"]


@dataclass(slots=True)
class CoreRecord:
    """A core's newest announcement of a filter.

    Attributes:
      last_seen: Time of the announcement.
      until: Expiry: infinity for a core's, three intervals for one that ended.
    """

    incarnation: int
    seq: int
    qos: int
    members: tuple[str, ...]
    digest: int
    last_seen: float
    is_ended: bool = False
    until: float = math.inf


@dataclass(slots=True)
class CoreMember:
    """A member in its core's list; a silent one is absent, and stays listed for ``hold_s``."""

    last_seen: float
    qos: int
    is_live: bool


@dataclass(slots=True)
class TopicState:
    """One filter.

    Attributes:
      wanted: Highest QoS of the broker's own clients, None if none wants it.
      records: Announcements of other cores; under "" the members restored from the spool.
      core: The core that this agent accepts, "" for none.
      core_since: Time of that decision.
      own: Other members of this filter, if this agent is its core.
      members: All destinations, including this agent if it wants the filter.
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
    announced: Topic | None = None  # this agent's own last announcement as core

    def names(self, agent: str) -> bool:
        """Return whether an agent is a member, present or absent, in any announcement."""
        return (
            agent in self.members or agent in self.own or any(agent in each.members for each in self.records.values())
        )

    def find_members(
        self, name: str, settled_s: float, now: float, is_reached: Callable[[str], bool]
    ) -> frozenset[str]:
        """Return the destinations of the filter.

        The present core's list counts. Lists of other cores count while the core is new, and later for unreachable
        agents:
        reachable ones have joined the present core meanwhile.
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
