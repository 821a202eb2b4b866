"""Pacing is tried only at high rates, kept only if it pays, and backs off otherwise (uncompiled form only)."""

from typing import Any

import pytest

from tests.edge.loop.conftest import load

TURN_NS = 20_000


@pytest.fixture
def pacing() -> Any:
    return load("pure").pacing


def play(pacing: Any, turns: int, plain: tuple[float, float], paced: tuple[float, float]) -> tuple[Any, int, int]:
    """Run iterations without and with a gap: messages per iteration, share of its time (gap aside) spent asleep.

    Returns:
        The pacing, the number of paced iterations, the number of trials.
    """
    state = pacing.Pacing(250_000)
    now = blocked_ns = gaps = trials = 0
    messages = 0.0
    before = 0
    for _ in range(turns):
        gap = pacing.gap_ns(state)
        per_turn, asleep = paced if gap else plain
        now += TURN_NS + gap
        blocked_ns += int(TURN_NS * asleep) + gap
        messages += per_turn
        gaps += gap > 0
        pacing.after_iteration(state, now, int(messages), blocked_ns)
        trials += state.state == 2 and before != 2
        before = state.state
    return state, gaps, trials


def test_many_small_writers_are_paced(pacing: Any) -> None:
    state, paced, _ = play(pacing, 30_000, (1.0, 0.0), (13.5, 0.0))
    assert paced > 25_000
    assert state.switched_on > 5


def test_windowed_publisher_is_not_paced(pacing: Any) -> None:
    """With a window, an iteration after the gap has five times as many messages, but lasts thirteen times as long."""
    state, paced, trials = play(pacing, 300_000, (4.0, 0.0), (20.0, 0.0))
    assert state.switched_on == 0
    assert 0 < trials <= 12  # the back-off doubles
    assert paced <= 12 * 16


def test_idle_loop_at_moderate_rate_never_tries_pacing(pacing: Any) -> None:
    _, paced, trials = play(pacing, 50_000, (1.0, 0.6), (5.0, 0.6))
    assert (paced, trials) == (0, 0)


def test_lockstep_with_many_writers_is_paced(pacing: Any) -> None:
    """Half of the time asleep, but 200 000 messages per second: each side wakes the other for every few packets."""
    state, paced, _ = play(pacing, 30_000, (4.0, 0.5), (60.0, 0.0))
    assert state.switched_on > 5
    assert paced > 25_000


def test_zero_ceiling_disables_pacing(pacing: Any) -> None:
    state = pacing.Pacing(0)
    for i in range(1000):
        pacing.after_iteration(state, i * TURN_NS, i, 0)
        assert pacing.gap_ns(state) == 0
