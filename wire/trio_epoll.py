"""Two things of trio beside its interface: its epoll descriptor, and whether a task is ready to run.

Who waits where trio would (``edge/loop/host.py``, ``wire/links/reactor_hook.py``) has to see when trio has something to
do. These are the two undocumented attributes of trio that are used; tests cover both.
"""

from collections.abc import Sized
from typing import Any

import trio

__all__ = ["ready_tasks", "trio_epoll_fd"]


def trio_epoll_fd() -> int:
    """Return the descriptor that becomes readable when trio has something to do, -1 if it cannot be had."""
    runner = _runner()
    epoll = getattr(getattr(runner, "io_manager", None), "_epoll", None)
    if epoll is None or not isinstance(runner.clock, trio._core._run.SystemClock):
        return -1
    return int(epoll.fileno())


def ready_tasks() -> Sized | None:
    """Return the tasks that trio runs next, as it keeps them itself; None if that cannot be had."""
    tasks: Sized | None = getattr(_runner(), "runq", None)
    return tasks


def _runner() -> Any:
    runner: Any = getattr(trio.lowlevel.current_task(), "_runner", None)
    return runner or getattr(trio._core._run.GLOBAL_RUN_CONTEXT, "runner", None)
