"""``--watch``: a command that reads is carried out again and again, until Ctrl-C.

On a terminal a look takes the place of the one before when it is whole. While nobody can be asked, as in an election
or while a service starts again, that is said and the last look stays; a thing that is gone, as a client, may come back,
so that its absence is a look. Only the first look has to succeed.
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

WatchOption = Annotated[bool, typer.Option("--watch", help="Ask again and again, until Ctrl-C.")]
EveryOption = Annotated[float, typer.Option("--every", min=0.1, max=3600, help="s; between two looks of --watch.")]


class _Held(io.StringIO):
    """The print of a look until it is whole; drawn as the stream is that it is for."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def clear(output: OutputFormat) -> None:
    """Make room on a terminal for a table in the place of the one before."""
    if output in TABLES and sys.stdout.isatty():
        typer.echo(CLEAR, nl=False)


def pause(began: float, every_s: float) -> None:
    """Wait for the time of the next look, after one that began then."""
    sys.stdout.flush()
    time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def is_away(error: "UserError") -> bool:
    """Return whether an error may pass by itself: nobody could be asked."""
    from conf.errors import ExitCode

    return error.exit_code == ExitCode.NOT_READY


def say_away(error: "UserError") -> None:
    """Say why a look was left out."""
    for line in error.message.split("\n"):
        typer.echo(printable(f"stratamq: {line}"), err=True)


def again_and_again(run: Callable[[], None], output: OutputFormat, every_s: float, *, watch: bool) -> None:
    """Carry a command out, with ``watch`` again and again: a node that does not answer does not end that."""
    from conf.errors import NotFound, UserError

    if not watch:
        run()
        return
    succeeded = False
    while True:
        began = time.monotonic()
        shown, said = _Held(is_terminal=sys.stdout.isatty()), _Held(is_terminal=sys.stderr.isatty())
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
