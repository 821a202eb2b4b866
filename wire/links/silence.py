"""Silence on a link: each end says once a second that it lives, and gives up one that it has not heard for four.

On the link of an operator, of which no lease and no message hangs, each end says it every two seconds.

An end whose machine lost power closes nothing; only its silence tells. The rule counts looks and not the clock: a
process that was stopped for a minute has to read first and judge then. Edges cut silent peers in the compiled loop, by
``SILENCE_S``, where every connection has such a bound.
"""

from enum import Enum

from wire.messages.hello import TIER_OPERATOR

__all__ = ["SILENCE_S", "SPEAK_S", "Silence", "SilenceCheck", "speak_s_of"]

SPEAK_S = 1.0  # without a byte to the other end, after which it is told that this one lives
OPERATOR_SPEAK_S = 2.0  # likewise on an operator's link: a service that nobody asks does little else
SILENCE_S = 4.0  # without a byte from the other end, after which the connection is given up


class SilenceCheck(Enum):
    """Outcome of a look."""

    NOTHING = "nothing"
    SPEAK = "speak"
    GIVE_UP = "give up"


def speak_s_of(tier: str) -> float:
    """Return how long an end of a link to this tier may say nothing."""
    return OPERATOR_SPEAK_S if tier == TIER_OPERATOR else SPEAK_S


class Silence:
    """Looks since something was heard, and since something was said.

    Args:
        look_s: Seconds between two looks.
        speak_s: How long this end may say nothing.
        said: Number of what was said last, where frames are counted (``spoken``).
    """

    __slots__ = ("_idle", "_idle_max", "_quiet", "_quiet_max", "_said")

    def __init__(self, look_s: float, said: int = -1, speak_s: float = SPEAK_S) -> None:
        self._idle = self._quiet = 0
        self._idle_max = round(SILENCE_S / look_s)
        self._quiet_max = round(speak_s / look_s)
        self._said = said

    def heard(self) -> None:
        """Note that something came from the other end."""
        self._idle = 0

    def spoke(self) -> None:
        """Note that something left for the other end."""
        self._quiet = 0

    def look(self) -> SilenceCheck:
        """Judge both ends."""
        self._idle += 1
        self._quiet += 1
        if self._idle >= self._idle_max:
            return SilenceCheck.GIVE_UP
        return SilenceCheck.SPEAK if self._quiet >= self._quiet_max else SilenceCheck.NOTHING

    def owes_word(self, said: int) -> bool:
        """Judge this end alone, by the number of its newest frame: whether it has to speak now."""
        if said != self._said:
            self._said = said
            self._quiet = 0
            return False
        self._quiet += 1
        return self._quiet >= self._quiet_max
