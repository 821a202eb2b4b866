"""This router's proposals without a result yet, each with the nodes that wait for it.

Raft returns a committed command as bytes without a number, and a failed one by its number, so each command is indexed
by both. Commands of equal bytes are answered in the order of their proposals.
"""

from dataclasses import dataclass

from access.policy.commands import PolicyCommand
from router.map.commands import Command
from wire.messages.nodes import RequestChange
from wire.messages.operators import Admin

__all__ = ["OpenProposal", "ProposalOrigin", "Proposals"]


@dataclass(frozen=True, slots=True)
class ProposalOrigin:
    """A node that waits for a command's result; ``question`` is set for an operator, whose reply has another form."""

    node: str
    request: int
    question: Admin | None = None


@dataclass(frozen=True, slots=True)
class OpenProposal:
    """One proposed command; ``changes`` are its requests of storage nodes, each with its node."""

    number: int
    command: Command | PolicyCommand
    data: bytes
    requester: ProposalOrigin | None = None
    changes: tuple[tuple[str, RequestChange], ...] = ()


class Proposals:
    """All open proposals of one router; each stays until its result is known."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, OpenProposal] = {}
        self._by_data: dict[bytes, list[int]] = {}  # ascending

    def add(
        self,
        command: Command | PolicyCommand,
        data: bytes,
        requester: ProposalOrigin | None = None,
        changes: tuple[tuple[str, RequestChange], ...] = (),
    ) -> OpenProposal:
        """Add a command under the next number."""
        self._last += 1
        proposed = OpenProposal(self._last, command, data, requester, changes)
        self._open[proposed.number] = proposed
        self._by_data.setdefault(data, []).append(proposed.number)
        return proposed

    def committed(self, data: bytes) -> OpenProposal | None:
        """Remove and return the first proposal of these bytes; None if this router made none."""
        numbers = self._by_data.get(data)
        return self._take(numbers[0]) if numbers else None

    def failed(self, number: int) -> OpenProposal | None:
        """Remove and return a proposal that failed or has an unknown result; None if it was committed meanwhile."""
        return self._take(number) if number in self._open else None

    def _take(self, number: int) -> OpenProposal:
        proposed = self._open.pop(number)
        numbers = self._by_data[proposed.data]
        numbers.remove(number)
        if not numbers:
            del self._by_data[proposed.data]
        return proposed
