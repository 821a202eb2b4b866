"""Increase of counters in the last minutes, for alerts about current conditions.

Stores one sample of the selected families per node every 15 s. A restarted node counts as a new one.
"""

from collections import deque
from collections.abc import Mapping

from wire.messages.node_rows import StatsRow

__all__ = ["GROWTH_S", "Growth"]

GROWTH_S = 300.0
STEP_MS = 15_000
READINGS_MAX = int(GROWTH_S * 1000) // STEP_MS + 1

Reading = dict[str, float]


class Growth:
    """Counters of some families over time, by node.

    Args:
        families: Metric names without labels.
    """

    def __init__(self, families: frozenset[str]) -> None:
        self._families, self._prefixes = families, tuple(families)
        self._kept: dict[tuple[str, int], deque[tuple[int, Reading]]] = {}  # by node and incarnation

    def take(self, now_ms: int, stats: Mapping[str, StatsRow]) -> dict[str, Reading]:
        """Add a sample; return the increase within GROWTH_S, by node and counter.

        The first sample of a node has no increase. A node that does not answer keeps its samples until they expire.
        """
        grown: dict[str, Reading] = {}
        for node, row in stats.items():
            now = {key: value for key, value in (row.counters or {}).items() if self._is_selected(key)}
            kept = self._kept.setdefault((node, row.incarnation or 0), deque(maxlen=READINGS_MAX))
            while len(kept) > 1 and now_ms - kept[0][0] > GROWTH_S * 1000:
                kept.popleft()
            if not kept or now_ms - kept[-1][0] >= STEP_MS:
                kept.append((now_ms, now))
            before = kept[0][1]
            grown[node] = {key: value - before.get(key, 0.0) for key, value in now.items()}
        for key in [key for key, kept in self._kept.items() if now_ms - kept[-1][0] > GROWTH_S * 1000]:
            del self._kept[key]
        return grown

    def _is_selected(self, key: str) -> bool:
        return key.startswith(self._prefixes) and key.partition("{")[0] in self._families
