"""Verbs of operators at one node, from request to reply; the reply waits until its audit line is on disk.

| request | when received | its reply |
|---|---|---|
| reads, or is a dry run, and is authorized | pending reply is counted | sent at once |
| refused by role, tier or arguments | recorded | waits for its line; if the disk is full it is sent, and counted |
| the same, while OPEN_MAX others wait | counted: one line of its reason and address has the number | sent at once |
| changes state | refused and counted if its line has no space; else recorded | waits for its line |
| has the number of another pending one | refused and counted, unless both read | sent at once |
| repeats that one, by the same order | ignored | sent at once, if the other reply had the line |

A reply is identified by the requester's number only. A second request of the same number would take the first one's
line, or leave a change without one.

If the line of a change fails, the change stays and the reply reports both. Sans-IO.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from access.operators.audit_chain import AuditRecord
from access.operators.commands import Operator, Refusal, audit_arguments, judge, operator_of, speaker
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply

__all__ = ["AuditLineSink", "AuditedVerbs"]

FAILED = 1
PARTIAL = 3
NOT_READY = 4
OPEN_MAX = 4_096  # verbs with a pending reply; and as many reading ones, of which the oldest is removed beyond it
Key = tuple[str, int]  # requesting node, number of its request


class AuditLineSink(Protocol):
    """The audit log of a node, as verbs use it."""

    def refusal(self) -> str:
        """Return why records cannot be written, "" if they can."""

    def note(self, record: AuditRecord) -> None:
        """Write a record soon, or count it with those of its reason and address."""

    def write(self, record: AuditRecord, then: Callable[[str], None]) -> None:
        """Write a record; ``then`` is called with "" when it is on disk, or with the error."""


class _Awaited:
    """A request whose first reply writes a line."""

    __slots__ = ("_question", "record", "replies")

    def __init__(self, question: Admin, record: AuditRecord) -> None:
        self._question = _unrepeated(question)
        self.record: AuditRecord | None = record
        self.replies = 1  # pending

    def is_repeated_by(self, question: Admin) -> bool:
        """Return whether a request repeats this one."""
        return question.order != "" and _unrepeated(question) == self._question


class AuditedVerbs:
    """The verbs of one node.

    Args:
        tier: Of this node.
        audit: Receives the lines.
        whence: Returns (address, serial number of the certificate) of an operator's link.
    """

    def __init__(self, tier: str, audit: AuditLineSink, whence: Callable[[str], tuple[str, str]]) -> None:
        self._tier = tier
        self._audit = audit
        self._whence = whence
        self._open: dict[Key, _Awaited] = {}
        self._reads: dict[Key, int] = {}  # number of pending replies
        self._askers: Counter[str] = Counter()  # keys of both, by node

    def asked(self, peer: PeerKey, question: Admin) -> AdminReply | None:
        """Register a request; return the reply if it is refused for lack of space or for its number."""
        operator, key = speaker(question, operator_of(peer)), (peer.node, question.request)
        record = self._record(peer, question)
        awaited = self._open.get(key)
        if awaited is not None and awaited.is_repeated_by(question):
            awaited.replies += 1
            return None
        if awaited is not None or (record is not None and key in self._reads):
            why = "a number whose reply is awaited"
            self._audit.note(self._whole(peer, operator, question, AuditRecord("verb", "refused", reason=why)))
            return _refused(question, f"request {question.request} waits for its reply: number each question anew")
        if record is None:
            self._note_read(key)
            return None
        whole = self._whole(peer, operator, question, record)
        if record.outcome != "refused":
            why = self._audit.refusal()
            if not why and len(self._open) >= OPEN_MAX:
                why = f"{OPEN_MAX} verbs wait for their replies: ask again"
            if why:
                self._audit.note(msgspec.structs.replace(whole, outcome="refused", reason=why))
                return _refused(question, why)
        if len(self._open) < OPEN_MAX:
            self._open[key] = _Awaited(question, whole)
            self._askers[peer.node] += 1
        else:
            self._audit.note(whole)
        return None

    def _record(self, peer: PeerKey, question: Admin) -> AuditRecord | None:
        """Return the line of a request as far as known, None if it writes none."""
        try:
            verb, arguments = judge(question, operator_of(peer), self._tier)
        except Refusal as refusal:
            return AuditRecord("verb", "refused", reason=str(refusal))
        if not verb.changes or getattr(arguments, "dry_run", False):
            return None
        return AuditRecord("verb", "done", arguments=audit_arguments(arguments))

    def _note_read(self, key: Key) -> None:
        if key in self._reads:
            self._reads[key] += 1
            return
        if len(self._reads) >= OPEN_MAX:
            self._leave(self._reads, next(iter(self._reads)))
        self._reads[key] = 1
        self._askers[key[0]] += 1

    def _leave(self, table: dict[Key, Any], key: Key) -> None:
        """Remove one pending reply of a key."""
        del table[key]
        self._askers[key[0]] -= 1
        if not self._askers[key[0]]:
            del self._askers[key[0]]

    def _whole(self, peer: PeerKey, operator: Operator | None, question: Admin, record: AuditRecord) -> AuditRecord:
        address, serial = self._whence(peer.node)
        return msgspec.structs.replace(
            record,
            actor=operator.name if operator is not None else peer.node,
            role=operator.role.name.lower() if operator is not None else "",
            serial=serial,
            address=address,
            verb=question.verb,
        )

    def waits(self, node: str) -> bool:
        """Return whether a reply to this node is pending."""
        return node in self._askers

    def replied(self, node: str, reply: AdminReply, send: Callable[[AdminReply], None]) -> None:
        """Send a reply, after its line if it has one."""
        record = self._taken((node, reply.request))
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

    def _taken(self, key: Key) -> AuditRecord | None:
        """Return the line of a reply, None if it has none or an earlier reply wrote it."""
        awaited = self._open.get(key)
        if awaited is None:
            replies = self._reads.get(key, 0)
            if replies > 1:
                self._reads[key] = replies - 1
            elif replies:
                self._leave(self._reads, key)
            return None
        awaited.replies -= 1
        if not awaited.replies:
            self._leave(self._open, key)
        record, awaited.record = awaited.record, None
        return record


def _unrepeated(question: Admin) -> Admin:
    return msgspec.structs.replace(question, repeated=False)


def _refused(question: Admin, why: str) -> AdminReply:
    return AdminReply(question.request, False, None, why, NOT_READY)


def _epoch(reply: AdminReply) -> int:
    result = reply.result if isinstance(reply.result, dict) else {}
    epoch = result.get("policy_epoch", result.get("map_epoch"))
    return epoch if isinstance(epoch, int) else 0
