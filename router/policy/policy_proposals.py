"""Commands about the policy on their way into the log: refused before they cost an entry, where that can be known.

A refusal names what is wrong; an order that came before is not proposed again, it gets its first outcome. Sans-IO.
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
    """Proposals about the policy of one router.

    Args:
        machine: The policy, as committed so far.
        give: Gives encoded commands to Raft, with the node that waits for them.
        count: Counts an event by name.
    """

    def __init__(
        self,
        machine: PolicyMachine,
        give: Callable[[PolicyCommand, bytes, ProposalOrigin | None], None],
        count: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._give = give
        self._count = count

    def propose(
        self, command: PolicyCommand, asker: ProposalOrigin | None = None, *, is_current: bool = True
    ) -> PolicyOutcome | None:
        """Give a command to Raft; return its outcome instead where that is known: it is refused, or came before.

        Args:
            is_current: The machine has all that was committed before this router led; otherwise the log refuses.
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
            self._give(command, data, asker)
            return None
        self._count("policy_commands_refused")
        if asker is None:
            say(logger, "policy.not_proposed", why=refusal)
        return PolicyOutcome(refusal=refusal)
