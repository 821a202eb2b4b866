"""Query kinds: rows of each kind are encoded and decoded, roles are compared, and malformed rows are refused."""

import msgspec
import pytest

from wire.decoding import Unreadable
from wire.messages.client_rows import ClientRow
from wire.messages.control import decode_control, encode_control
from wire.messages.queries import LOOK_ROWS_MAX, Query, QueryResult
from wire.messages.query_kinds import LOOK_KINDS, columns_of, lower_role, may_look, rows_of


@pytest.mark.parametrize("what", sorted(LOOK_KINDS))
def test_rows_of_decodes_a_row_of_each_kind(what: str) -> None:
    row = LOOK_KINDS[what].row()
    assert rows_of(what, QueryResult(1, [msgspec.msgpack.encode(row)])) == [row]
    assert columns_of(what) == row.__struct_fields__
    assert all(getattr(row, column) is None for column in columns_of(what)), "what is not known is None"


def test_rows_of_unrequested_column_is_absent() -> None:
    packed = msgspec.msgpack.encode(ClientRow(client_id="c", inflight=0))
    assert msgspec.msgpack.decode(packed) == {"client_id": "c", "inflight": 0}


def test_rows_of_refuses_a_row_of_another_kind() -> None:
    with pytest.raises(Unreadable, match="row of clients"):
        rows_of("clients", QueryResult(1, [msgspec.msgpack.encode({"client_id": 5})]))


@pytest.mark.parametrize(
    ("one", "other", "lower"),
    [
        ("admin", "viewer", "viewer"),
        ("operator", "admin", "operator"),
        ("admin", "admin", "admin"),
        ("admin", "", "viewer"),
    ],
)
def test_lower_role_returns_the_lower_one(one: str, other: str, lower: str) -> None:
    assert lower_role(one, other) == lower_role(other, one) == lower


def test_query_kinds_logs_and_traces_require_an_operator() -> None:
    assert [what for what in LOOK_KINDS if not may_look(what, "viewer")] == ["log", "trace"]
    assert all(may_look(what, "admin") for what in LOOK_KINDS)


@pytest.mark.parametrize(
    "look",
    [
        Query(1, "clients", limit=0),
        Query(1, "clients", limit=LOOK_ROWS_MAX + 1),
        Query(1, "clients", where={str(n): "" for n in range(17)}),
        Query(1, "clients", where={"client_id": "x" * 65_536}),
        Query(1, "clients", columns=["c"] * 65),
        Query(1, "clients", wait_ms=10_001),
        Query(1, "w" * 33),
    ],
)
def test_query_beyond_its_bounds_is_unreadable(look: Query) -> None:
    with pytest.raises(Unreadable):
        decode_control(encode_control(look))
