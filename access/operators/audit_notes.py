"""Lines of the audit that strangers cause, bounded: who is refused a thousand times a second fills no disk.

The first of a kind from an address is written at once, with whom it was; the same again within ten seconds is counted,
and written as one line. So it is for each user where a name was proved; one that a CONNECT gave names nobody. Beyond
the table's room one line counts all others. Sans-IO.
"""

from dataclasses import dataclass

import msgspec

from access.operators.audit_chain import AuditRecord

__all__ = ["AuditNotes"]

QUIET_S = 10.0
KEYS_MAX = 1_000
OTHERS = "of further addresses"

NOT_PROVED = frozenset(("login",))  # kinds whose actor may be any name, another one each time

_Key = tuple[str, str, str, str, str]  # kind, outcome, address, reason, actor


@dataclass(slots=True)
class _Kind:
    until: float
    last: AuditRecord
    more: int = 0


class AuditNotes:
    """Records on their way to the audit of one node."""

    def __init__(self) -> None:
        self._kinds: dict[_Key, _Kind] = {}  # by the end of the quiet time, ascending
        self._due: list[AuditRecord] = []

    def note(self, now: float, record: AuditRecord) -> None:
        """Take a record; it is due now, or counted until its kind is due again."""
        self._end(now)
        actor = "" if record.kind in NOT_PROVED else record.actor
        key = (record.kind, record.outcome, record.address, record.reason, actor)
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= KEYS_MAX:
            key = (record.kind, record.outcome, "", OTHERS, "")
            record = AuditRecord(record.kind, record.outcome, reason=OTHERS)
            kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(now + QUIET_S, record)
            self._due.append(record)
        else:
            kind.last, kind.more = record, kind.more + record.count

    def take(self, now: float) -> list[AuditRecord]:
        """Return what is to be written now, in order."""
        self._end(now)
        due, self._due = self._due, []
        return due

    def take_all(self) -> list[AuditRecord]:
        """Return all that is left: the node ends."""
        return self.take(float("inf"))

    def next_deadline(self) -> float:
        """Return when something is due, infinity if nothing waits."""
        if self._due:
            return float("-inf")
        return min((kind.until for kind in self._kinds.values() if kind.more), default=float("inf"))

    def _end(self, now: float) -> None:
        """Write what was counted of kinds whose quiet time is over."""
        for key, kind in list(self._kinds.items()):
            if kind.until > now:
                return
            del self._kinds[key]
            if kind.more:
                self._due.append(msgspec.structs.replace(kind.last, count=kind.more))
                if now < float("inf"):
                    self._kinds[key] = _Kind(now + QUIET_S, kind.last)
