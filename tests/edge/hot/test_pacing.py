"""Pacing is tried only by a saturated loop, kept only if it pays, and backs off otherwise (uncompiled form only)."""

from typing import Any

import pytest

from tests.edge.hot.conftest import load

ROUND_NS = 20_000


@pytest.fixture
def pacing() -> Any:
    return load("pure").pacing


def play(pacing: Any, rounds: int, per_round: float, paced_per_round: float, blocked: float) -> tuple[Any, int, int]:
    """Run rounds that bring so many messages each; how many of them were paced, and how many trials there were."""
    state = pacing.Pacing(250_000)
    now = blocked_ns = paced = trials = 0
    messages = 0.0
    before = 0
    for _ in range(rounds):
        gap = pacing.gap_ns(state)
        now += ROUND_NS + gap
        messages += paced_per_round if gap else per_round
        blocked_ns += int(ROUND_NS * blocked)
        paced += gap > 0
        pacing.after_round(state, now, int(messages), blocked_ns)
        trials += state.state == 2 and before != 2
        before = state.state
    return state, paced, trials


def test_many_small_writers_are_paced(pacing: Any) -> None:
    state, paced, _ = play(pacing, 30_000, 1.0, 8.0, 0.0)
    assert paced > 25_000
    assert state.switched_on > 5


def test_a_windowed_publisher_is_not(pacing: Any) -> None:
    state, paced, trials = play(pacing, 300_000, 20.0, 20.0, 0.0)
    assert state.switched_on == 0
    assert trials <= 8  # the back-off doubles
    assert paced <= 8 * 16


def test_a_loop_with_time_to_sleep_never_tries(pacing: Any) -> None:
    _, paced, trials = play(pacing, 50_000, 1.0, 5.0, 0.6)
    assert (paced, trials) == (0, 0)


def test_zero_switches_it_off(pacing: Any) -> None:
    state = pacing.Pacing(0)
    for i in range(1000):
        pacing.after_round(state, i * ROUND_NS, i, 0)
        assert pacing.gap_ns(state) == 0
