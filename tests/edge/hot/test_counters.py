"""Counters of the loop are declared in one table, which the fields in Python and in C follow."""

import re
from pathlib import Path
from typing import Any

from edge.hot import counters
from tests.edge.hot.harness import Broker

SOURCE = Path(__file__).resolve().parents[3] / "edge" / "hot" / "counters.py"


def test_table_and_fields_are_the_same() -> None:
    fields = re.findall(r"^        self\.(\w+) = 0$", SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
    in_c = re.findall(
        r"^    cdef readonly unsigned long long (\w+)$", SOURCE.with_suffix(".pxd").read_text(), re.MULTILINE
    )
    assert list(counters.COUNTERS) == fields == in_c
    assert len(set(fields)) == len(fields)


def test_each_counter_is_reported(hot: Any) -> None:
    """In the order of the table, and gauges behind them."""
    broker = Broker(hot)
    broker.client()
    found = broker.hot.counters()
    assert list(found)[: len(counters.COUNTERS)] == list(counters.COUNTERS)
    assert found["packets_in"] == 1
    assert found["connections"] == 1
    assert all(type(value) is int for value in found.values())
