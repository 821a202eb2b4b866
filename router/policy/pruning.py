"""The leader's removal of expired bans, revocations and tokens, in batches and after a delay.

Each node ends a ban by its own clock; a revocation is in force until its removal. A record stays for ``late_s`` after
its end: a leader whose clock is fast by less restores no rights earlier than other nodes. Sans-IO. Rules:
docs/revocation.md, D6.
"""

from collections.abc import Callable

from access.policy.changes import Tables
from access.policy.commands import Prune

__all__ = ["CHECK_S", "PruneSchedule"]

CHECK_S = 10.0  # between two checks of an idle policy
REPEAT_S = 1.0  # between two proposals: each step is sent to all followers


class PruneSchedule:
    """The leader's check for expired records.

    Args:
        utc: Seconds since the epoch, by this machine's clock.
        late_s: Delay of a removal after the record's end.
    """

    def __init__(self, utc: Callable[[], float], late_s: float) -> None:
        self._utc = utc
        self._late_s = late_s
        self._next = float("-inf")

    def next_deadline(self) -> float:
        """Return the time of the next check."""
        return self._next

    def due(self, now: float, tables: Tables) -> Prune | None:
        """Return the command to propose, None if no record has expired or no check is due."""
        if now < self._next:
            return None
        by_utc = self._utc() - self._late_s
        if not tables.has_ended(by_utc):
            self._next = now + CHECK_S
            return None
        self._next = now + REPEAT_S
        return Prune(by_utc)
