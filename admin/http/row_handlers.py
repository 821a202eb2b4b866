"""Handlers of the paths that list rows with cursors; ``row_paths.py`` defines the paths.

Columns of a row are filters in the query string, with ``*`` and ``?``, except timestamps, which nodes store as numbers.
A column named `node`, which is also a parameter, selects the nodes. Names are those of the API rows.
``admin/queries.py`` selects the nodes of a kind.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from access.operators.commands import ROLES
from admin import queries
from admin.api_rows import told, told_type
from admin.http.callers import Caller
from admin.http.partial import PartialResult
from admin.http.problems import Problem
from admin.http.row_paths import LISTS, ListPath
from admin.timestamps import is_time, plain_name
from conf.errors import ExitCode, UserError
from wire.messages.query_kinds import LOOK_KINDS, columns_of

__all__ = ["ClusterOf", "refused", "row_handlers", "rows_of_page"]

LIMIT_MAX = 1_000
PATTERN_MAX = 65_535
BEST = "Sort by this column, greatest first, over all nodes, without a cursor; empty: in the order of the nodes."
TAKES = {  # filters that are not columns
    "payload": "`head` or `full`: rows with the payload of a message; needs the role operator.",
    "matches": "Rows whose topic matches this topic filter.",
    "by": "Measure of the clients: age, window, unsent, queued or bytes.",
}
NONE = inspect.Parameter.empty


def page_type(what: str) -> type[msgspec.Struct]:
    """Return the type of a page of API rows of a kind."""
    row: Any = told_type(LOOK_KINDS[what].row)
    fields: list[Any] = [
        ("rows", list[row]),
        ("cursor", str, ""),
        ("complete", bool, True),
        ("partial", list[PartialResult], msgspec.field(default_factory=list)),
        ("restarted", list[str], msgspec.field(default_factory=list)),
        ("total_about", int, 0),
    ]
    return msgspec.defstruct(f"{row.__name__}Page", fields)


def rows_of_page(page: type[msgspec.Struct], listed: queries.ListResult, columns: Sequence[str] = ()) -> msgspec.Struct:
    """Return the API page of a result; rows without a node get it, if that column is selected."""
    rows = []
    for node, row in listed.rows:
        if (not columns or "node" in columns) and "node" in row.__struct_fields__ and row.node is None:
            row.node = node
        rows.append(told(row))
    partial = [PartialResult(*missing) for missing in listed.partial]
    return page(rows, listed.cursor, not partial, partial, list(listed.restarted), listed.total_about)


def refused(error: UserError) -> Problem:
    """Return the problem for a refused query."""
    text = error.message.split("\n")[0]
    if error.exit_code != ExitCode.USAGE:
        return Problem(503, "not_ready", text, retry_s=1.0)
    return Problem(400, "stale_cursor" if "cursor" in text else "bad_request", text)


ClusterOf = Callable[[Caller, float], Any]  # awaitable: a query's Cluster for a caller and a total time


def row_handlers(cluster_of: ClusterOf) -> list[HTTPRouteHandler]:
    """Return one handler for each list."""
    return [_handler(listing, cluster_of) for listing in LISTS]


def _handler(listing: ListPath, cluster_of: ClusterOf) -> HTTPRouteHandler:
    kind = LOOK_KINDS[listing.what]
    page = page_type(listing.what)
    fields = {plain_name(name): name for name in columns_of(listing.what)}  # by API name
    names = [*(name for name in columns_of(listing.what) if not is_time(name)), *kind.takes]
    first = plain_name(listing.best)

    async def handle(request: Request[Any, Any, Any], **given: Any) -> Any:
        caller: Caller = request.state.caller
        cluster = await cluster_of(caller, given["timeout"])
        where = {name: given[f"is_{name}"] for name in names if given.get(f"is_{name}")}
        selection = queries.ListQuery(
            where=where,
            nodes=_split(given["node"]),
            limit=given["limit"],
            cursor=given["cursor"],
            columns=[fields.get(name, name) for name in _split(given["columns"])],
            best=fields.get(given["best"], given["best"]) or listing.best,
        )
        try:
            _check_columns(fields, (*selection.columns, selection.best))
            return rows_of_page(page, await queries.walk(cluster, listing.what, selection), selection.columns)
        except UserError as error:
            raise refused(error) from None

    kind_of = inspect.Parameter.KEYWORD_ONLY
    parameters: dict[str, tuple[Any, Any]] = {"request": (Request[Any, Any, Any], NONE)}
    for name in names:
        if name == "node":
            continue
        text = TAKES.get(name) if name in kind.takes else None
        text = text or f"Rows whose {name} is this; `*` and `?` match any letters and any letter."
        bounds = Parameter(query=name, max_length=PATTERN_MAX, description=text)
        parameters[f"is_{name}"] = (Annotated[str, bounds], "")  # some column names are reserved by Litestar
    parameters |= {
        "node": (
            Annotated[str, Parameter(description="Nodes to query, separated by commas; empty: all with such rows.")],
            "",
        ),
        "limit": (Annotated[int, Parameter(ge=1, le=LIMIT_MAX, description="Rows of a page.")], 100),
        "cursor": (Annotated[str, Parameter(max_length=PATTERN_MAX, description="Cursor of the previous page.")], ""),
        "best": (Annotated[str, Parameter(max_length=PATTERN_MAX, description=BEST)], first),
        "columns": (Annotated[str, Parameter(description="Columns, separated by commas; empty: all.")], ""),
        "timeout": (Annotated[float, Parameter(gt=0, le=30, description="s for the page.")], 5.0),
    }
    listed = [
        inspect.Parameter(name, kind_of, default=rest[1], annotation=rest[0]) for name, rest in parameters.items()
    ]
    target: Any = handle
    target.__signature__ = inspect.Signature(listed, return_annotation=page)
    target.__annotations__ = {name: of for name, (of, _) in parameters.items()} | {"return": page}
    text = f"Rows of the query `{listing.what}`; needs the role {kind.role}. `partial` names nodes that did not answer."
    options: dict[str, Any] = {"summary": listing.summary, "description": text, "operation_id": f"list_{listing.what}"}
    make: Any = get(listing.path, opt={"role": ROLES[kind.role]}, **options)
    handler: HTTPRouteHandler = make(handle)
    return handler


def _check_columns(fields: Mapping[str, str], names: Iterable[str]) -> None:
    """Validate columns, and name the existing ones as in the API.

    Raises:
        UserError: The column does not exist.
    """
    unknown = next((name for name in names if name and name not in fields.values()), None)
    if unknown is not None:
        raise UserError(f"no column {unknown[:64]!r}; there are {', '.join(fields)}", ExitCode.USAGE)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
