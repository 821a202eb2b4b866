"""Runs trio for a command of the terminal: what a person caused comes out as it is, never in a group of a nursery."""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar, TypeVarTuple

import trio

from conf.errors import UserError

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
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        errors = list(_leaves(group))
        expected = [error for error in errors if isinstance(error, UserError)]
        if len(expected) < len(errors):
            raise
        if len(expected) == 1:
            raise expected[0] from None
        lines = dict.fromkeys(error.message for error in expected)
        raise UserError("\n".join(lines), max(error.exit_code for error in expected)) from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
