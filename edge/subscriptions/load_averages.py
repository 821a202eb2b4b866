"""Load averages of $SYS: rates per minute over 1, 5 and 15 minutes, with exponential decay.

Source: mosquitto(8), "$SYS/broker/load/..."; the decay is that of Mosquitto's ``sys_tree.c``.
"""

from collections.abc import Mapping
from math import exp

__all__ = ["LoadAverages"]

MINUTES = (1, 5, 15)


class LoadAverages:
    """Averages of monotonic totals."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._averages: dict[str, list[float]] = {}

    def update(self, interval_s: float, totals: Mapping[str, int]) -> dict[str, str]:
        """Add totals after an interval, above 0; return each average by name, as ``bytes/sent/5min``."""
        shown = {}
        for name, total in totals.items():
            per_minute = (total - self._before.get(name, 0)) * 60.0 / interval_s
            averages = self._averages.setdefault(name, [0.0] * len(MINUTES))
            for place, minutes in enumerate(MINUTES):
                kept = exp(-interval_s / 60.0 / minutes)
                averages[place] = per_minute + kept * (averages[place] - per_minute)
                shown[f"{name}/{minutes}min"] = f"{averages[place]:.2f}"
        self._before = dict(totals)
        return shown
