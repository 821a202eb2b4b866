"""``stratamq audit ...``: files of the audit, checked and read where they lie.

Works on files alone: no node is asked, and none has to run. A line that was changed may hold anything, so what is shown
of it is printable.
"""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.output import OutputFormat, OutputOption, print_result
from stratamq.cli.verbs import group

__all__ = ["register"]

TAIL_MAX = 1_000
FILE = Annotated[Path, typer.Argument(metavar="FILE", help="The audit of a node.")]
FILES = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of one node's audit, the oldest first.")]
COUNT = Annotated[int, typer.Option("-n", "--lines", min=1, max=TAIL_MAX, help="How many lines.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    audit = group(app, "audit", "What was done to nodes, and refused by them.")
    audit.command("verify", help="Check that no line was changed, taken out or moved.")(verify)
    audit.command("tail", help="Show the last lines of a file.")(tail)


def verify(files: FILES, output: OutputOption = OutputFormat.TABLE) -> None:
    """Check files as one chain, and print where each ends; a break ends with exit code 1."""
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
    """Print the last lines as they stand, but for characters that a terminal would act on."""
    from access.operators import audit_chain

    for line in audit_chain.tail(_lines(file), lines):
        text = line.removesuffix(b"\n").decode("ascii", "replace")
        typer.echo("".join(letter if " " <= letter <= "~" else "?" for letter in text))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        UserError: It cannot be read, or is no file.
    """
    from access.operators.audit_file import read_lines
    from conf.errors import UserError

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"audit {path} is no file")
        yield from read_lines(path)
    except OSError as error:
        raise UserError(f"audit {path}: {error.strerror or error}") from None
