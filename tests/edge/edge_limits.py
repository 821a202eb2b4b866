"""Limits of an edge for tests."""

from typing import Any

from edge.node.limits import EdgeLimits


def limits(**values: Any) -> EdgeLimits:
    return EdgeLimits(sys_interval_s=0, **values)
