"""The longest turn of a process is remembered for one to two windows."""

import time

import pytest
import trio

from wire.node.turns import WINDOW_S, Turns


def test_the_longest_of_this_window_and_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    turns = Turns()
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


async def test_a_task_that_computes_for_long_is_seen() -> None:
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    await trio.sleep(0.3)
    idle_s = turns.longest_s()
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    await trio.sleep(0.001)
    trio.lowlevel.remove_instrument(turns)
    assert turns.longest_s() >= 0.05
    assert idle_s < 0.3  # what a task waits is no part of a turn
