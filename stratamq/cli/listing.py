"""Commands that list rows of a running cluster: one implementation for all resources of ``nouns.py``.

Reads the list options, requests page after page and prints the matching rows.
Reports omitted rows and silent nodes on stderr.
"""

import gc
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from conf.errors import ExitCode, UserError
from stratamq.cli import cells
from stratamq.cli.cluster_requests import TIMEOUT_S, end_partial, say_partial, with_cluster
from stratamq.cli.commands import options_of, signed
from stratamq.cli.lists import LIMIT, LIMIT_MAX, AllOption, ColumnsOption, FilterOption, LimitOption, NodeOption
from stratamq.cli.node_requests import Options
from stratamq.cli.nouns import NOUNS, Noun
from stratamq.cli.output import OutputFormat, cells_of, print_result, print_table
from stratamq.cli.watching import WATCH_S, EveryOption, WatchOption, clear, is_away, pause, say_away

if TYPE_CHECKING:
    from admin.queries import Cluster, ListQuery, ListResult

__all__ = ["ListOptions", "add_list", "conditions", "keyed", "list_options", "listed", "print_rows"]

PAGE = 1_000  # rows
MERGED_MAX = 100_000  # rows that are merged from parts
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
APART_S = 1.0  # between the two queries of a rate
OF_OTHERS = ("session", "sessions")  # kinds whose ``node`` is not the responding node
LONG = ("clients", "sessions", "subscriptions")  # kinds with tens of thousands of rows
SUMMED = ("members", "online", "queued", "delivered", "redispatched")
GREATEST = ("oldest_s", "queued_most")

SortOption = Annotated[str, typer.Option("--sort", help="Sort the shown rows by this column; -COLUMN: descending.")]
BestOption = Annotated[
    str, typer.Option("--best", help="Select the rows with the largest values of this column on all nodes, up to 1000.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Timeout of one page in s, up to 30.")]
CompleteOption = Annotated[
    bool, typer.Option("--require-complete", help="Fail with exit code 1 if a node does not respond.")
]
AfterOption = Annotated[
    str, typer.Option("--after", metavar="CURSOR", help="Continue after the last row of an earlier list.")
]


def conditions(filters: Sequence[str]) -> dict[str, str]:
    """Return the conditions of ``--filter``.

    Raises:
        UserError: A condition is invalid, or a column has two.
    """
    found: dict[str, str] = {}
    for text in filters:
        key, sign, value = text.partition("=")
        key = key.strip().lower()
        if not (key and sign):
            raise UserError(
                f"--filter {text!r} is invalid: use key=value, with wildcards * and ? in the value", ExitCode.USAGE
            )
        if key in found:
            raise UserError(f"--filter {text!r}: {key} already has a condition", ExitCode.USAGE)
        found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of every list."""

    filters: list[str]
    nodes: list[str]
    columns: str
    sort: str
    best: str
    limit: int
    everything: bool
    after: str
    timeout_s: float
    required: bool
    watch: bool
    every_s: float

    def where(self) -> dict[str, str]:
        """Return the conditions of ``--filter``.

        Raises:
            UserError: A condition is invalid, or a column has two.
        """
        return conditions(self.filters)


OPTIONS: dict[str, tuple[Any, Any]] = {  # in the order of --help
    "filters": (FilterOption, []),
    "nodes": (NodeOption, []),
    "columns": (ColumnsOption, ""),
    "sort": (SortOption, ""),
    "best": (BestOption, ""),
    "limit": (LimitOption, LIMIT),
    "everything": (AllOption, False),
    "after": (AfterOption, ""),
    "timeout_s": (TimeoutOption, TIMEOUT_S),
    "required": (CompleteOption, False),
    "watch": (WatchOption, False),
    "every_s": (EveryOption, WATCH_S),
}


def list_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its list options as first argument and the common options as second."""

    def asked(**values: Any) -> None:
        look = ListOptions(**{name: values.pop(name) for name in OPTIONS})
        options = options_of(values)
        command(look, options, **values)

    return signed(asked, command, OPTIONS, skipped=2)


def add_list(
    to: typer.Typer, name: str, noun: str, where: Mapping[str, str] | None = None, *, hidden: bool = False
) -> None:
    """Add the command that lists a resource."""
    of = NOUNS[noun]

    @list_options
    def command(look: ListOptions, options: Options) -> None:
        listed(of, look, options, where or {})

    to.command(name, help=of.text, hidden=hidden)(command)


def listed(noun: Noun, look: ListOptions, options: Options, where: Mapping[str, str]) -> None:
    """List a resource.

    Args:
        noun: The resource.
        look: List options.
        options: Connection and output options.
        where: Conditions in addition to ``--filter``.
    """
    from admin.queries import ListQuery, check
    from admin.scatter_gather import BEST_MAX

    conditions = {**keyed(noun, look.where()), **where}
    if not 1 <= look.limit <= LIMIT_MAX:
        raise UserError(
            f"--limit {look.limit} is out of range: use 1 to {LIMIT_MAX}, or --all for every row", ExitCode.USAGE
        )
    if look.best and noun.merges:
        raise UserError(
            "--best: rows of this list are merged from several nodes; use --sort to sort the shown rows", ExitCode.USAGE
        )
    columns = _columns(noun, look, options.output)
    best, sort = _named(noun, look.best) or noun.best, _named(noun, look.sort.removeprefix("-"))
    _check_names(noun, (*columns, sort, best))
    counter, rate = noun.rate
    counts = bool(rate) and rate in (*columns, sort)
    asked = tuple(counter if name == rate else name for name in _asked(noun, columns, (sort, best)))
    wanted = ListQuery(conditions, tuple(look.nodes), PAGE, look.after, asked, best, noun.tier)
    check(noun.what, wanted._replace(columns=[*asked, *([sort] if sort and sort != rate else [])]))
    if options.show_api:
        typer.echo(api_call(noun, look, conditions))
        return None
    rates = _Rates(noun) if counts else None
    succeeded = False  # whether a query of --watch has succeeded
    while True:
        began = time.monotonic()
        ask: Callable[[Cluster], Awaitable[ListResult]] = partial(_ask, noun=noun, look=look, wanted=wanted)
        if rates is not None and not rates.begun:
            ask = partial(_ask_twice, noun=noun, look=look, wanted=wanted, rates=rates)
        try:
            page = with_cluster(options, ask, look.timeout_s)
        except UserError as error:
            if not (succeeded and is_away(error)):
                raise
            say_away(error)
            pause(began, look.every_s)
            continue
        succeeded = look.watch
        if look.everything and not (columns or sort or wanted.best or look.watch) and _goes_straight(noun, options):
            _print_lines(noun, page)
            return end_partial(page.partial, page.restarted, required=look.required)
        rows = _merged([row_of(noun.what, node, row) for node, row in page.rows], noun)
        if rates is not None:
            rates.add(rows)
        if wanted.best and not look.everything:
            rows = [row for row in rows if row.get(wanted.best)]  # no zeros
        shown = rows if look.everything else rows[: look.limit]
        if look.watch:
            clear(options.output)
        print_rows(_in_order(shown, sort, look.sort.startswith("-")), columns, options.output, page)
        if not shown and options.output in TABLES and sys.stderr.isatty():
            typer.echo(f"stratamq: no {noun.rows} found" + (" for this filter" if conditions else ""), err=True)
        greatest = wanted.best and len(page.rows) == min(BEST_MAX, BEST_MAX if look.everything else look.limit)
        if greatest or (not look.everything and (page.cursor or len(shown) < len(rows))):
            of = f" of about {page.total_about}" if page.total_about > len(shown) and not conditions else ""
            more = "" if look.everything or (look.limit >= BEST_MAX and greatest) else ": --limit or --all shows more"
            typer.echo(f"stratamq: {len(shown)}{of} {noun.rows} shown{more}", err=True)
        if not look.watch:
            return end_partial(page.partial, page.restarted, required=look.required)
        say_partial(page.partial, page.restarted)
        pause(began, look.every_s)


def _goes_straight(noun: Noun, options: Options) -> bool:
    """Return whether rows are encoded without a mapping of each; only for long lists without bytes columns."""
    return noun.what in LONG and options.output is OutputFormat.JSONL


def _print_lines(noun: Noun, page: "ListResult") -> None:
    from stratamq.cli.row_lines import row_lines
    from wire.messages.query_kinds import LOOK_KINDS

    if page.rows:
        typer.echo(row_lines(LOOK_KINDS[noun.what].row, page.rows, names_node=noun.what not in OF_OTHERS))


async def _ask(cluster: "Cluster", noun: Noun, look: ListOptions, wanted: "ListQuery") -> "ListResult":
    """Request pages until enough rows are received."""
    from admin.queries import EVERY_ROW, walk

    if look.everything and not noun.merges:
        gc.disable()  # none of the rows is garbage yet
        try:
            return await walk(cluster, noun.what, wanted._replace(limit=EVERY_ROW))
        finally:
            gc.enable()
    left = MERGED_MAX if noun.merges else look.limit
    pages: list[ListResult] = []
    while left > 0:
        page = await walk(cluster, noun.what, wanted._replace(limit=min(PAGE, left)))
        pages.append(page)
        left -= len(page.rows)
        wanted = wanted._replace(cursor=page.cursor)
        if not page.cursor or page.overtime:
            break
    return pages[-1]._replace(
        rows=tuple(row for page in pages for row in page.rows),
        partial=tuple(dict.fromkeys(missing for page in pages for missing in page.partial)),
        restarted=tuple(dict.fromkeys(node for page in pages for node in page.restarted)),
        total_about=pages[0].total_about,
    )


async def _ask_twice(
    cluster: "Cluster", noun: Noun, look: ListOptions, wanted: "ListQuery", rates: "_Rates"
) -> "ListResult":
    """Query the counters, then all columns a second later; the rate is the difference.

    Nodes do not store earlier counter values, which would cost work and memory for each group without a reader.
    """
    import trio

    page = await _ask(cluster, noun, look, wanted._replace(columns=("group", "filter", noun.rate[0])))
    rates.add(_merged([row_of(noun.what, node, row) for node, row in page.rows], noun))
    if page.rows:
        await trio.sleep(APART_S)
    return await _ask(cluster, noun, look, wanted)


# -- rows


class _Rates:
    """Rates of a counter of each row, from one query to the next."""

    def __init__(self, noun: Noun) -> None:
        self._counter, self._column = noun.rate
        self._at = 0.0
        self._before: dict[tuple[object, ...], float] | None = None

    @property
    def begun(self) -> bool:
        """Return whether an earlier query exists."""
        return self._before is not None

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the rate since the previous query to each row that existed then."""
        now, before = time.monotonic(), self._before
        self._before = {(row.get("filter"), row.get("group")): row.get(self._counter, 0) for row in rows}
        for key, row in zip(self._before, rows, strict=True):
            if before is not None and key in before and self._before[key] >= before[key]:
                row[self._column] = round((self._before[key] - before[key]) / (now - self._at), 1)
        self._at = now


def row_of(what: str, node: str, row: Any) -> dict[str, Any]:
    """Return the known fields of a row by name; ``node`` is the responding node."""
    found = cells.fields_of(row) or {}
    if hasattr(row, "node") and what not in OF_OTHERS:
        found.setdefault("node", node)
    return found


def _merged(rows: list[dict[str, Any]], noun: Noun) -> list[dict[str, Any]]:
    """Merge the parts of each shared group, sorted by filter."""
    if not noun.merges:
        return rows
    from wire.queries.clock_skew import skew_of

    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = str(row.get("filter", "")), str(row.get("group", ""))
        whole = groups.setdefault(key, {"group": key[1], "filter": key[0]})
        for name, value in row.items():
            if name in GREATEST:
                whole[name] = max(whole.get(name, 0), value)
            elif name in SUMMED:
                whole[name] = whole.get(name, 0) + value
    for whole in groups.values():
        counted = [whole.get(name) for name in ("queued_most", "queued", "members")]
        if None not in counted and (uneven := skew_of(*counted)) is not None:  # type: ignore[arg-type]  # none is None
            whole["skew"] = uneven
    return [groups[key] for key in sorted(groups)]


def _in_order(rows: list[dict[str, Any]], name: str, descending: bool) -> list[dict[str, Any]]:
    """Sort the shown rows; rows without the column come last."""
    if not name:
        return rows
    there = [row for row in rows if name in row]
    numbers = all(isinstance(row[name], int | float) for row in there)
    there.sort(key=lambda row: row[name] if numbers else str(row[name]), reverse=descending)
    return there + [row for row in rows if name not in row]


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    now = time.time()
    table = []
    for name in columns:
        values = [row.get(name) for row in rows]
        if name == "expires_in_s":  # the expiry of a session starts when its client disconnects
            away = [cells.NEVER if row.get("online") else None for row in rows]
            values = [None if value == never else value for value, never in zip(values, away, strict=True)]
        table.append(cells_of(cells.cell_maker(name, now), values))
    print_table([cells.heading(name) for name in columns], table)


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: OutputFormat, page: "ListResult"
) -> None:
    """Print rows; JSON and YAML include the missing nodes."""
    if output in TABLES:
        if rows:
            _print_table(rows, columns)
        return
    plain = [cells.plain_row({name: row.get(name) for name in columns} if columns else row) for row in rows]
    if output in (OutputFormat.JSONL, OutputFormat.CSV):
        if plain:
            print_result(plain, output)
        return
    print_result(
        {
            "rows": plain,
            "complete": not page.partial,
            "partial": [missing._asdict() for missing in page.partial],
            "restarted": list(page.restarted),
            "cursor": page.cursor,
            "total_about": page.total_about,
        },
        output,
    )


# -- columns


def _field(name: str) -> str:
    """Return the field of a name for programs; a time may omit its unit."""
    return name.strip().lower()


def _columns(noun: Noun, look: ListOptions, output: OutputFormat) -> tuple[str, ...]:
    """Return the columns to print; empty: all columns of a row."""
    if look.columns:
        names = tuple(_field(name) for name in look.columns.split(","))
        if not all(names):
            raise UserError(f"--columns {look.columns!r} is invalid: separate names with one comma", ExitCode.USAGE)
        known = _known(noun)
        return tuple(known.get(name, name) for name in names)
    if output in TABLES:
        counter, rate = noun.rate
        shown = noun.columns + noun.wide * (output is OutputFormat.WIDE)
        return tuple(name for one in shown for name in ((one, rate) if one == counter else (one,)))
    return noun.columns + noun.wide if output is OutputFormat.CSV else ()


def _check_names(noun: Noun, names: Sequence[str]) -> None:
    """Validate column names; the error lists the known names.

    Raises:
        UserError: A column does not exist.
    """
    known = _known(noun)
    there = [*known, *filter(None, noun.rate[1:])]
    for name in names:
        if name and name not in (*there, *known.values()):
            raise UserError(f"unknown column {name!r}: use one of {', '.join(there)}", ExitCode.USAGE)


def keyed(noun: Noun, where: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions of ``--filter`` with the field names of a resource.

    Raises:
        UserError: A key is unknown or is a time, because nodes compare texts.
    """
    from wire.messages.query_kinds import LOOK_KINDS

    known = _known(noun)
    keys = [name for name, field in known.items() if not cells.is_time(field)]
    keys += LOOK_KINDS[noun.what].takes
    for name in where:
        if name in known and name not in keys:
            raise UserError(f"--filter {name}: times cannot be filtered; sort with --sort {name}", ExitCode.USAGE)
        if name not in keys and name not in known.values():
            raise UserError(f"unknown filter key {name[:64]!r}: use one of {', '.join(keys)}", ExitCode.USAGE)
    return dict(where)


def _named(noun: Noun, name: str) -> str:
    """Return the field of a column name, "" for none; an unknown name is returned unchanged."""
    wanted = _field(name)
    return _known(noun).get(wanted, wanted) if wanted else ""


def _known(noun: Noun) -> dict[str, str]:
    """Return the fields of a resource by their names for programs."""
    from wire.messages.query_kinds import columns_of

    return {cells.plain_name(name): name for name in columns_of(noun.what)}


def _asked(noun: Noun, columns: tuple[str, ...], more: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to request, including the sort columns; empty: all."""
    if not columns:
        return ()
    parts: tuple[str, ...] = ("group", "filter") if noun.merges else ()
    if noun.merges and "skew" in (*columns, *more):
        parts += ("members", "queued", "queued_most")
    return tuple(dict.fromkeys(name for name in (*columns, *more, *parts) if name))


def api_call(noun: Noun, look: ListOptions, where: Mapping[str, str]) -> str:
    """Return the equivalent request of the HTTP service."""
    from admin.http.row_paths import path_of

    asked = [*where.items(), *([("node", ",".join(look.nodes))] if look.nodes else [])]
    if look.columns:
        counter, rate = noun.rate
        named = [counter if rate and _field(name) == rate else name for name in look.columns.split(",")]
        asked.append(("columns", ",".join(dict.fromkeys(named))))  # for a rate, its counter: a request is one query
    asked += [("best", look.best)] if look.best else []
    asked += [("cursor", look.after)] if look.after else []
    return f"GET /api/v1{path_of(noun.what)}?{urlencode([*asked, ('limit', str(look.limit))])}"
