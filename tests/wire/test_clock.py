"""Phases of the tiers' periodic work."""

import pytest

from wire.clock import EARLY_S, next_moment, tier_phase


def test_tier_phase_differs_between_tiers() -> None:
    """A period of 0.5 s is divided by three."""
    moments = {tier: next_moment(1000.0, 0.5, tier_phase(tier)) for tier in ("edge", "storage", "router")}
    assert moments == pytest.approx({"edge": 1000.5, "storage": 1000.0 + 0.5 / 3, "router": 1000.0 + 1.0 / 3})


@pytest.mark.parametrize("phase", [0.0, 1 / 3, 2 / 3])
def test_next_moment_is_reached_once_per_period(phase: float) -> None:
    """From any time, also from just before a timestamp, which then counts as reached."""
    now = 1000.1
    for _ in range(50):
        after = next_moment(now, 0.5, phase)
        assert now < after <= now + 0.5 + EARLY_S
        assert (after / 0.5 - phase) % 1.0 == pytest.approx(0.0, abs=1e-6) or (after / 0.5 - phase) % 1.0 > 1 - 1e-6
        assert next_moment(after - EARLY_S / 2, 0.5, phase) == pytest.approx(after + 0.5)
        now = after
