"""One bridge of a process stands still, and the other one keeps its rate."""

import pytest

from bench.bridge_faults import frozen
from tests.stratamq.history.mosquitto import INSTALLED

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")


@pytest.mark.slow
async def test_a_sink_that_stands_still_costs_its_neighbour_five_per_cent_at_most() -> None:
    """By the median of turns, with the neighbour's sink standing still and not."""
    missed: list[str] = []

    def check(what: str, holds: bool) -> str:
        if not holds:
            missed.append(what)
        return ""

    await frozen(check)
    assert missed == []
