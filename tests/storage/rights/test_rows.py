"""Rows contain their owner; rows of an older version have none."""

from typing import Any

import msgspec
import pytest

from storage.state.durable_sessions import DurableSession
from storage.state.rows import RetainedRow, SessionRow, SubscriptionRow, WillRow, pack, unpack
from wire.messages.sessions import SessionSubscription
from wire.messages.wills import SessionWill

SESSION = SessionRow("c", 7, 60, owner="ann", owner_made=5, judged=(1 << 64) - 1, recheck_below=9)
OWNED = [
    (SESSION, 4),
    (SubscriptionRow(SessionSubscription("a/#", 1), partial=True, since=4), 2),
    (WillRow("c", 7, SessionWill("w", b"x"), "e1", 3, owner="ann", owner_made=5), 2),
    (RetainedRow("t", b"x", 1, b"", 0, 0, 1, 2, 3, owner="ann", owner_made=5, arrived=4), 3),
]


@pytest.mark.parametrize(("row", "new"), OWNED)
def test_row_of_an_older_version_has_no_owner_and_is_unauthorized(row: Any, new: int) -> None:
    fields = msgspec.structs.fields(type(row))
    values = msgspec.msgpack.decode(pack(row))
    read = unpack(type(row), msgspec.msgpack.encode(values[:-new]))
    assert [getattr(read, field.name) for field in fields[-new:]] == [field.default for field in fields[-new:]]
    assert not any(field.default for field in fields[-new:])
    assert unpack(type(row), pack(row)) == row


def test_will_of_an_older_version_has_no_address() -> None:
    """Bans of its user and client ID still suppress it."""
    row = WillRow("c", 7, SessionWill("w", b"x", address="192.0.2.1", fingerprint="ab" * 32), "e1", 3, owner="ann")
    values = msgspec.msgpack.decode(pack(row))
    values[2] = values[2][:7]
    read = unpack(WillRow, msgspec.msgpack.encode(values))
    assert read.will == SessionWill("w", b"x") and read.owner == "ann"
    assert unpack(WillRow, pack(row)) == row


def test_session_row_keeps_its_owner() -> None:
    row = SESSION
    session = DurableSession.from_row(1 << 48 | 1, row)
    assert (session.owner, session.owner_made, session.judged, session.recheck_below) == ("ann", 5, (1 << 64) - 1, 9)
    assert session.row() == row


def test_session_of_an_older_version_has_no_owner() -> None:
    values = msgspec.msgpack.decode(pack(SessionRow("c", 7, 60)))
    session = DurableSession.from_row(1 << 48 | 1, unpack(SessionRow, msgspec.msgpack.encode(values[:-4])))
    assert (session.owner, session.owner_made, session.judged, session.recheck_below) == ("", 0, 0, 0)
