"""Runs trio for a terminal command: user errors are raised alone, never in an exception group."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio

from conf.errors import told_alone

__all__ = ["run_plainly"]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def run_plainly(function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
    """Run a function in its own Trio loop and return its result.

    Raises:
        KeyboardInterrupt: Ctrl-C; it replaces all other errors.
        UserError: The only one, or all as one with a line each, if only these were raised.
        BaseExceptionGroup: Other errors of nurseries.
    """
    try:
        return trio.run(function, *arguments)
    except BaseExceptionGroup as group:
        alone = told_alone(group)
        if alone is group:
            raise
        raise alone from None
