"""``stratamq audit ...``: verify and print audit log files, and list the reports of ``jobs audit``.

Reads files only: no node has to run. A changed line may hold any bytes, so output is made printable.
With ``--api`` the reports come from the HTTP service.
"""

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli import cells
from stratamq.cli.commands import asks, group
from stratamq.cli.node_requests import Options
from stratamq.cli.output import OutputFormat, OutputOption, print_result

__all__ = ["register"]

TAIL_MAX = 1_000
FILE = Annotated[Path, typer.Argument(metavar="FILE", help="Audit log of a node.")]
FILES = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Audit log files of one node, oldest first.")]
FOLDER = Annotated[
    Path | None, typer.Argument(metavar="[FOLDER]", help="Folder of the reports; default: audits in --data.")
]
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
COLUMNS = (
    *("report", "at_ms", "verdict", "acked", "delivered", "queued", "expired", "dropped", "lost", "duplicated"),
    *("replica_diff", "findings"),
)
COUNT = Annotated[int, typer.Option("-n", "--lines", min=1, max=TAIL_MAX, help="Number of lines.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    audit = group(app, "audit", "Audit logs: operators' changes and refused requests.")
    audit.command("verify", help="Verify that no line was changed, removed or moved.")(verify)
    audit.command("tail", help="Show the last lines of a file.")(tail)
    audit.command("reports")(reports)


def verify(files: FILES, output: OutputOption = OutputFormat.TABLE) -> None:
    """Verify files as one chain and print the end of each; a broken chain ends with exit code 1."""
    from access.operators import audit_chain
    from conf.errors import UserError

    head: audit_chain.Head | None = None
    shown: list[dict[str, object]] = []
    for path in files:
        verdict = audit_chain.verify(_lines(path), head)
        if verdict.broken_line:
            raise UserError(f"audit {path}, line {verdict.broken_line}: {verdict.broken}")
        head = verdict.head if verdict.lines else head
        shown.append(
            {"file": str(path), "lines": verdict.lines, "first": verdict.began, "last": verdict.head.sequence}
            | {"sum": verdict.head.sum}
        )
    print_result({"whole": True, "files": shown}, output)


def tail(file: FILE, lines: COUNT = 20) -> None:
    """Print the last lines; control characters are replaced."""
    from access.operators import audit_chain

    for line in audit_chain.tail(_lines(file), lines):
        text = line.removesuffix(b"\n").decode("ascii", "replace")
        typer.echo("".join(letter if " " <= letter <= "~" else "?" for letter in text))


@asks
def reports(options: Options, folder: FOLDER = None) -> None:
    """List the reports of `jobs audit --output`, newest first; exit code 1 if the newest one has lost messages."""
    from admin.api_rows import row_told
    from admin.audits import AuditPage, AuditRow, read_reports
    from conf.errors import ExitCode, UserError
    from stratamq.cli.api_requests import page_of

    rows: list[AuditRow]
    if options.show_api or options.api is not None:
        rows = [row_told(AuditRow, row) for row in page_of(options, "/audits", AuditPage).rows]
    else:
        path = folder or options.data / "audits"
        try:
            rows = read_reports(path) if folder is not None or path.exists() else []
        except OSError as error:
            raise UserError(f"reports {path}: {error.strerror or error}") from None
    if options.output in TABLES:
        shown = [{name: getattr(row, name) for name in COLUMNS} for row in rows]
        if shown:
            print_result(
                [{cells.heading(name): of for name, of in _cells(row).items()} for row in shown], options.output
            )
    elif rows or options.output not in (OutputFormat.JSONL, OutputFormat.CSV):
        print_result([cells.plain_row(cells.fields_of(row) or {}) for row in rows], options.output)
    if rows and (rows[0].lost or 0) > 0:
        raise typer.Exit(ExitCode.FAILED)


def _cells(row: dict[str, object]) -> dict[str, object]:
    now = time.time()
    return {name: cells.shown_cell(name, value, now) for name, value in row.items()}


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        UserError: The path is not a readable file.
    """
    from access.operators.audit_file import read_lines
    from conf.errors import UserError

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"audit {path} is not a regular file")
        yield from read_lines(path)
    except OSError as error:
        raise UserError(f"audit {path}: {error.strerror or error}") from None
