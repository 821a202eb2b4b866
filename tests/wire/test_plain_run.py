"""What a command of the terminal raises, out of nurseries."""

import pytest
import trio

from conf.errors import ExitCode, NotFound, UserError
from wire.links.fast_path_run import run_plainly


async def raise_each(*errors: BaseException) -> None:
    """Raise each in a task of its own, all in one turn of the loop."""

    async def fail(error: BaseException) -> None:
        raise error

    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        for number, error in enumerate(errors):
            (inner, outer)[number % 2].start_soon(fail, error)


def test_an_answer_is_returned() -> None:
    async def add(one: int, other: int) -> int:
        return one + other

    assert run_plainly(add, 1, 2) == 3


def test_ctrl_c_comes_alone() -> None:
    """Whatever went wrong beside it."""
    with pytest.raises(KeyboardInterrupt):
        run_plainly(raise_each, ValueError("x"), UserError("y"), KeyboardInterrupt())


def test_one_error_comes_as_it_is() -> None:
    with pytest.raises(NotFound, match="gone"):
        run_plainly(raise_each, NotFound("gone", ExitCode.PARTIAL))


def test_several_errors_are_one_with_a_line_each() -> None:
    with pytest.raises(UserError) as raised:
        run_plainly(raise_each, UserError("a"), UserError("b", ExitCode.NOT_READY), UserError("a"))
    assert sorted(raised.value.message.split("\n")) == ["a", "b"] and raised.value.exit_code == ExitCode.NOT_READY


def test_a_fault_keeps_its_group() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        run_plainly(raise_each, UserError("a"), ValueError("b"))
    assert raised.group_contains(ValueError)
