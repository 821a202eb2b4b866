"""Rate-limited audit lines of unauthenticated peers, so that their requests cannot fill the disk.

The first event of a kind from an address is written at once with its actor; equal ones within ten seconds are counted
and written as one line. A verified name is counted per user; an unverified name in a CONNECT is not part of the kind.
Beyond the table's bound, one line counts all others. Sans-IO.
"""

from dataclasses import dataclass

import msgspec

from access.operators.audit_chain import AuditRecord

__all__ = ["AuditNotes"]

QUIET_S = 10.0
KEYS_MAX = 1_000
OTHERS = "of further addresses"

NOT_PROVED = frozenset(("login",))  # kinds whose actor is unverified and may change each time

_Key = tuple[str, str, str, str, str]  # kind, outcome, address, reason, actor


@dataclass(slots=True)
class _Kind:
    until: float
    last: AuditRecord
    more: int = 0


class AuditNotes:
    """Pending records for the audit log of one node."""

    def __init__(self) -> None:
        self._kinds: dict[_Key, _Kind] = {}  # by the end of the quiet time, ascending
        self._due: list[AuditRecord] = []

    def note(self, now: float, record: AuditRecord) -> None:
        """Add a record; it is due now, or counted until its kind is due again."""
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
        """Return the due records, in order."""
        self._end(now)
        due, self._due = self._due, []
        return due

    def take_all(self) -> list[AuditRecord]:
        """Return all pending records, when the node stops."""
        return self.take(float("inf"))

    def next_deadline(self) -> float:
        """Return the time of the next due record, infinity if there is none."""
        if self._due:
            return float("-inf")
        return min((kind.until for kind in self._kinds.values() if kind.more), default=float("inf"))

    def _end(self, now: float) -> None:
        """Add a record for counted events of kinds whose quiet time expired."""
        for key, kind in list(self._kinds.items()):
            if kind.until > now:
                return
            del self._kinds[key]
            if kind.more:
                self._due.append(msgspec.structs.replace(kind.last, count=kind.more))
                if now < float("inf"):
                    self._kinds[key] = _Kind(now + QUIET_S, kind.last)
