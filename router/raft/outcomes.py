"""Waiters for entries and reads, and the outcomes that they get.

Decides the fate a proposer hears: the result of *his* entry (same index and same term), "unknown" when another entry
took its index or leadership was lost. A timed-out or displaced proposal is never reported as failed: it may yet
commit. Source: the rule that a lost answer is "unknown" (Jepsen on Redis-Raft and Redpanda).
"""

from typing import Any

import trio

from router.raft.messages import LogEntry

__all__ = ["NotLeader", "Outcomes", "ProposalResult", "Unavailable"]


class NotLeader(Exception):
    """Nothing was appended; ``leader_hint`` may know better (None: nobody known)."""

    def __init__(self, leader_hint: str | None) -> None:
        super().__init__(f"not the leader; try {leader_hint or 'again later'}")
        self.leader_hint = leader_hint


class Unavailable(Exception):
    """Not now; ``reason`` is "busy", "unknown", "stopped" or one of the core's refusals."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProposalResult:
    """One value for one waiter."""

    __slots__ = ("_error", "_event", "_value")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def set(self, value: Any) -> None:
        """Give the waiter its value."""
        self._value = value
        self._event.set()

    def fail(self, error: Exception) -> None:
        """Have the waiter raise; without effect once there is an outcome."""
        if not self._event.is_set():
            self._error = error
            self._event.set()

    async def wait(self) -> Any:
        """Return the value when it is there.

        Raises:
            Exception: The one that was given to ``fail``.
        """
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Outcomes:
    """Waiters by index and by read."""

    def __init__(self) -> None:
        self._proposed: dict[int, tuple[int, ProposalResult]] = {}  # index -> term, waiter; ascending
        self._asked: dict[int | bytes, tuple[float, tuple[ProposalResult, ...]]] = {}  # oldest first
        self._confirmed: list[tuple[int, tuple[ProposalResult, ...]]] = []  # read index not applied yet
        self.reads = 0

    @property
    def proposals(self) -> int:
        """Proposers waiting for their entry to be applied."""
        return len(self._proposed)

    def proposed(self, index: int, term: int, outcome: ProposalResult) -> None:
        """Wait for the entry (index, term)."""
        self._proposed[index] = term, outcome

    def applied(self, entry: LogEntry, result: Any) -> None:
        """The entry is applied: it is the waiter's, or took the place of his."""
        waiting = self._proposed.pop(entry.index, None)
        if waiting is None:
            return
        term, outcome = waiting
        if term == entry.term:
            outcome.set(result)
        else:
            outcome.fail(Unavailable("unknown"))

    def asked(self, context: int | bytes, outcomes: tuple[ProposalResult, ...], expires_at: float) -> None:
        """Readers share one question."""
        self._asked[context] = expires_at, outcomes
        self.reads += len(outcomes)

    def answered(self, context: int | bytes, index: int, applied_index: int) -> None:
        """Release the readers when the index is applied; -1: they ask again."""
        _, outcomes = self._asked.pop(context, (0.0, ()))
        if index < 0:
            self._release(outcomes, Unavailable("no confirmed leader"))
        elif index <= applied_index:
            self._release(outcomes, index)
        else:
            self._confirmed.append((index, outcomes))

    def expire(self, now: float) -> None:
        """Forget questions whose answer was lost on the way."""
        while self._asked:
            context, (expires_at, outcomes) = next(iter(self._asked.items()))
            if expires_at > now:
                return
            del self._asked[context]
            self._release(outcomes, Unavailable("no answer to ReadIndex"))

    def applied_up_to(self, applied_index: int) -> None:
        """Release readers whose index is reached."""
        if not self._confirmed:
            return
        waiting = []
        for index, outcomes in self._confirmed:
            if index <= applied_index:
                self._release(outcomes, index)
            else:
                waiting.append((index, outcomes))
        self._confirmed = waiting

    def _release(self, outcomes: tuple[ProposalResult, ...], value: int | Exception) -> None:
        self.reads -= len(outcomes)
        for outcome in outcomes:
            if isinstance(value, Exception):
                outcome.fail(value)
            else:
                outcome.set(value)

    def lost_leadership(self) -> None:
        """Nobody tells us any more what becomes of our entries."""
        for _, outcome in self._proposed.values():
            outcome.fail(Unavailable("unknown"))
        self._proposed.clear()

    def fail_all(self, error: Exception) -> None:
        """The node stops."""
        for _, outcome in self._proposed.values():
            outcome.fail(error)
        for outcomes in (*(o for _, o in self._asked.values()), *(o for _, o in self._confirmed)):
            self._release(outcomes, error)
        self._proposed.clear()
        self._asked.clear()
        self._confirmed.clear()
