"""One form of a row for programs: the HTTP service tells what `-o json` prints."""

import json
from typing import Any

import msgspec
import pytest
from litestar import Litestar, get

from admin.api_rows import row_told, told, told_type
from admin.http.description import complete
from admin.timestamps import is_time, iso, ms_of
from stratamq.cli import cells
from tests.stratamq.test_row_lines import values
from wire.messages.query_kinds import LOOK_KINDS


@pytest.mark.parametrize("what", sorted(LOOK_KINDS))
def test_api_row_equals_command_line_row(what: str) -> None:
    """Names and texts of moments too: it told them as milliseconds, under names that nothing else has."""
    kind = LOOK_KINDS[what].row
    row = kind(**values(what, "a"))
    shown = json.loads(msgspec.json.encode(told(row)))
    assert shown == cells.plain_row(cells.fields_of(row) or {})
    assert not [name for name in shown if is_time(name)]
    if what != "trace":  # times to the microsecond have a form of their own
        assert row_told(kind, told(row)) == row
    assert told(kind()) == told_type(kind)() and json.loads(msgspec.json.encode(told(kind()))) == {}


def test_a_text_is_read_back() -> None:
    assert [ms_of(iso(at_ms / 1000)) for at_ms in (0, 1_795_697_164_113)] == [0, 1_795_697_164_113]


def test_openapi_describes_timestamps() -> None:
    kind = told_type(LOOK_KINDS["clients"].row)

    @get("/")
    async def rows() -> list[kind]:  # type: ignore[valid-type]
        return []

    schemas: Any = complete(Litestar([rows]).openapi_schema.to_schema())["components"]["schemas"]
    (of,) = (one for name, one in schemas.items() if name.endswith("ClientRow"))
    assert of["properties"]["connected_at"]["format"] == "date-time"
    assert "format" not in of["properties"]["client_id"]
