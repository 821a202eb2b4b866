"""Callers that wait for entries and reads, and their results.

A proposer gets the result of its own entry (same index and term), or "unknown" if another entry took its index or
leadership was lost. A displaced or timed-out proposal is never reported as failed: it may still commit. Source: a lost
answer is "unknown" (Jepsen on Redis-Raft and Redpanda).
"""

from typing import Any

import trio

from router.raft.messages import LogEntry

__all__ = ["NotLeader", "Outcomes", "ProposalResult", "Unavailable"]


class NotLeader(Exception):
    """The entry was not appended; ``leader_hint`` names the leader, None if unknown."""

    def __init__(self, leader_hint: str | None) -> None:
        super().__init__(f"not the leader; try {leader_hint or 'again later'}")
        self.leader_hint = leader_hint


class Unavailable(Exception):
    """The operation is not possible now; ``reason`` is "busy", "unknown", "stopped" or a refusal of the core."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProposalResult:
    """The future result of one caller."""

    __slots__ = ("_error", "_event", "_value")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def set(self, value: Any) -> None:
        """Set the result."""
        self._value = value
        self._event.set()

    def fail(self, error: Exception) -> None:
        """Make the caller raise, unless a result is set."""
        if not self._event.is_set():
            self._error = error
            self._event.set()

    async def wait(self) -> Any:
        """Wait for the result and return it.

        Raises:
            Exception: The one passed to ``fail``.
        """
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Outcomes:
    """Waiting callers by log index and by read context."""

    def __init__(self) -> None:
        self._proposed: dict[int, tuple[int, ProposalResult]] = {}  # index -> term, waiter; ascending
        self._requested: dict[int | bytes, tuple[float, tuple[ProposalResult, ...]]] = {}  # oldest first
        self._confirmed: list[tuple[int, tuple[ProposalResult, ...]]] = []  # read index not applied yet
        self.reads = 0

    @property
    def proposals(self) -> int:
        """Number of proposers whose entry is not applied yet."""
        return len(self._proposed)

    def proposed(self, index: int, term: int, outcome: ProposalResult) -> None:
        """Wait for the entry (index, term)."""
        self._proposed[index] = term, outcome

    def applied(self, entry: LogEntry, result: Any) -> None:
        """Resolve the caller at an applied index: its own entry, or another one that replaced it."""
        waiting = self._proposed.pop(entry.index, None)
        if waiting is None:
            return
        term, outcome = waiting
        if term == entry.term:
            outcome.set(result)
        else:
            outcome.fail(Unavailable("unknown"))

    def add_reads(self, context: int | bytes, outcomes: tuple[ProposalResult, ...], expires_at: float) -> None:
        """Register the callers of one read request."""
        self._requested[context] = expires_at, outcomes
        self.reads += len(outcomes)

    def answered(self, context: int | bytes, index: int, applied_index: int) -> None:
        """Release the readers once the index is applied; -1: they must retry."""
        _, outcomes = self._requested.pop(context, (0.0, ()))
        if index < 0:
            self._release(outcomes, Unavailable("no confirmed leader"))
        elif index <= applied_index:
            self._release(outcomes, index)
        else:
            self._confirmed.append((index, outcomes))

    def expire(self, now: float) -> None:
        """Fail read requests whose answer was lost."""
        while self._requested:
            context, (expires_at, outcomes) = next(iter(self._requested.items()))
            if expires_at > now:
                return
            del self._requested[context]
            self._release(outcomes, Unavailable("no answer to ReadIndex"))

    def applied_up_to(self, applied_index: int) -> None:
        """Release readers up to the applied index."""
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

    def fail_proposals(self) -> None:
        """Fail all proposers as "unknown", because this peer no longer sees their commits."""
        for _, outcome in self._proposed.values():
            outcome.fail(Unavailable("unknown"))
        self._proposed.clear()

    def fail_all(self, error: Exception) -> None:
        """Fail all callers when the node stops."""
        for _, outcome in self._proposed.values():
            outcome.fail(error)
        for outcomes in (*(o for _, o in self._requested.values()), *(o for _, o in self._confirmed)):
            self._release(outcomes, error)
        self._proposed.clear()
        self._requested.clear()
        self._confirmed.clear()
