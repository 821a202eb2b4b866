"""A progress bar on a terminal: amount done, rate, and remaining time.

If stderr is not a terminal, it draws no bar and does not import ``rich``.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Callable[..., None]]:
    """Draw a bar on stderr until the block ends.

    Args:
        unit: Plural name of the counted items.

    Yields:
        ``show(done, total, note="")`` updates the bar; the note follows it.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"), TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    columns_and_note = (*columns, TextColumn("{task.fields[note]}", markup=False))
    # Without a refresh thread. Other output is printed above the bar, or to the redirected stdout.
    with Progress(
        *columns_and_note, console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("", total=None, unit=unit, note="")

        def show(done: int, total: int, note: str = "") -> None:
            progress.update(task, completed=done, total=total, note=note, refresh=True)

        yield show
