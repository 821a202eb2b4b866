"""Commands that show one resource of a running cluster: their options, and how it and an explanation are printed."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import typer

from stratamq.cli import cells
from stratamq.cli.cluster_requests import TIMEOUT_S, end_partial
from stratamq.cli.commands import options_of, signed
from stratamq.cli.listing import CompleteOption, TimeoutOption
from stratamq.cli.node_requests import Options
from stratamq.cli.output import OutputFormat, print_result, printable
from stratamq.cli.watching import WATCH_S, EveryOption, WatchOption, again_and_again

if TYPE_CHECKING:
    from admin.explain.explanation import Explanation
    from admin.scatter_gather import MissingRows

__all__ = ["FieldView", "api_path", "point_options", "print_story", "print_view"]

TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
SOURCES = (
    "journal",
    "traces",
    "ledgers",
    "queues",
    "rights",
    "subscriptions",
)  # missing sources that are not silent nodes


class FieldView(NamedTuple):
    """The options of commands that show one resource."""

    timeout_s: float
    required: bool
    watch: bool = False
    every_s: float = WATCH_S


OPTIONS: dict[str, tuple[Any, Any]] = {
    "timeout_s": (TimeoutOption, TIMEOUT_S),
    "required": (CompleteOption, False),
    "watch": (WatchOption, False),
    "every_s": (EveryOption, WATCH_S),
}
ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT_ID")]
YesOption = Annotated[bool, typer.Option("--yes", help="Confirm.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only print the data that would be lost.")]


def point_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its resource options as first argument and the common options as second."""

    def asked(**values: Any) -> None:
        point = FieldView(**{name: values.pop(name) for name in OPTIONS})
        options = options_of(values)
        watch = point.watch and not options.show_api
        again_and_again(lambda: command(point, options, **values), options.output, point.every_s, watch=watch)

    return signed(asked, command, OPTIONS, skipped=2)


def api_path(method: str, *parts: str, **query: object) -> str:
    """Return a request of the HTTP service; parts and values are quoted."""
    path = "/".join(quote(part, safe="") for part in parts)
    asked = urlencode({name: value for name, value in query.items() if value not in ("", None, False)})
    return f"{method} /api/v1/{path}" + (f"?{asked}" if asked else "")


def print_view(
    sections: Mapping[str, Any], partial: "Sequence[MissingRows]", options: Options, point: FieldView
) -> None:
    """Print one resource: fields, and rows by section; exit with code 3 if a node did not respond.

    Args:
        sections: By name: a value, the fields of a row, or rows. Tables omit None.
        partial: Nodes that did not respond.
        options: Output options.
        point: Whether a complete result is required.
    """
    if options.output in TABLES:
        now = time.time()
        facts = {name: value for name, value in sections.items() if not (isinstance(value, Mapping) or _is_rows(value))}
        blocks: list[object] = [_facts(facts, now)]
        for name, value in sections.items():
            if isinstance(value, Mapping):
                blocks += [f"{name}:", {f"  {key}": of for key, of in _facts(value, now).items()}]
            elif _is_rows(value) and value:
                blocks.append([{cells.heading(key): of for key, of in _cells(row, now).items()} for row in value])
        title = True
        for block in filter(None, blocks):
            if not title:
                typer.echo()
            print_result(block, OutputFormat.TABLE)
            title = isinstance(block, str)
    else:
        plain = {name: _plain(name, value) for name, value in sections.items()}
        print_result(plain | _completeness(partial), options.output)
    end_partial(partial, required=point.required)


def _is_rows(value: object) -> bool:
    """Return whether a section is a list of rows and not a list value."""
    return isinstance(value, list) and all(isinstance(row, Mapping) for row in value)


def _cells(row: Mapping[str, Any], now: float) -> dict[str, object]:
    return {name: cells.shown_cell(name, value, now) for name, value in row.items()}


def _facts(row: Mapping[str, Any], now: float) -> dict[str, object]:
    """Return fields under names without units, because the cells contain the units."""
    return {cells.fact_name(name): value for name, value in _cells(row, now).items()}


def _plain(name: str, value: Any) -> object:
    if isinstance(value, Mapping):
        return cells.plain_row(value)
    if isinstance(value, list):
        return [cells.plain_row(row) if isinstance(row, Mapping) else row for row in value]
    return cells.plain_value(name, value)


def _completeness(partial: "Sequence[MissingRows]") -> dict[str, object]:
    return {"complete": not partial, "partial": [missing._asdict() for missing in partial]}


def print_story(story: "Explanation", options: Options, point: FieldView) -> None:
    """Print an explanation: the verdict, the steps, and the sources."""
    if options.output in TABLES:
        _print_sentences(story)
    else:
        print_result(
            {
                "question": story.question,
                "verdict": story.verdict,
                "cause": _step(story.cause) if story.cause is not None else None,
                "steps": [_step(step) for step in story.steps],
                "had": list(story.had),
            }
            | _completeness(story.lacked),
            options.output,
        )
    silent = [missing for missing in story.lacked if not _is_unknown(missing)]
    end_partial(silent, required=point.required)


def _print_sentences(story: "Explanation") -> None:
    lines = [story.question, f"=> {story.verdict}"]
    for step in story.steps:
        if step is story.cause and (len(story.steps) == 1 or (step.at_ms is None and step.why == story.verdict)):
            continue  # already printed as the verdict
        at = f"{cells.iso(step.at_ms / 1000)} " if step.at_ms is not None else ""
        lines.append(f"   {at}{step.node or '-'}: {step.why}")
    lines.append(f"sources: {'; '.join(story.had)}")
    if story.lacked:
        lines.append("missing: " + "; ".join(f"{missing.node} ({missing.why})" for missing in story.lacked))
    for line in lines:
        typer.echo(printable(line))


def _is_unknown(missing: "MissingRows") -> bool:
    """Return whether a source has no rows or was not queried, although no node is silent."""
    return missing.node in SOURCES


def _step(step: Any) -> dict[str, object]:
    at = cells.iso(step.at_ms / 1000) if step.at_ms is not None else None
    return {"at": at, "node": step.node, "what": step.what, "why": step.why, "facts": dict(step.facts)}
