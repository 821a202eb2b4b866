"""Commands that list rows of a running cluster: one mechanism for each noun of the table in ``nouns.py``.

Reads the options that all lists have, asks page after page, prints the rows that are wanted, and says on stderr what is
left out: rows behind ``--limit``, and nodes that did not answer.
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
MERGED_MAX = 100_000  # rows that are put together from parts
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
APART_S = 1.0  # two questions, of which a rate is made
OF_OTHERS = ("session", "sessions")  # kinds whose ``node`` is another one than the node that answers
LONG = ("clients", "sessions", "subscriptions")  # kinds of which there are tens of thousands of rows
SUMMED = ("members", "online", "queued", "delivered", "redispatched")
GREATEST = ("oldest_s", "queued_most")

SortOption = Annotated[
    str, typer.Option("--sort", help="Column by which the rows shown are sorted; -COLUMN: greatest first.")
]
BestOption = Annotated[
    str, typer.Option("--best", help="Column: the rows with the greatest of it, of all nodes, up to 1000.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="s; for one page, up to 30.")]
CompleteOption = Annotated[bool, typer.Option("--require-complete", help="Exit code 1 where a node does not answer.")]
AfterOption = Annotated[str, typer.Option("--after", metavar="CURSOR", help="Begin where an earlier list ended.")]


def conditions(filters: Sequence[str]) -> dict[str, str]:
    """Return the conditions of ``--filter``.

    Raises:
        UserError: One is no condition, or names a column twice.
    """
    found: dict[str, str] = {}
    for text in filters:
        key, sign, value = text.partition("=")
        key = key.strip().lower()
        if not (key and sign):
            raise UserError(f"--filter {text!r}: write key=value, with * and ? in the value", ExitCode.USAGE)
        if key in found:
            raise UserError(f"--filter {text!r}: {key} has a condition already", ExitCode.USAGE)
        found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options that every list has."""

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
            UserError: One is no condition, or names a column twice.
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
    """Give a command the options of a list as its first argument, and those that every command has as its second."""

    def asked(**values: Any) -> None:
        look = ListOptions(**{name: values.pop(name) for name in OPTIONS})
        options = options_of(values)
        command(look, options, **values)

    return signed(asked, command, OPTIONS, skipped=2)


def add_list(
    to: typer.Typer, name: str, noun: str, where: Mapping[str, str] | None = None, *, hidden: bool = False
) -> None:
    """Add the command that lists a noun."""
    of = NOUNS[noun]

    @list_options
    def command(look: ListOptions, options: Options) -> None:
        listed(of, look, options, where or {})

    to.command(name, help=of.text, hidden=hidden)(command)


def listed(noun: Noun, look: ListOptions, options: Options, where: Mapping[str, str]) -> None:
    """List a noun as its options say.

    Args:
        noun: The list.
        look: Its options.
        options: Whom to ask, and how to print.
        where: Conditions beside those of ``--filter``.
    """
    from admin.queries import ListQuery, check
    from admin.scatter_gather import BEST_MAX

    conditions = {**keyed(noun, look.where()), **where}
    if not 1 <= look.limit <= LIMIT_MAX:
        raise UserError(f"--limit {look.limit}: write 1 to {LIMIT_MAX}, or --all for every row", ExitCode.USAGE)
    if look.best and noun.merges:
        raise UserError("--best: nodes hold parts of a row of this list; --sort sorts what is shown", ExitCode.USAGE)
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
    succeeded = False  # the first look of --watch
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
            typer.echo(f"stratamq: no {noun.rows} here" + (" meet this" if conditions else ""), err=True)
        greatest = wanted.best and len(page.rows) == min(BEST_MAX, BEST_MAX if look.everything else look.limit)
        if greatest or (not look.everything and (page.cursor or len(shown) < len(rows))):
            of = f" of about {page.total_about}" if page.total_about > len(shown) and not conditions else ""
            more = "" if look.everything or (look.limit >= BEST_MAX and greatest) else ": --limit or --all shows more"
            typer.echo(f"stratamq: {len(shown)}{of} {noun.rows} are shown{more}", err=True)
        if not look.watch:
            return end_partial(page.partial, page.restarted, required=look.required)
        say_partial(page.partial, page.restarted)
        pause(began, look.every_s)


def _goes_straight(noun: Noun, options: Options) -> bool:
    """Return whether rows become lines without a mapping of each: those of long lists, which hold no bytes."""
    return noun.what in LONG and options.output is OutputFormat.JSONL


def _print_lines(noun: Noun, page: "ListResult") -> None:
    from stratamq.cli.row_lines import row_lines
    from wire.messages.query_kinds import LOOK_KINDS

    if page.rows:
        typer.echo(row_lines(LOOK_KINDS[noun.what].row, page.rows, names_node=noun.what not in OF_OTHERS))


async def _ask(cluster: "Cluster", noun: Noun, look: ListOptions, wanted: "ListQuery") -> "ListResult":
    """Ask page after page, until there are as many rows as are wanted."""
    from admin.queries import EVERY_ROW, walk

    if look.everything and not noun.merges:
        gc.disable()  # nothing of so many rows is garbage yet
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
    """Ask for the counters alone, and for all some time later over the same links: a rate is their difference.

    Nodes keep no earlier value of a counter, which would be work and memory for each group while nobody looks.
    """
    import trio

    page = await _ask(cluster, noun, look, wanted._replace(columns=("group", "filter", noun.rate[0])))
    rates.add(_merged([row_of(noun.what, node, row) for node, row in page.rows], noun))
    if page.rows:
        await trio.sleep(APART_S)
    return await _ask(cluster, noun, look, wanted)


# -- rows


class _Rates:
    """How much a counter of each row of a list rises in a second, from one round to the next."""

    def __init__(self, noun: Noun) -> None:
        self._counter, self._column = noun.rate
        self._at = 0.0
        self._before: dict[tuple[object, ...], float] | None = None

    @property
    def begun(self) -> bool:
        """Return whether there was a round before."""
        return self._before is not None

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Put the rate since the round before into each row that was there."""
        now, before = time.monotonic(), self._before
        self._before = {(row.get("filter"), row.get("group")): row.get(self._counter, 0) for row in rows}
        for key, row in zip(self._before, rows, strict=True):
            if before is not None and key in before and self._before[key] >= before[key]:
                row[self._column] = round((self._before[key] - before[key]) / (now - self._at), 1)
        self._at = now


def row_of(what: str, node: str, row: Any) -> dict[str, Any]:
    """Return a row's fields by name, without those that the node does not know; ``node`` answered."""
    found = cells.fields_of(row) or {}
    if hasattr(row, "node") and what not in OF_OTHERS:
        found.setdefault("node", node)
    return found


def _merged(rows: list[dict[str, Any]], noun: Noun) -> list[dict[str, Any]]:
    """Put the parts of each shared group together, in the order of filters."""
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
    """Sort what is shown; a row without the column stands last."""
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
        if name == "expires_in_s":  # the time of a session begins when its client goes
            away = [cells.NEVER if row.get("online") else None for row in rows]
            values = [None if value == never else value for value, never in zip(values, away, strict=True)]
        table.append(cells_of(cells.cell_maker(name, now), values))
    print_table([cells.heading(name) for name in columns], table)


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: OutputFormat, page: "ListResult"
) -> None:
    """Print rows; JSON and YAML say beside them what they lack."""
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
    """Return the field of a name that a program reads: a time may be asked for without its unit."""
    return name.strip().lower()


def _columns(noun: Noun, look: ListOptions, output: OutputFormat) -> tuple[str, ...]:
    """Return the columns to print; none: all that a row has."""
    if look.columns:
        names = tuple(_field(name) for name in look.columns.split(","))
        if not all(names):
            raise UserError(f"--columns {look.columns!r}: write names with one comma between them", ExitCode.USAGE)
        known = _known(noun)
        return tuple(known.get(name, name) for name in names)
    if output in TABLES:
        counter, rate = noun.rate
        shown = noun.columns + noun.wide * (output is OutputFormat.WIDE)
        return tuple(name for one in shown for name in ((one, rate) if one == counter else (one,)))
    return noun.columns + noun.wide if output is OutputFormat.CSV else ()


def _check_names(noun: Noun, names: Sequence[str]) -> None:
    """Refuse a column that the list has not, and name those that it has as programs read them.

    Raises:
        UserError: There is no such column.
    """
    known = _known(noun)
    there = [*known, *filter(None, noun.rate[1:])]
    for name in names:
        if name and name not in (*there, *known.values()):
            raise UserError(f"no column {name!r}; there are {', '.join(there)}", ExitCode.USAGE)


def keyed(noun: Noun, where: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions of ``--filter``, where its keys are those of a noun.

    Raises:
        UserError: One is none, or is a time: nodes compare texts, and a time has none.
    """
    from wire.messages.query_kinds import LOOK_KINDS

    known = _known(noun)
    keys = [name for name, field in known.items() if not cells.is_time(field)]
    keys += LOOK_KINDS[noun.what].takes
    for name in where:
        if name in known and name not in keys:
            raise UserError(f"--filter {name}: a time is no filter key; --sort {name} orders by it", ExitCode.USAGE)
        if name not in keys and name not in known.values():
            raise UserError(f"no filter key {name[:64]!r}; there are {', '.join(keys)}", ExitCode.USAGE)
    return dict(where)


def _named(noun: Noun, name: str) -> str:
    """Return the field that a name of a column means, "" for none; an unknown one as it is."""
    wanted = _field(name)
    return _known(noun).get(wanted, wanted) if wanted else ""


def _known(noun: Noun) -> dict[str, str]:
    """Return the fields of a noun by their names for programs."""
    from wire.messages.query_kinds import columns_of

    return {cells.plain_name(name): name for name in columns_of(noun.what)}


def _asked(noun: Noun, columns: tuple[str, ...], more: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to ask nodes for, with those that rows are ordered by; none: all."""
    if not columns:
        return ()
    parts: tuple[str, ...] = ("group", "filter") if noun.merges else ()
    if noun.merges and "skew" in (*columns, *more):
        parts += ("members", "queued", "queued_most")
    return tuple(dict.fromkeys(name for name in (*columns, *more, *parts) if name))


def api_call(noun: Noun, look: ListOptions, where: Mapping[str, str]) -> str:
    """Return the call of the HTTP service that asks the same."""
    from admin.http.row_paths import path_of

    asked = [*where.items(), *([("node", ",".join(look.nodes))] if look.nodes else [])]
    if look.columns:
        counter, rate = noun.rate
        named = [counter if rate and _field(name) == rate else name for name in look.columns.split(",")]
        asked.append(("columns", ",".join(dict.fromkeys(named))))  # of a rate its counter: a call is one look
    asked += [("best", look.best)] if look.best else []
    asked += [("cursor", look.after)] if look.after else []
    return f"GET /api/v1{path_of(noun.what)}?{urlencode([*asked, ('limit', str(look.limit))])}"
