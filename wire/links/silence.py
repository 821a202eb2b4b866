"""Keepalive and idle timeout of a link: each end sends every second and closes a link that is silent for four.

On an operator's link, which carries no lease and no message, each end sends every two seconds.

A machine that loses power closes no connection, so only the timeout detects it. The rule counts checks instead of clock
time: a process that was stopped for a minute has to read its input before it decides. Edges close silent peers in the
compiled loop, which bounds every connection by ``SILENCE_S``.
"""

from enum import Enum

from wire.messages.hello import TIER_OPERATOR

__all__ = ["SILENCE_S", "SPEAK_S", "Silence", "SilenceCheck", "speak_s_of"]

SPEAK_S = 1.0  # without a sent byte, after which a keepalive is due
OPERATOR_SPEAK_S = 2.0  # likewise on an operator's link: keepalives are most of the work of an idle service
SILENCE_S = 4.0  # without a received byte, after which the connection is closed


class SilenceCheck(Enum):
    """Outcome of a check."""

    NOTHING = "nothing"
    SPEAK = "speak"
    GIVE_UP = "give up"


def speak_s_of(tier: str) -> float:
    """Return the keepalive interval of a link to this tier, in seconds."""
    return OPERATOR_SPEAK_S if tier == TIER_OPERATOR else SPEAK_S


class Silence:
    """Number of checks since bytes were received, and since bytes were sent.

    Args:
        check_interval_s: Seconds between two checks.
        speak_s: Keepalive interval in seconds.
        last_sent: Number of the newest sent frame, where frames are counted (``owes_word``).
    """

    __slots__ = ("_idle", "_idle_max", "_last_sent", "_quiet", "_quiet_max")

    def __init__(self, check_interval_s: float, last_sent: int = -1, speak_s: float = SPEAK_S) -> None:
        self._idle = self._quiet = 0
        self._idle_max = round(SILENCE_S / check_interval_s)
        self._quiet_max = round(speak_s / check_interval_s)
        self._last_sent = last_sent

    def heard(self) -> None:
        """Restart the idle timeout: bytes were received."""
        self._idle = 0

    def spoke(self) -> None:
        """Restart the keepalive interval: bytes were sent."""
        self._quiet = 0

    def look(self) -> SilenceCheck:
        """Count one check and return the action that is due."""
        self._idle += 1
        self._quiet += 1
        if self._idle >= self._idle_max:
            return SilenceCheck.GIVE_UP
        return SilenceCheck.SPEAK if self._quiet >= self._quiet_max else SilenceCheck.NOTHING

    def owes_word(self, last_sent: int) -> bool:
        """Return whether a keepalive is due, given the number of the newest sent frame; ignores received bytes."""
        if last_sent != self._last_sent:
            self._last_sent = last_sent
            self._quiet = 0
            return False
        self._quiet += 1
        return self._quiet >= self._quiet_max
