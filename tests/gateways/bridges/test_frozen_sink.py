"""A blocked bridge does not reduce the rate of another bridge in the process."""

import pytest

from bench.bridge_faults import frozen
from tests.stratamq.history.mosquitto import INSTALLED

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")


@pytest.mark.slow
async def test_blocked_sink_costs_other_bridge_at_most_five_percent() -> None:
    """By the median of rounds, with the other bridge's sink blocked and not."""
    missed: list[str] = []

    def check(name: str, holds: bool) -> str:
        if not holds:
            missed.append(name)
        return ""

    await frozen(check)
    assert missed == []
