"""The policy at a router: its machine, its followers, queries about it, and pending commands.

A command that revokes rights is answered when no node acts by the former policy. So is one without effect, because the
command that made the change may still be pending. A command that only grants is answered at its commit. Sans-IO. Rules:
docs/adr/0034.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from access.operators.arguments import PolicyStatus, TokenCheck
from access.policy.commands import PolicyCommand, PolicyOrder
from access.policy.machine import PolicyMachine, PolicyOutcome
from router.map.not_leading import does_not_lead
from router.map.proposals import OpenProposal, ProposalOrigin
from router.policy.policy_answers import READING, affected_names
from router.policy.policy_commands import CHANGING
from router.policy.policy_proposals import PolicyProposals
from router.policy.policy_stream import PolicyStream
from router.policy.pruning import PruneSchedule
from router.policy.user_answers import answers_to
from router.policy.verb_waits import CompletedWait, SettlementWaits, WaitEnd
from wire.messages.cluster_map import ClusterMap, NodeIncarnation
from wire.messages.control import Control
from wire.messages.digests import DigestLog, Verdict
from wire.messages.hello import PeerKey
from wire.messages.nodes import Heartbeat
from wire.messages.operators import Admin, AdminReply
from wire.messages.policy import AskCredentials, FetchUsers, FollowPolicy

__all__ = ["Leadership", "PolicyQuestion", "PolicyService"]

FAILED = 1
PARTIAL = 3
NOT_READY = 4

PolicyQuestion = FollowPolicy | AskCredentials | FetchUsers


class Leadership(NamedTuple):
    """Leadership of this router, for answers to operators."""

    here: bool  # it leads
    node: str
    leader: str  # "" if none is known


class PolicyService:
    """The policy at one router.

    Args:
        send_message: Sends a message to a node.
        send: Sends an encoded message to a node.
        propose_command: Proposes encoded commands to Raft, with the node that waits for them.
        count: Counts an event by name.
        utc: Seconds since the epoch, by this machine's clock, which ends bans.
        page_bytes: Largest part of a whole view in one message.
        pruning: Determines when to remove expired entries.
    Attributes:
        digests: Of the newest policy epochs.
        credentials_sent: Number of password records sent, by requesting edge.
    """

    def __init__(
        self,
        send_message: Callable[[str, Control], None],
        send: Callable[[str, bytes], None],
        propose_command: Callable[[PolicyCommand, bytes, ProposalOrigin | None], None],
        count: Callable[[str], None],
        utc: Callable[[], float],
        page_bytes: int,
        pruning: PruneSchedule,
    ) -> None:
        self.machine = PolicyMachine()
        self.digests = DigestLog()
        self.waits = SettlementWaits()
        self.credentials_sent: Counter[str] = Counter()
        self.is_current = False  # all commits of former leaders are applied
        self._send_message = send_message
        self._send = send
        self._utc = utc
        self._stream = PolicyStream(page_bytes)
        self._proposals = PolicyProposals(self.machine, propose_command, count)
        self._pruning = pruning

    @property
    def epoch(self) -> int:
        """Return the policy_epoch of this router."""
        return self.machine.epoch

    # --- the log

    def applied(
        self, now: float, command: PolicyCommand, proposed: OpenProposal | None, cluster_map: ClusterMap
    ) -> None:
        """Apply a committed command, send the step to followers, and answer the local requester."""
        outcome = self.machine.apply(command)
        if outcome.step is not None:
            self.digests.note(self.machine.epoch, self.machine.digest)
            for node, data in self._stream.step(outcome.step):
                self._send(node, data)
            self.waits.committed(now, self.machine.epoch, cluster_map)
        if proposed is not None:
            self.is_current = True  # the log has this entry after all commits of former leaders
            if proposed.requester is not None:
                self._answer(now, proposed.requester, outcome)

    def start_leading(self, now: float, cluster_map: ClusterMap) -> None:
        """Start as the leader; commits of former leaders may still have to be applied."""
        self.waits.start_leading(now, cluster_map, self.epoch)
        self.is_current = False

    def replaced(self, now: float) -> None:
        """Send the whole policy to followers, after a snapshot replaced it."""
        self.digests.begin(self.machine.epoch, self.machine.digest)
        for node, message in self._stream.replaced(now, self.machine):
            self._send_any(node, message)

    def propose(self, now: float, command: PolicyCommand, requester: ProposalOrigin | None = None) -> None:
        """Propose a command; its requester is answered when it is refused, settled, or timed out."""
        outcome = self._proposals.propose(command, requester, is_current=self.is_current)
        if outcome is not None and requester is not None:
            self._answer(now, requester, outcome)

    # --- messages

    def handle(self, now: float, node: str, peer: PeerKey, message: PolicyQuestion) -> None:
        """Process an edge's request about the policy."""
        if isinstance(message, FollowPolicy):
            for answer in self._stream.follow(now, node, peer.incarnation, message, self.machine):
                self._send_any(node, answer)
        else:
            if isinstance(message, AskCredentials):
                self.credentials_sent[node] += 1
            for users in answers_to(message, self.machine):
                self._send_message(node, users)

    def record_heartbeat(self, now: float, message: Heartbeat) -> None:
        """Process the policy state of a heartbeat at the leader; a contradicting state is ignored."""
        if self.verdict(message).contradicts:
            return
        incarnation: NodeIncarnation = (message.node, message.incarnation)
        self.waits.record_heartbeat(now, incarnation, message.policy_received, message.policy_epoch, self.machine.epoch)

    def verdict(self, message: Heartbeat) -> Verdict:
        """Return how the policy of a heartbeat compares with this log."""
        return self.digests.verdict(message.policy_received, message.policy_digest)

    def link_down(self, peer: PeerKey) -> None:
        """Remove a follower whose link ended; it follows again over the next link."""
        self._stream.link_down(peer)

    def _send_any(self, node: str, message: Control | bytes) -> None:
        if isinstance(message, bytes):
            self._send(node, message)
        else:
            self._send_message(node, message)

    # --- operators

    def process_request(
        self, now: float, node: str, question: Admin, arguments: msgspec.Struct, leads: Leadership
    ) -> None:
        """Answer an operator's request about the policy; the leader may propose its command.

        Args:
            arguments: Result of ``access.operators.commands.judge``.
            leads: Whether this router leads, and the leader's name.
        """
        if question.verb in READING and not isinstance(arguments, TokenCheck):
            self._send_message(node, self._read(question, arguments))
        elif not leads.here:
            self._send_message(node, does_not_lead(question, leads.node, leads.leader))
        elif isinstance(arguments, PolicyStatus | TokenCheck) and not self.is_current:
            self._send_message(node, does_not_lead(question, leads.node, ""))  # it may miss this epoch or token yet
        elif isinstance(arguments, TokenCheck):
            self._send_message(node, self._read(question, arguments))  # leader only: a revoked token is invalid at once
        elif isinstance(arguments, PolicyStatus):
            epoch = arguments.epoch or self.machine.epoch
            self.waits.wait(now, min(epoch, self.machine.epoch), ProposalOrigin(node, question.request, question))
        else:
            self._change(now, node, question, arguments)

    def _read(self, question: Admin, arguments: msgspec.Struct) -> AdminReply:
        try:
            return AdminReply(question.request, True, READING[question.verb](arguments, self.machine))
        except ValueError as error:
            return AdminReply(question.request, False, None, str(error.args[0]), FAILED)

    def _change(self, now: float, node: str, question: Admin, arguments: msgspec.Struct) -> None:
        try:
            command = CHANGING[question.verb](arguments, self._utc())
        except ValueError as error:
            self._send_message(node, AdminReply(question.request, False, None, str(error.args[0]), FAILED))
            return
        if getattr(arguments, "dry_run", False):
            self._send_message(node, _dry_run_reply(question, self.machine.suppose(command), self.machine.epoch))
            return
        order = PolicyOrder(question.order, command) if question.order else command
        self.propose(now, order, ProposalOrigin(node, question.request, question))

    def step(self, now: float) -> None:
        """Answer the commands whose wait ended, and propose the leader's own commands."""
        for ended in self.waits.take_ended(now):
            self._send_message(ended.requester.node, _ended(ended))
        if self.waits.leads and self.is_current and (prune := self._pruning.due(now, self.machine.tables)) is not None:
            self.propose(now, prune)

    def next_deadline(self) -> float:
        """Return when ``step`` must be called, at the leader."""
        prune_at = self._pruning.next_deadline() if self.is_current else float("inf")
        return min(self.waits.next_deadline(), prune_at)

    def _answer(self, now: float, requester: ProposalOrigin, outcome: PolicyOutcome) -> None:
        question = requester.question
        assert question is not None, "nodes ask for no change of the policy"
        first = outcome.order
        refusal = first.refusal if first is not None else outcome.refusal
        if refusal:
            self._send_message(requester.node, AdminReply(question.request, False, None, refusal, FAILED))
            return
        epoch = first.epoch if first is not None else self.machine.epoch
        if outcome.step is not None and not outcome.step.takes:
            self._send_message(requester.node, AdminReply(question.request, True, _result(epoch, [], settled=True)))
        else:
            self.waits.wait(now, epoch, requester)


def _result(epoch: int, awaited: list[str], *, settled: bool) -> dict[str, object]:
    return {"policy_epoch": epoch, "settled": settled, "waits_for": awaited}


def _ended(ended: CompletedWait) -> AdminReply:
    """Return the reply to an operator at the end of a wait."""
    request, epoch, awaited = ended.requester.request, ended.epoch, ended.awaited
    if ended.end is WaitEnd.SETTLED:
        return AdminReply(request, True, _result(epoch, [], settled=True))
    result = _result(epoch, awaited, settled=False)
    if ended.end is WaitEnd.LOST:
        text = f"policy epoch {epoch} is committed, and another router leads: ask again to wait for it"
        return AdminReply(request, False, result, text, NOT_READY)
    text = f"policy epoch {epoch} is committed, but not yet in force everywhere: {'; '.join(awaited[:5])}"
    text += f"; `stratamq policy status --epoch {epoch}` goes on waiting"
    return AdminReply(request, False, result, text, PARTIAL)


def _dry_run_reply(question: Admin, outcome: PolicyOutcome, epoch: int) -> AdminReply:
    """Return the changes that a command would make now."""
    if outcome.refusal:
        return AdminReply(question.request, False, None, outcome.refusal, FAILED)
    changes: dict[str, object] = {"dry_run": True, "policy_epoch": epoch, "changes": outcome.step is not None}
    if outcome.step is not None:
        changes["takes_from"] = affected_names(outcome.step.takes)
    return AdminReply(question.request, True, changes)
