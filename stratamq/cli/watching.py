"""``--watch``: a command that reads is carried out again and again, until Ctrl-C."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from stratamq.cli.output import OutputFormat

__all__ = ["WATCH_S", "EveryOption", "WatchOption", "again_and_again", "clear", "pause"]

WATCH_S = 2.0
CLEAR = "\x1b[2J\x1b[H"
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)

WatchOption = Annotated[bool, typer.Option("--watch", help="Ask again and again, until Ctrl-C.")]
EveryOption = Annotated[float, typer.Option("--every", min=0.1, max=3600, help="s; between two looks of --watch.")]


def clear(output: OutputFormat) -> None:
    """Make room on a terminal for a table in the place of the one before."""
    if output in TABLES and sys.stdout.isatty():
        typer.echo(CLEAR, nl=False)


def pause(began: float, every_s: float) -> None:
    """Wait for the time of the next look, after one that began then."""
    sys.stdout.flush()
    time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def again_and_again(run: Callable[[], None], output: OutputFormat, every_s: float, *, watch: bool) -> None:
    """Carry a command out, with ``watch`` again and again: a node that does not answer does not end that."""
    while True:
        began = time.monotonic()
        if watch:
            clear(output)
        try:
            run()
        except typer.Exit:
            if not watch:
                raise
        if not watch:
            return
        pause(began, every_s)
