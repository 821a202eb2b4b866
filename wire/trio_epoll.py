"""Two undocumented attributes of Trio: its epoll descriptor and its queue of ready tasks.

Code that replaces Trio's I/O wait (``edge/loop/host.py``, ``wire/links/reactor_hook.py``) must notice when Trio has
work. No other undocumented attribute is used; tests cover both.
"""

from collections.abc import Sized
from typing import Any

import trio

__all__ = ["ready_tasks", "trio_epoll_fd"]


def trio_epoll_fd() -> int:
    """Return the descriptor that becomes readable when Trio has work, -1 if it is unavailable."""
    runner = _runner()
    epoll = getattr(getattr(runner, "io_manager", None), "_epoll", None)
    if epoll is None or not isinstance(runner.clock, trio._core._run.SystemClock):
        return -1
    return int(epoll.fileno())


def ready_tasks() -> Sized | None:
    """Return Trio's own queue of tasks to run next; None if it is unavailable."""
    tasks: Sized | None = getattr(_runner(), "runq", None)
    return tasks


def _runner() -> Any:
    runner: Any = getattr(trio.lowlevel.current_task(), "_runner", None)
    return runner or getattr(trio._core._run.GLOBAL_RUN_CONTEXT, "runner", None)
