"""Verbs of operators at one node, from the question to the reply, which waits until its line is on the disk.

| question | asked | its reply |
|---|---|---|
| reads, or is a dry run, and is granted | nothing | goes at once |
| refused by role, tier or arguments | noted | waits for its line; without room it goes, and is counted |
| changes something | refused without room for its line; else noted | waits for its line |

Where the line of a change fails, the change stands and the reply says both. Sans-IO.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from access.operators.audit_chain import AuditRecord
from access.operators.verbs import Operator, Refusal, audit_arguments, judge, operator_of, speaker
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply

__all__ = ["AuditedVerbs", "LinesOut"]

FAILED = 1
PARTIAL = 3
NOT_READY = 4
OPEN_MAX = 4_096  # verbs whose reply is awaited


class LinesOut(Protocol):
    """The audit of a node, as verbs use it."""

    def refusal(self) -> str:
        """Return why nothing can be written, "" if it can."""

    def write(self, record: AuditRecord, then: Callable[[str], None]) -> None:
        """Write a record; ``then`` is told "" when it is on the disk, or why it is not."""


class AuditedVerbs:
    """The verbs of one node.

    Args:
        tier: Of this node.
        audit: Where lines go.
        whence: Returns (address, serial number of the certificate) of an operator's link.
    """

    def __init__(self, tier: str, audit: LinesOut, whence: Callable[[str], tuple[str, str]]) -> None:
        self._tier = tier
        self._audit = audit
        self._whence = whence
        self._open: dict[tuple[str, int], AuditRecord] = {}

    def asked(self, peer: PeerKey, question: Admin) -> AdminReply | None:
        """Take note of a question; returns the reply to one that is refused for want of room."""
        operator = speaker(question, operator_of(peer))
        try:
            verb, arguments = judge(question, operator_of(peer), self._tier)
        except Refusal as refusal:
            if len(self._open) < OPEN_MAX:
                self._note(peer, operator, question, AuditRecord("verb", "refused", reason=str(refusal)))
            return None
        if not verb.changes or getattr(arguments, "dry_run", False):
            return None
        why = self._audit.refusal()
        if not why and len(self._open) >= OPEN_MAX:
            why = f"{OPEN_MAX} verbs wait for their replies: ask again"
        if why:
            return AdminReply(question.request, False, None, why, NOT_READY)
        self._note(peer, operator, question, AuditRecord("verb", "done", arguments=audit_arguments(arguments)))
        return None

    def _note(self, peer: PeerKey, operator: Operator | None, question: Admin, record: AuditRecord) -> None:
        address, serial = self._whence(peer.node)
        self._open[peer.node, question.request] = msgspec.structs.replace(
            record,
            actor=operator.name if operator is not None else peer.node,
            role=operator.role.name.lower() if operator is not None else "",
            serial=serial,
            address=address,
            verb=question.verb,
        )

    def waits(self, node: str) -> bool:
        """Return whether the reply to a question of this node's may have a line."""
        return bool(self._open) and any(asker == node for asker, _ in self._open)

    def replied(self, node: str, reply: AdminReply, send: Callable[[AdminReply], None]) -> None:
        """Send a reply, behind its line if it has one."""
        record = self._open.pop((node, reply.request), None)
        if record is None:
            send(reply)
            return
        refused = record.outcome == "refused"
        if not refused:
            outcome = "done" if reply.ok else "partial" if reply.exit_code == PARTIAL else "failed"
            record = msgspec.structs.replace(record, outcome=outcome, reason=reply.error, epoch=_epoch(reply))

        def written(why: str) -> None:
            if why and not refused:
                text = f"{reply.error or 'it is done'}, and has no line: {why}"
                send(AdminReply(reply.request, False, reply.result, text, reply.exit_code or FAILED))
            else:
                send(reply)

        self._audit.write(record, written)


def _epoch(reply: AdminReply) -> int:
    result = reply.result if isinstance(reply.result, dict) else {}
    epoch = result.get("policy_epoch", result.get("map_epoch"))
    return epoch if isinstance(epoch, int) else 0
