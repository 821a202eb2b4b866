"""When the leader has bans, revocations and tokens removed that have ended: some at a time, and none too early.

The end of a ban is judged by each node's own clock; a revocation stands at every node until it is removed. So a record
stays in the policy for ``late_s`` behind its end: a leader whose clock is ahead by less gives nothing back that another
clock does not give back too. Sans-IO. Rules: docs/revocation.md, D6.
"""

from collections.abc import Callable

from access.policy.changes import Tables
from access.policy.commands import Prune

__all__ = ["LOOK_S", "Pruning"]

LOOK_S = 10.0  # between two looks at an idle policy
AGAIN_S = 1.0  # between two proposals: each step has its followers to pass it on to


class Pruning:
    """The leader's look for what has ended.

    Args:
        utc: Seconds since the epoch, by this machine's clock.
        late_s: How long what has ended stays.
    """

    def __init__(self, utc: Callable[[], float], late_s: float) -> None:
        self._utc = utc
        self._late_s = late_s
        self._next = float("-inf")

    def next_deadline(self) -> float:
        """Return when to look again."""
        return self._next

    def due(self, now: float, tables: Tables) -> Prune | None:
        """Return what to propose, None where nothing has ended or it is not time to look."""
        if now < self._next:
            return None
        by_utc = self._utc() - self._late_s
        if not tables.has_ended(by_utc):
            self._next = now + LOOK_S
            return None
        self._next = now + AGAIN_S
        return Prune(by_utc)
