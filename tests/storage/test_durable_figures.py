"""The measurement of durable messages (``bench/durable_figures.py``) reports only their own processor time."""

import os
from typing import Any

from bench.durable_figures import Costs, cpu_s

PAGE_S = 0.1


class _Slow:
    """A cluster of this process as a storage node with an expensive metrics page."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"nodes": {"storage-0": {"tier": "storage", "pid": os.getpid()}}}

    def metrics(self, _name: str) -> str:
        """Compute as long as a node that imports its metrics modules."""
        until = cpu_s(os.getpid()) + PAGE_S
        while cpu_s(os.getpid()) < until:
            pass
        return "stratamq_store_rows_total 7.0\n"


def test_metrics_page_is_not_counted_as_message_cost() -> None:
    """A node's first page costs 0.7 s of processor: with three copies, 70 us of each of 30 000 messages."""
    cluster: Any = _Slow()
    costs = Costs(cluster)
    assert costs.cpu_us(1) < PAGE_S * 1e6 / 2
    assert costs.figures(1)["storage us"] < PAGE_S * 1e6 / 2
