"""Runs trio for a command of the terminal: what a person caused comes out as it is, never in a group of a nursery."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio

from conf.errors import told_alone

__all__ = ["run_plainly"]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def run_plainly(function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
    """Return what the function returns in a loop of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C, wherever it came: it ends what else went wrong meanwhile.
        UserError: The only one, or all as one with a line each, if nothing but such was raised.
        BaseExceptionGroup: Anything else that nurseries raised.
    """
    try:
        return trio.run(function, *arguments)
    except BaseExceptionGroup as group:
        alone = told_alone(group)
        if alone is group:
            raise
        raise alone from None
