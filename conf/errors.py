"""The one class of error a person is meant to read: what happened, where, and what to do.

Everything else that escapes is a bug and keeps its traceback. The command line turns a ``UserError`` into one line on
stderr and its exit code; the codes are those of the operator's manual.
"""

import enum
from collections.abc import Iterator

__all__ = ["ExitCode", "NotFound", "UserError", "told_alone"]


class ExitCode(enum.IntEnum):
    """Exit codes of every ``stratamq`` command."""

    OK = 0
    FAILED = 1
    USAGE = 2  # wrong flags, or a configuration with mistakes
    PARTIAL = 3  # some of what was asked was done
    NOT_READY = 4  # ask again later: no router reached, no leader, cluster not ready


class UserError(Exception):
    """An expected failure: one line per mistake, no traceback.

    Args:
        message: What, where, and what to do; several lines when several mistakes were found at once.
        exit_code: What the process exits with.
    """

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = int(exit_code)


class NotFound(UserError):
    """The cluster has no such thing at this moment; it may come back, as a client does."""


def told_alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what a group is to whoever typed a command.

    Ctrl-C if it is there, whatever else went wrong meanwhile; the only UserError, or all as one with a line each,
    if nothing but such is there; otherwise the group itself.
    """
    errors = list(_leaves(group))
    if any(isinstance(error, KeyboardInterrupt) for error in errors):
        return KeyboardInterrupt()
    expected = [error for error in errors if isinstance(error, UserError)]
    if len(expected) < len(errors):
        return group
    lines = dict.fromkeys(error.message for error in expected)
    several = UserError("\n".join(lines), max(error.exit_code for error in expected))
    return expected[0] if len(expected) == 1 else several


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
