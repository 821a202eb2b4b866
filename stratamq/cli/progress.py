"""A bar on the terminal for work that takes a while: how much is done, how fast, and how long it will go on.

Nothing is drawn, and ``rich`` is not imported, where stderr is no terminal.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Callable[..., None]]:
    """Draw a bar on stderr until the block ends.

    Args:
        unit: Plural of what is counted.

    Yields:
        ``show(done, total, note="")``: moves the bar; the note stands behind it.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"), TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    columns_and_note = (*columns, TextColumn("{task.fields[note]}", markup=False))
    # Without a thread that redraws; what is printed meanwhile stands above the bar, or goes where stdout leads.
    with Progress(
        *columns_and_note, console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("", total=None, unit=unit, note="")

        def show(done: int, total: int, note: str = "") -> None:
            progress.update(task, completed=done, total=total, note=note, refresh=True)

        yield show
