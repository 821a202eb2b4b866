"""``--watch``: repeats a query command until Ctrl-C.

On a terminal a complete result replaces the previous one. While no server responds, for example during an election, a
message is printed and the last result stays. A missing resource, for example a client, may return and counts as a
result. Only the first query must succeed.
"""

import contextlib
import io
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from stratamq.cli.output import OutputFormat, printable

if TYPE_CHECKING:
    from conf.errors import UserError

__all__ = ["WATCH_S", "EveryOption", "WatchOption", "again_and_again", "clear", "is_away", "pause", "say_away"]

WATCH_S = 2.0
CLEAR = "\x1b[2J\x1b[H"
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)

WatchOption = Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")]
EveryOption = Annotated[float, typer.Option("--every", min=0.1, max=3600, help="Refresh interval of --watch in s.")]


class _Buffer(io.StringIO):
    """A buffer for the complete output of one query, with the terminal state of the real stream."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def clear(output: OutputFormat) -> None:
    """Clear a terminal before a table is printed again."""
    if output in TABLES and sys.stdout.isatty():
        typer.echo(CLEAR, nl=False)


def pause(began: float, every_s: float) -> None:
    """Sleep until the next query, based on the start of the previous one."""
    sys.stdout.flush()
    time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def is_away(error: "UserError") -> bool:
    """Return whether an error may be temporary, because no server responded."""
    from conf.errors import ExitCode

    return error.exit_code == ExitCode.NOT_READY


def say_away(error: "UserError") -> None:
    """Print the reason for a skipped query."""
    for line in error.message.split("\n"):
        typer.echo(printable(f"stratamq: {line}"), err=True)


def again_and_again(run: Callable[[], None], output: OutputFormat, every_s: float, *, watch: bool) -> None:
    """Run a command, repeatedly with ``watch``; an unresponsive node does not end it."""
    from conf.errors import NotFound, UserError

    if not watch:
        run()
        return
    succeeded = False
    while True:
        began = time.monotonic()
        shown, said = _Buffer(is_terminal=sys.stdout.isatty()), _Buffer(is_terminal=sys.stderr.isatty())
        try:
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said), contextlib.suppress(typer.Exit):
                run()
        except NotFound as gone:
            if not succeeded:
                raise
            clear(output)
            say_away(gone)
        except UserError as error:
            if not (succeeded and is_away(error)):
                raise
            say_away(error)
        else:
            succeeded = True
            clear(output)
            typer.echo(shown.getvalue(), nl=False)
            typer.echo(said.getvalue(), nl=False, err=True)
        pause(began, every_s)
