"""Lines of long lists are those that each row makes by itself."""

import json
from typing import Any

import pytest

from stratamq.cli import cells
from stratamq.cli.listing import row_of
from stratamq.cli.output import OutputFormat, render
from stratamq.cli.row_lines import row_lines
from wire.messages.query_kinds import LOOK_KINDS

TEXTS = ("plain", "caf\u00e9", 'quoted "connected_at_ms": 1', "a\u202eb\n", "\x1b[31m", "", '"connected_at_ms":')


def values(what: str, text: str) -> dict[str, Any]:
    """Return a value for each field of a kind, a time of year 10 000 among them."""
    made: dict[str, Any] = {}
    for number, (name, type_) in enumerate(LOOK_KINDS[what].row.__annotations__.items()):
        if "list" in str(type_):
            made[name] = [text] if number % 2 else []
        elif "str" in str(type_):
            made[name] = text
        elif "bool" in str(type_):
            made[name] = bool(number % 2)
        else:
            made[name] = 1_795_697_164_113 + number if cells.is_time(name) else number
    return made


@pytest.mark.parametrize("what", ["clients", "sessions", "subscriptions"])
def test_a_line_is_that_of_the_row_alone(what: str) -> None:
    kind = LOOK_KINDS[what].row
    full = [values(what, text) for text in TEXTS]
    rows: list[dict[str, Any]] = [*full, {}, {"client_id": "c"}, full[0] | {"node": None}]
    expected = [row_of(what, "asked", kind(**row)) for row in rows]
    names_node = what == "subscriptions" or what == "clients"
    text = row_lines(kind, [("asked", kind(**row)) for row in rows], names_node=names_node)
    assert [json.loads(line) for line in text.split("\n")] == [cells.plain_row(row) for row in expected]
    assert all(line.isprintable() for line in text.split("\n"))
    assert render([cells.plain_row(expected[0])], OutputFormat.JSONL) == text.split("\n")[0]


def test_half_of_a_pair_is_an_escape() -> None:
    kind = LOOK_KINDS["clients"].row
    text = row_lines(kind, [("edge-0", kind(client_id="\ud800", connected_at_ms=1))], names_node=True)
    assert json.loads(text) == {"client_id": "\ud800", "connected_at": "1970-01-01T00:00:00.001Z", "node": "edge-0"}
