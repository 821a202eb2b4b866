"""Commands that this router gave to Raft and whose fate is open, with those who wait for it.

Raft hands a committed command back as bytes, without a number, and names a failed one by its number: so each command is
found by both. Commands of equal bytes are answered in the order in which they were proposed.
"""

from dataclasses import dataclass

from access.policy.commands import PolicyCommand
from router.map.commands import Command
from wire.messages.nodes import RequestChange
from wire.messages.operators import Admin

__all__ = ["OpenProposal", "ProposalOrigin", "Proposals"]


@dataclass(frozen=True, slots=True)
class ProposalOrigin:
    """A node that waits for the fate of a command; ``question`` if an operator asks, who is answered in other words."""

    node: str
    request: int
    question: Admin | None = None


@dataclass(frozen=True, slots=True)
class OpenProposal:
    """One command: ``changes`` are the requests of storage nodes that it joins, each with its node."""

    number: int
    command: Command | PolicyCommand
    data: bytes
    asker: ProposalOrigin | None = None
    changes: tuple[tuple[str, RequestChange], ...] = ()


class Proposals:
    """All of one router; an entry stays until Raft says what became of it."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, OpenProposal] = {}
        self._by_data: dict[bytes, list[int]] = {}  # ascending

    def add(
        self,
        command: Command | PolicyCommand,
        data: bytes,
        asker: ProposalOrigin | None = None,
        changes: tuple[tuple[str, RequestChange], ...] = (),
    ) -> OpenProposal:
        """Note a command under the next number."""
        self._last += 1
        proposed = OpenProposal(self._last, command, data, asker, changes)
        self._open[proposed.number] = proposed
        self._by_data.setdefault(data, []).append(proposed.number)
        return proposed

    def committed(self, data: bytes) -> OpenProposal | None:
        """Take out the first command of these bytes; None if this router proposed none."""
        numbers = self._by_data.get(data)
        return self._take(numbers[0]) if numbers else None

    def failed(self, number: int) -> OpenProposal | None:
        """Take out a command that Raft did not take, or whose fate is unknown; None if it was committed meanwhile."""
        return self._take(number) if number in self._open else None

    def _take(self, number: int) -> OpenProposal:
        proposed = self._open.pop(number)
        numbers = self._by_data[proposed.data]
        numbers.remove(number)
        if not numbers:
            del self._by_data[proposed.data]
        return proposed
