"""Errors for operators, and the exit codes of the command line.

Any other exception that escapes is a bug and keeps its traceback. The command line prints a ``UserError`` as one line
on stderr and exits with its code; the operator's manual lists the codes.
"""

import enum
from collections.abc import Iterator

__all__ = ["ExitCode", "NotFound", "UserError", "told_alone"]


class ExitCode(enum.IntEnum):
    """Exit codes of every ``stratamq`` command."""

    OK = 0
    FAILED = 1
    USAGE = 2  # wrong flags, or a configuration with mistakes
    PARTIAL = 3  # only a part of the request was done
    NOT_READY = 4  # retry later: no router reached, no leader, cluster not ready


class UserError(Exception):
    """An expected failure: one line per mistake, no traceback.

    Args:
        message: What, where, and what to do; several lines for several mistakes.
        exit_code: Exit code of the process.
    """

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = int(exit_code)


class NotFound(UserError):
    """The object does not exist in the cluster now; it may appear later, such as a client."""


def told_alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception to report for a group.

    KeyboardInterrupt if it is included; else the only UserError, or all of them joined by lines, if the group has no
    others; otherwise the group itself.
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
