"""Proposals of policy commands: refused without a log entry where the result is known.

A refusal names the fault. A repeated order is not proposed again, it gets its first result. Sans-IO.
"""

import logging
from collections.abc import Callable

from access.policy.commands import PolicyCommand, encode_policy_command, is_readable
from access.policy.machine import PolicyMachine, PolicyOutcome
from conf.events import say
from router.map.command_bounds import COMMAND_BYTES_MAX
from router.map.proposals import ProposalOrigin
from wire.messages.message import name_of

__all__ = ["PolicyProposals"]

logger = logging.getLogger(__name__)


class PolicyProposals:
    """Policy proposals of one router.

    Args:
        machine: The policy, as committed so far.
        propose_command: Proposes encoded commands to Raft, with the node that waits for them.
        count: Counts an event by name.
    """

    def __init__(
        self,
        machine: PolicyMachine,
        propose_command: Callable[[PolicyCommand, bytes, ProposalOrigin | None], None],
        count: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._propose_command = propose_command
        self._count = count

    def propose(
        self, command: PolicyCommand, requester: ProposalOrigin | None = None, *, is_current: bool = True
    ) -> PolicyOutcome | None:
        """Propose a command to Raft, or return its result if it is refused or was applied before.

        Args:
            is_current: The machine has all commits of former leaders. Otherwise the refusal is left to the log.
        """
        outcome = self._machine.suppose(command)
        if outcome.order is not None:
            return outcome
        refusal = outcome.refusal if is_current else ""
        data = b"" if refusal else encode_policy_command(command)
        if len(data) > COMMAND_BYTES_MAX:
            refusal = f"{name_of(command)} of {len(data)} bytes: a log entry holds less"
        elif data and not is_readable(data):
            refusal = f"{name_of(command)} with a part that is out of range"
        if not refusal:
            self._propose_command(command, data, requester)
            return None
        self._count("policy_commands_refused")
        if requester is None:
            say(logger, "policy.not_proposed", why=refusal)
        return PolicyOutcome(refusal=refusal)
