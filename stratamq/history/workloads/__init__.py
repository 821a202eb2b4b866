"""The table of workloads: name -> class.

Each is bounded in clients, in what it leaves open and, by the run, in time.
"""

from __future__ import annotations

from typing import Final

from stratamq.history.workloads.queue import QueueWorkload
from stratamq.history.workloads.rebalance import RebalanceWorkload
from stratamq.history.workloads.retained import RetainedWorkload
from stratamq.history.workloads.routes import RoutesWorkload
from stratamq.history.workloads.shared import SharedWorkload
from stratamq.history.workloads.takeover import TakeoverWorkload
from stratamq.history.workloads.wills import WillsWorkload
from stratamq.history.workloads.workload import Workload

WORKLOADS: Final[dict[str, type[Workload]]] = {
    "queue": QueueWorkload,
    "routes": RoutesWorkload,
    "takeover": TakeoverWorkload,
    "retained": RetainedWorkload,
    "wills": WillsWorkload,
    "shared": SharedWorkload,
    "rebalance": RebalanceWorkload,
}

__all__ = ["WORKLOADS", "Workload"]
