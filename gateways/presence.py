"""When one that stands by takes over: presence that the active one announces, and that its will takes back.

Pure logic. All of a group listen to one retained topic: "1" and a count from the active one, each 5 s; "0" from its
will. On "0", and where nothing was retained, one waits a moment at random and takes over; after 15 s of silence as
well, since a broker may lose a will. Two that take over at once are told apart by the broker: it has one connection for
a client ID, and who loses it stands by.
"""

from __future__ import annotations

import math
from random import Random

__all__ = ["ANNOUNCE_S", "Presence"]

ANNOUNCE_S = 5.0
SILENCE_S = 15.0
RETAINED_S = 0.5  # for the retained message to come after SUBACK
RANDOM_S = 0.2


class Presence:
    """Presence of the active one, as one that stands by hears it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due = math.inf

    def connected(self, now: float) -> None:
        """Note that the topic is subscribed: what is retained comes next."""
        self._due = now + RETAINED_S + self._random.uniform(0.0, RANDOM_S)

    def parted(self) -> None:
        """Note that nothing is heard: one that is cut off does not take over."""
        self._due = math.inf

    def heard(self, now: float, payload: bytes) -> None:
        """Take a message of the topic."""
        least = SILENCE_S if payload.startswith(b"1") else 0.0
        self._due = now + least + self._random.uniform(0.0, RANDOM_S)

    def takes_over_at(self) -> float:
        """Return when to take over; infinity while that is not known."""
        return self._due
