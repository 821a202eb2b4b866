"""Shared state of one agent's cores: identity, neighbours, counts, and the effects of the current step.

The cores add effects here; ``agent.py`` returns them.
"""

from __future__ import annotations

import math
from collections import Counter
from random import Random

from gateways.federation.ceilings import Ceiling
from gateways.federation.events import AgentSettings, CloseLink, FederationReady, Log, NeighbourPolicy, Send
from gateways.federation.messages import MESSAGES, Message, encode
from gateways.spool_rows import Delete, Put
from mqtt.topics import matches
from wire.decoding import plain_text

__all__ = ["AgentContext", "Neighbour"]

SENT = {kind: f"sent_{kind.__struct_config__.tag}" for kind in MESSAGES}
LOG_LINES_MAX = 1_000  # of one incarnation about neighbours: bounds the disk use


class Neighbour:
    """An agent at the other end of a link.

    Attributes:
      is_linked: The link is connected.
      is_up: It answered a hello within three intervals.
      last_seen: Time of its last answer.
      distrusted_until: It is not used as a next hop until then.
      distrusted_for: The reason, as counted.
      not_passed_on: Messages that it acknowledged and did not forward, by destination.
      accused, accused_at: Consecutive distrusts for that, and the time of the last one.
      interests: Filters learned through it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = self.link = 0
        self.is_linked = self.is_up = False
        self.last_seen = 0.0
        self.hello_seq = 0
        self.hello_at = 0.0
        self.round_trip_ms = 0.0
        self.distrusted_until = 0.0
        self.distrusted_for = ""
        self.not_passed_on: dict[str, int] = {}
        self.accused, self.accused_at = 0, -math.inf
        self.interests: set[tuple[str, str]] = set()
        self.set_policy(NeighbourPolicy())

    def set_policy(self, policy: NeighbourPolicy) -> None:
        """Apply the operator's policy; rate limits restart."""
        self.policy = policy
        self.incoming = Ceiling(policy.messages_per_s, policy.bytes_per_s)
        self.outgoing = Ceiling(policy.messages_per_s, policy.bytes_per_s)
        self._takes_all = "#" in policy.exports, "#" in policy.imports

    def may_have(self, topic: str) -> bool:
        """Return whether a topic may be sent to this neighbour."""
        return self._takes_all[0] or any(matches(each, topic) for each in self.policy.exports)

    def may_send(self, topic: str) -> bool:
        """Return whether a topic may be received from this neighbour."""
        return self._takes_all[1] or any(matches(each, topic) for each in self.policy.imports)


class AgentContext:
    """See the module.

    Attributes:
      wall_ms_at: UTC in milliseconds at time 0 of the caller's clock.
      dedup_s, hold_s: Those of the federation, or the agent's own if stricter.
      forgotten: Agents that an operator removed in this step.
      arrived: QoS 1 and 2 messages received for this agent, by capturing agent.
    """

    def __init__(self, settings: AgentSettings, now: float, wall_ms: int, random: Random) -> None:
        self.settings = settings
        self.name = settings.agent
        self.random = random
        self.id = 0
        self.incarnation = 0
        self.wall_ms_at = wall_ms - int(now * 1000)
        self.dedup_s, self.hold_s = settings.dedup_s, settings.hold_s
        self.counts: Counter[str] = Counter()
        self.ready = FederationReady()
        self.neighbours: dict[str, Neighbour] = {}
        self.forgotten: list[str] = []
        self.arrived: dict[str, int] = {}
        self._lines = 0

    def wall_ms(self, now: float) -> int:
        """Return UTC in milliseconds by this agent's clock."""
        return self.wall_ms_at + int(now * 1000)

    def drop(self, reason: str) -> None:
        """Count a drop."""
        self.counts[reason] += 1

    def log(self, event: str, **values: str | float) -> None:
        """Log an event; its values may contain a neighbour's text."""
        self._lines += 1
        if self._lines <= LOG_LINES_MAX:
            cleaned = {name: plain_text(one) if isinstance(one, str) else one for name, one in values.items()}
            self.ready.effects.append(Log(event, cleaned))

    def put(self, kind: str, key: bytes, value: bytes) -> None:
        """Write a row with this step."""
        self.ready.writes.append(Put(kind, key, value))

    def delete(self, kind: str, key: bytes) -> None:
        """Delete a row with this step."""
        self.ready.writes.append(Delete(kind, key))

    def send(self, neighbour: str, message: Message) -> None:
        """Send to a neighbour; no effect while its link is down."""
        at = self.neighbours.get(neighbour)
        if at is not None and at.is_linked:
            self.ready.effects.append(Send(neighbour, encode(message), at.link))
            self.counts[SENT[type(message)]] += 1

    def flood(self, message: Message, source: str = "") -> None:
        """Send to each neighbour except the source."""
        data = encode(message)
        for name, at in self.neighbours.items():
            if at.is_linked and name != source:
                self.ready.effects.append(Send(name, data, at.link))
                self.counts[SENT[type(message)]] += 1

    def refuse(self, neighbour: str, reason: str) -> None:
        """Count a protocol violation and close the link."""
        self.drop(reason)
        self.ready.effects.append(CloseLink(neighbour, reason))
