"""The longest iteration of a process is reported for one to two windows."""

import time

import pytest
import trio

from tests.turn_time import TRIES
from wire.node.loop_lag import WINDOW_S, LoopLag, StepLag, WindowedMax


def test_windowed_max_covers_this_window_and_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    turns = LoopLag()
    for seconds in (0.2, 0.7, 0.3):
        turns.note(seconds, clock[0])
    assert turns.longest_s() == 0.7
    clock[0] += WINDOW_S + 1
    turns.note(0.1, clock[0])
    assert turns.longest_s() == 0.7
    clock[0] += WINDOW_S
    assert turns.longest_s() == 0.1
    clock[0] += 3 * WINDOW_S
    assert turns.longest_s() == 0.0


async def test_loop_lag_includes_a_long_computation() -> None:
    idle_s = []
    for _ in range(TRIES):
        turns = LoopLag()
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(0.1)
        idle_s.append(turns.longest_s())
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        await trio.sleep(0.001)
        trio.lowlevel.remove_instrument(turns)
        assert turns.longest_s() >= 0.05
        if idle_s[-1] < 0.1:
            break
    assert min(idle_s) < 0.1  # waits of a task do not count


async def test_step_lag_measures_each_task_step() -> None:
    """Ten tasks of one iteration are ten steps."""

    async def compute() -> None:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass

    found = []
    for _ in range(TRIES):
        longest = WindowedMax()
        steps = StepLag(longest)
        trio.lowlevel.add_instrument(steps)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(compute)
        trio.lowlevel.remove_instrument(steps)
        found.append(longest.longest_s())
        if found[-1] < 0.2:
            break
    assert 0.02 <= min(found) < 0.2
