"""Takeover time of a standby: the active gateway announces its presence, and its will revokes it.

Pure logic. All members of a group subscribe to one retained topic. The active one publishes "1" and a count every 5 s;
its will publishes "0". On "0", or if no message is retained, a standby takes over after a short random delay. It also
takes over after 15 s of silence, since a broker may lose a will. The broker decides between two that take over
together: it keeps one connection for a client ID, and the other gateway becomes a standby.
"""

from __future__ import annotations

import math
from random import Random

__all__ = ["ANNOUNCE_S", "Presence"]

ANNOUNCE_S = 5.0
SILENCE_S = 15.0
RETAINED_S = 0.5  # for the retained message after SUBACK
RANDOM_S = 0.2


class Presence:
    """Presence of the active gateway, as observed by a standby."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due = math.inf

    def connected(self, now: float) -> None:
        """Record that the topic is subscribed; a retained message may follow."""
        self._due = now + RETAINED_S + self._random.uniform(0.0, RANDOM_S)

    def disconnected(self) -> None:
        """Record a disconnection: a disconnected standby does not take over."""
        self._due = math.inf

    def received(self, now: float, payload: bytes) -> None:
        """Handle a message of the topic."""
        least = SILENCE_S if payload.startswith(b"1") else 0.0
        self._due = now + least + self._random.uniform(0.0, RANDOM_S)

    def takes_over_at(self) -> float:
        """Return when to take over; infinity while unknown."""
        return self._due
