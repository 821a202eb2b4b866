"""Pending commands of a router's Raft proposals, and the answers to the nodes that requested them.

A command that is known to fail is refused without a log entry. Success is reported only after the command is committed
and applied to the map. After a failure or an unknown result, the node retries. Sans-IO.
"""

import logging
from collections.abc import Callable

from access.policy.commands import PolicyCommand
from conf.events import say
from router.events import Proposal
from router.map.command_bounds import COMMAND_BYTES_MAX, out_of_range
from router.map.commands import Command, PlacePartitions, RegisterNode, encode_command, is_readable
from router.map.machine import CommandResult, MapMachine
from router.map.proposals import OpenProposal, ProposalOrigin, Proposals
from router.operators.queries import not_committed, reply_to
from wire.messages.control import Control
from wire.messages.message import name_of
from wire.messages.nodes import Changed, Registered, RequestChange

__all__ = ["Proposer"]

logger = logging.getLogger(__name__)


class Proposer:
    """Proposals of one router.

    Args:
        machine: The map, as committed so far.
        policy_epoch: Returns the policy epoch that is committed so far.
        send_message: Sends a message to a node.
        refuse: Sends ``Refused``: node, request, code, detail.
        count: Counts an event by name.
    """

    def __init__(
        self,
        machine: MapMachine,
        policy_epoch: Callable[[], int],
        send_message: Callable[[str, Control], None],
        refuse: Callable[[str, int, str, str], None],
        count: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._policy_epoch = policy_epoch
        self._send_message = send_message
        self._refuse = refuse
        self._count = count
        self._under_way = Proposals()
        self._new: list[Proposal] = []

    def propose(
        self,
        command: Command,
        requester: ProposalOrigin | None = None,
        changes: tuple[tuple[str, RequestChange], ...] = (),
    ) -> None:
        """Propose a command to Raft, unless it is refused; answer its requester then, or when the result is known.

        A requested command is first applied to a copy of the map, so that a refused one costs no log entry.

        Args:
            command: To be committed.
            requester: Node that waits for it.
            changes: Requests of storage nodes in this command; each is answered when the command is committed.
        """
        outcome = (
            self._machine.suppose(command)
            if requester
            else CommandResult(refusal=out_of_range(command, self._machine.map))
        )
        data = encode_command(command) if not outcome.refusal else b""
        if len(data) > COMMAND_BYTES_MAX:
            outcome = CommandResult(refusal=f"{name_of(command)} of {len(data)} bytes: a log entry holds less")
        elif data and not is_readable(data):
            outcome = CommandResult(refusal=f"{name_of(command)} with a part that is out of range")
        if outcome.refusal:
            self._count("commands_refused")
            if requester is None:
                say(logger, "map.not_proposed", why=outcome.refusal)
            else:
                self._answer(requester, command, outcome)
            return
        self._give(self._under_way.add(command, data, requester, changes))

    def propose_policy(self, command: PolicyCommand, data: bytes, requester: ProposalOrigin | None) -> None:
        """Propose a policy command that is already validated."""
        self._give(self._under_way.add(command, data, requester))

    def _give(self, proposed: OpenProposal) -> None:
        self._new.append(Proposal(proposed.number, proposed.command, proposed.data))

    def take(self) -> list[Proposal]:
        """Remove and return the proposals of this iteration, in order."""
        new, self._new = self._new, []
        return new

    def take_committed(self, data: bytes) -> OpenProposal | None:
        """Return this router's proposal that was committed as these bytes, None if another router proposed it."""
        return self._under_way.committed(data)

    def committed(self, proposed: OpenProposal, command: Command, outcome: CommandResult) -> None:
        """Answer the nodes that wait for a committed and applied command."""
        for node, change in proposed.changes:
            self._answer_change(node, change, command)
        if proposed.requester is not None:
            self._answer(proposed.requester, command, outcome)

    def failed(self, number: int, leader_hint: str) -> OpenProposal | None:
        """Answer the nodes that wait for a failed command; return its proposal, None if it was committed after all."""
        proposed = self._under_way.failed(number)
        if proposed is None:
            return None
        for node, change in proposed.changes:
            self._refuse(node, change.request, "unavailable", "not committed")
        requester = proposed.requester
        if requester is not None and requester.question is not None:
            self._send_message(requester.node, not_committed(requester.question, leader_hint))
        elif requester is not None:
            code = "not_leader" if leader_hint else "unavailable"
            self._refuse(requester.node, requester.request, code, "not committed")
        return proposed

    def _answer(self, requester: ProposalOrigin, command: Command, outcome: CommandResult) -> None:
        """Send the result of a command to the node that requested it."""
        if requester.question is not None:
            self._send_message(requester.node, reply_to(requester.question, outcome, self._machine))
        elif outcome.refusal:
            self._refuse(requester.node, requester.request, "invalid", outcome.refusal)
        elif isinstance(command, RegisterNode):
            entry = command.entry
            assert self._machine.map.is_alive(entry.node, entry.incarnation), "the map has it before it is answered"
            self._send_message(requester.node, Registered(requester.request, entry.incarnation, self._policy_epoch()))
        else:
            self._send_message(requester.node, Changed(requester.request))

    def _answer_change(self, node: str, change: RequestChange, command: Command) -> None:
        assert isinstance(command, PlacePartitions), "only placements join requests"
        placement = self._machine.map.partitions[change.partition]
        if placement == command.entries[change.partition]:
            self._send_message(node, Changed(change.request))
        else:
            self._refuse(node, change.request, "invalid", f"partition {change.partition} is at {placement.epoch}")
