"""Problems of the service: each has a remedy, and an unknown parameter is one."""

import ast
from pathlib import Path
from typing import Annotated

import pytest
from litestar import get
from litestar.params import HeaderParameter

from admin.http.parameters import refuse_unknown
from admin.http.problems import DO, Problem, of_reply
from admin.http.row_handlers import refused
from conf.errors import ExitCode, UserError

HTTP = Path(__file__).parents[3] / "admin" / "http"


@get("/clients/{client_id:str}")
async def handler(
    client_id: str, dry_run: bool = False, at: Annotated[str, HeaderParameter(name="If-Match")] = "", limit: int = 1
) -> None:
    """Placeholder for any path."""
    del client_id, dry_run, at, limit


def test_problems_have_remedies() -> None:
    """`do` was empty for a wrong key, limit or path."""
    for path in sorted(HTTP.glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Problem"):
                continue
            code = call.args[1]
            if isinstance(code, ast.Constant) and code.value not in DO:
                assert len(call.args) > 3, f"{path.name}:{call.lineno}: {code.value!r}"
    for reply in (of_reply("no", ExitCode.FAILED, changes=True), of_reply("no", ExitCode.USAGE, changes=False)):
        assert reply.body("")["do"]
    assert of_reply("no such thing; mend it", ExitCode.FAILED, changes=True).body("")["do"] == "mend it"


def test_query_without_router_is_not_ready() -> None:
    """Without a router the response was 503 with the code of a wrong request."""
    late = refused(UserError("no router answers", ExitCode.NOT_READY))
    assert (late.status, late.code) == (503, "not_ready") and late.do and late.retry_s
    assert refused(UserError("no column 'x'", ExitCode.USAGE)).code == "bad_request"
    assert refused(UserError("this is not a cursor of a list", ExitCode.USAGE)).code == "stale_cursor"


@pytest.mark.parametrize("asked", [[], ["dry_run"], ["limit", "dry_run", "limit"]])
def test_parameters_of_a_path_are_taken(asked: list[str]) -> None:
    refuse_unknown(handler, ["client_id"], asked)


@pytest.mark.parametrize("asked", [["dryrun"], ["dry_run", "confirm"], ["client_id"], ["If-Match"], ["at"]])
def test_an_unknown_parameter_is_refused(asked: list[str]) -> None:
    """`DELETE /sessions/c?dryrun=true` deleted the session."""
    with pytest.raises(Problem, match=r"no filter key or parameter .*; there are dry_run, limit"):
        refuse_unknown(handler, ["client_id"], asked)
