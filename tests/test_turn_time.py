"""An iteration that is too long once is noise, one that is too long each time is a fault."""

import pytest

from tests import turn_time
from tests.turn_time import TRIES, assert_within, slowness, timed


def judged(found: list[float], monkeypatch: pytest.MonkeyPatch, factor: float = 1.0) -> int:
    """Check iterations of these milliseconds against a bar of 5 ms; return the number of tries."""
    monkeypatch.setattr(turn_time, "slowness", lambda: factor)
    left = list(found)

    @timed
    def test() -> None:
        assert_within("it", left.pop(0), 5)

    test()
    return len(found) - len(left)


def test_minimum_of_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged([4.9, 1], monkeypatch) == 1
    assert judged([50.0] * (TRIES - 1) + [4.9], monkeypatch) == TRIES
    with pytest.raises(AssertionError, match=r"50\.00 ms .* 5\.00 ms .* 6\.00 ms"):
        judged([50.0, 5.0] + [6.0] * (TRIES - 2) + [1.0], monkeypatch)


def test_slower_machine_scales_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged([9.9], monkeypatch, 2) == 1
    with pytest.raises(AssertionError, match=r"2\.00 times slower"):
        judged([11] * TRIES, monkeypatch, 2)


def test_each_bar_may_be_met_in_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_time, "slowness", lambda: 1.0)
    left = [(9, 1), (1, 9)]

    @timed
    def test() -> None:
        one, two = left.pop(0)
        assert_within("one", one, 5)
        assert_within("two", two, 5)

    test()
    assert not left


def test_other_failures_count_at_once_and_missing_bar_fails() -> None:
    tries: list[int] = []

    @timed
    def wrong() -> None:
        tries.append(1)
        raise AssertionError("a wrong answer")

    with pytest.raises(AssertionError, match="a wrong answer"):
        wrong()
    assert len(tries) == 1
    with pytest.raises(AssertionError, match="no time was held"):
        timed(lambda: None)()
    with pytest.raises(AssertionError, match="only a test that is timed"):
        assert_within("it", 1, 5)


def test_faster_machine_keeps_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_time, "CALIBRATIONS", 1)
    monkeypatch.setattr(turn_time, "REFERENCE_MS", 1e6)
    assert slowness() == 1.0
    monkeypatch.setattr(turn_time, "REFERENCE_MS", 0.001)
    assert slowness() > 1.0
