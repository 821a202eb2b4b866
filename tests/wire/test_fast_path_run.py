"""Errors of a terminal command, extracted from exception groups."""

import pytest
import trio

from conf.errors import ExitCode, NotFound, UserError
from wire.links.fast_path_run import run_plainly


async def raise_each(*errors: BaseException) -> None:
    """Raise each error in its own task, all in one loop iteration."""

    async def fail(error: BaseException) -> None:
        raise error

    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        for number, error in enumerate(errors):
            (inner, outer)[number % 2].start_soon(fail, error)


def test_run_plainly_returns_the_result() -> None:
    async def add(one: int, other: int) -> int:
        return one + other

    assert run_plainly(add, 1, 2) == 3


def test_run_plainly_raises_ctrl_c_alone() -> None:
    """Other errors are dropped."""
    with pytest.raises(KeyboardInterrupt):
        run_plainly(raise_each, ValueError("x"), UserError("y"), KeyboardInterrupt())


def test_run_plainly_raises_a_single_error_unchanged() -> None:
    with pytest.raises(NotFound, match="gone"):
        run_plainly(raise_each, NotFound("gone", ExitCode.PARTIAL))


def test_run_plainly_joins_several_user_errors() -> None:
    with pytest.raises(UserError) as raised:
        run_plainly(raise_each, UserError("a"), UserError("b", ExitCode.NOT_READY), UserError("a"))
    assert sorted(raised.value.message.split("\n")) == ["a", "b"] and raised.value.exit_code == ExitCode.NOT_READY


def test_run_plainly_keeps_the_group_of_other_errors() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        run_plainly(raise_each, UserError("a"), ValueError("b"))
    assert raised.group_contains(ValueError)
