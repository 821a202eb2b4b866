"""Measurements of a durable run: a cluster of real processes, their CPU time and rows, the disk's own sync.

Used by ``bench/durable.py`` and ``bench/durable_paced.py``.
"""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.local_cluster import LocalCluster, local_cluster

__all__ = ["Costs", "cpu_s", "durable_cluster", "mqload", "nodes_cpu", "raw_syncs", "sync_latency"]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def raw_syncs(rounds: int = 100) -> tuple[float, float]:
    """Return (P50, P99) in ms of one sync of the disk under the temporary folder, without us."""
    figures = []
    with tempfile.TemporaryFile() as file:
        for _ in range(rounds):
            file.write(b"x" * 8192)
            file.flush()
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            figures.append((time.perf_counter() - begun) * 1e3)
    figures.sort()
    return figures[rounds // 2], figures[-1 - rounds // 100]


def sync_latency() -> str:
    """Return the same as text."""
    return "P50 {:.2f} ms, P99 {:.2f} ms".format(*raw_syncs())


# --- measurements around a run


def cpu_s(pid: int) -> float:
    """Return CPU seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def nodes_cpu(cluster: LocalCluster) -> dict[str, float]:
    """Return CPU seconds by tier."""
    used: dict[str, float] = {}
    for node in cluster.state["nodes"].values():
        used[node["tier"]] = used.get(node["tier"], 0.0) + cpu_s(node["pid"])
    return used


def store_figures(cluster: LocalCluster) -> dict[str, float]:
    """Return rows written, syncs and drops of all storage nodes."""
    found: dict[str, float] = {"rows": 0.0, "syncs": 0.0, "dropped": 0.0}
    for name, node in cluster.state["nodes"].items():
        if node["tier"] != "storage":
            continue
        for line in cluster.metrics(name).splitlines():
            for metric, what in (("store_rows_total ", "rows"), ("store_syncs_total ", "syncs")):
                if line.startswith(f"stratamq_{metric}"):
                    found[what] += float(line.rsplit(" ", 1)[1])
            if line.startswith("stratamq_messages_dropped_total"):
                found["dropped"] += float(line.rsplit(" ", 1)[1])
    return found


def mqload(options: argparse.Namespace, port: int, *arguments: str) -> tuple[dict[str, Any], int]:
    """Run the load generator; return its report and 1 if a promise was broken."""
    command = [str(options.mqload), "-H", f"127.0.0.1:{port}", "--json", "-q", "1", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(result.stdout) if result.stdout.strip().startswith("{") else {}
    if result.returncode:
        names = ("first_error", "expected", "received", "lost", "duplicates", "out_of_order", "corrupt")
        wrong = {name: report.get(name) for name in names}
        print(f"  FAILED: exit {result.returncode}, {wrong} {result.stderr.strip()[-300:]}")
        return {}, 1
    return report, 0


class Costs:
    """The cluster's cost of a run, per message."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._store = store_figures(cluster)  # first: a node's first page imports for 0.7 s of processor
        self._cpu = nodes_cpu(cluster)

    def cpu_us(self, messages: float) -> float:
        """Return CPU of all nodes per message since this was made, microseconds."""
        return (sum(nodes_cpu(self._cluster).values()) - sum(self._cpu.values())) / messages * 1e6

    def figures(self, messages: float) -> dict[str, float]:
        """Return the costs since this was made, over so many messages."""
        cpu, store = nodes_cpu(self._cluster), store_figures(self._cluster)
        found = {f"{tier} us": (cpu[tier] - self._cpu[tier]) / messages * 1e6 for tier in sorted(cpu)}
        found["rows"] = (store["rows"] - self._store["rows"]) / messages
        found["syncs"] = (store["syncs"] - self._store["syncs"]) / messages
        found["dropped"] = store["dropped"] - self._store["dropped"]
        return found

    def line(self, messages: float) -> str:
        """Return them as text."""
        found = self.figures(messages)
        tiers = ", ".join(f"{name[:-3]} {value:.1f}" for name, value in found.items() if name.endswith(" us"))
        syncs = found["syncs"] * messages
        return (
            f"CPU us: {tiers}; {found['rows']:.2f} rows, {syncs:.0f} syncs (one per {messages / max(syncs, 1):.0f})"
            + (f"; {found['dropped']:.0f} DROPPED" if found["dropped"] else "")
        )


@contextlib.contextmanager
def durable_cluster(*arguments: str) -> Iterator[LocalCluster]:
    """Run one edge, one router and storage nodes; at the end the logs are searched for exceptions."""
    with local_cluster("--edges", "1", "--set", "storage.queue_messages_max=1000000", *arguments) as cluster:
        yield cluster
        for log in sorted((cluster.data / "logs").glob("*.log")):
            for line in log.read_text().splitlines():
                if "Traceback" in line or '"level": "error"' in line or '"level": "critical"' in line:
                    print(f"  {log.name}: {line[:300]}")
