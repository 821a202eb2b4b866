"""Records of unauthenticated peers are written once, then counted; the table is bounded."""

import math

from access.operators.audit_chain import AuditRecord
from access.operators.audit_notes import KEYS_MAX, OTHERS, QUIET_S, AuditNotes


def refused(address: str, actor: str = "eve") -> AuditRecord:
    return AuditRecord("login", "refused", actor=actor, address=address, reason="0x86 bad")


def test_the_first_is_due_at_once_and_the_same_again_is_one_line() -> None:
    notes = AuditNotes()
    for number in range(5_000):
        notes.note(1.0, refused("10.0.0.1", f"guess-{number}"))
    assert [(line.actor, line.count) for line in notes.take(1.0)] == [("guess-0", 1)]
    assert notes.take(1.0 + QUIET_S - 0.01) == []
    assert notes.next_deadline() == 1.0 + QUIET_S
    assert [(line.actor, line.count) for line in notes.take(1.0 + QUIET_S)] == [("guess-4999", 4_999)]
    assert notes.next_deadline() == math.inf


def test_another_reason_or_address_has_a_line_of_its_own() -> None:
    notes = AuditNotes()
    notes.note(0.0, refused("10.0.0.1"))
    notes.note(0.0, refused("10.0.0.2"))
    notes.note(0.0, AuditRecord("login", "refused", address="10.0.0.1", reason="0x8A banned"))
    assert len(notes.take(0.0)) == 3


def test_a_user_that_is_known_has_a_line_of_its_own() -> None:
    """Many users share one address; a name in a CONNECT is unverified."""
    notes = AuditNotes()
    for kind in ("publish", "subscribe", "will", "login"):
        for actor in ("anna", "bert", "anna"):
            notes.note(0.0, AuditRecord(kind, "refused", actor=actor, address="10.0.0.1", reason="not authorized"))
    due = [(line.kind, line.actor) for line in notes.take(0.0)]
    assert due == [(kind, actor) for kind in ("publish", "subscribe", "will") for actor in ("anna", "bert")] + [
        ("login", "anna")
    ]


def test_more_addresses_than_the_table_holds_are_counted_together() -> None:
    notes = AuditNotes()
    for number in range(KEYS_MAX + 700):
        notes.note(0.0, refused(f"10.0.{number >> 8}.{number & 255}"))
    due = notes.take(0.0)
    assert len(due) == KEYS_MAX + 1 and due[-1].reason == OTHERS
    (more,) = notes.take_all()
    assert more.count == 699 and more.reason == OTHERS


def test_notes_quiet_kinds_are_removed() -> None:
    notes = AuditNotes()
    notes.note(0.0, refused("10.0.0.1"))
    notes.take(0.0)
    assert notes.take(QUIET_S) == []
    notes.note(QUIET_S + 1, refused("10.0.0.1"))
    assert len(notes.take(QUIET_S + 1)) == 1
