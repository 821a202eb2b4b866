"""The minimum cost of a durable message: a minimal edge, a primary and backups in C, beside ours.

    python -m bench.durable_floor [--runs 3] [--copies 1 3] [--output PAGE]

The rows are those of ``python -m bench.durable``: 100 pairs, 64 bytes, QoS 1, window 20, and paced 100, 1 000 and
5 000 a second. The programs (``durable_relay.c``) send, append, sync and confirm as our nodes do, a process for each,
and keep the same promise: all copies sync before an acknowledgement. They have neither TLS nor sessions,
queues, partitions, leases or idle work. So no broker of this shape costs less than they do, and the difference to ours
is the maximum saving. Each is measured by itself, alternately.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.durable_figures import cpu_s, durable_cluster, mqload, nodes_cpu, sync_latency
from bench.hot import HERE, build_mqload
from tests.e2e.local_cluster import LocalCluster

PAIRS = ("-P", "100", "--persistent")
ROWS = {
    "window 20": ("-w", "20", "-n"),
    "paced 100/s": ("-r", "1", "-d", "8"),
    "paced 1000/s": ("-r", "10", "-d", "6"),
    "paced 5000/s": ("-r", "50", "-d", "4"),
}
EACH = {"floor": "30000", "ours": "600"}  # messages of a publisher at window 20: for some seconds of the clock's ticks
WARM_UP = ("-w", "20", "-n", "20")


class Relay:
    """Edge and copies of ``durable_relay.c``."""

    def __init__(self, program: Path, folder: Path, copies: int) -> None:
        self._process = subprocess.Popen([program, folder, str(copies)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port, edge, *storages = map(int, self._process.stdout.readline().split())
        self._pids = {"edge": [edge], "storage": storages}

    def cpu(self) -> dict[str, float]:
        """Return CPU seconds by tier."""
        return {tier: sum(map(cpu_s, pids)) for tier, pids in self._pids.items()}

    def stop(self) -> None:
        """End all of it: copies end with the edge."""
        self._process.terminate()
        self._process.wait()


class Ours:
    """A cluster of this tree."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.port = cluster.port(0, "plain")

    def cpu(self) -> dict[str, float]:
        """Return CPU seconds by tier."""
        return nodes_cpu(self._cluster)


@contextmanager
def relay(program: Path, copies: int) -> Iterator[Relay]:
    """Run the programs in C on a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        running = Relay(program, Path(folder), copies)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def ours(copies: int) -> Iterator[Ours]:
    """Run a cluster."""
    with durable_cluster("--storages", str(copies)) as cluster:
        yield Ours(cluster)


def measure(options: argparse.Namespace, who: str, broker: Relay | Ours) -> dict[str, dict[str, float]]:
    """Return results by row; a row with a broken promise is omitted."""
    found: dict[str, dict[str, float]] = {}
    mqload(options, broker.port, *PAIRS, *WARM_UP)
    for name, load in ROWS.items():
        before = broker.cpu()
        each = (EACH[who],) if load[-1] == "-n" else ()
        report, broken = mqload(options, broker.port, *PAIRS, *load, *each)
        after, count = broker.cpu(), report.get("received", 0)
        if not broken and count:
            tiers = {f"{tier} us": (after[tier] - before[tier]) / count * 1e6 for tier in after}
            found[name] = {"all us": sum(tiers.values()), **tiers, **_latency(report)}
    return found


def _latency(report: dict[str, Any]) -> dict[str, float]:
    ack = report["ack_latency_us"]
    figures = {f"PUBACK P{p} ms": ack[f"p{p}"] / 1e3 for p in (50, 99)}
    return {"msg/s": report["receive_msg_per_s"], **figures}


def main() -> int:
    """Run all rows alternately and print medians; return 1 if a row has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--copies", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--output", type=Path, help="write the table there, too")
    options = parser.parse_args()
    load = f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, fdatasync of 8 KiB before: {sync_latency()}"
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as name:
        folder = Path(name)
        options.mqload, program = build_mqload(folder), folder / "relay"
        subprocess.run(["cc", "-O2", "-std=c11", str(HERE / "durable_relay.c"), "-o", str(program)], check=True)
        for _ in range(options.runs):
            for copies in options.copies:
                for who, broker in (("floor", relay(program, copies)), ("ours", ours(copies))):
                    with broker as running:
                        for row, figures in measure(options, who, running).items():
                            name = f"{row}, {copies} {'copy' if copies == 1 else 'copies'}"
                            runs.setdefault((name, who), []).append(figures)
                            summary = ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
                            print(f"    {name}, {who}: {summary}", flush=True)
    page = table(runs, f"Medians of {options.runs}; {load}; after: {sync_latency()}.")
    print(f"\n{page}", flush=True)
    if options.output:
        options.output.write_text(page)
    return 0 if len(runs) == 2 * len(ROWS) * len(options.copies) else 1


def table(runs: dict[tuple[str, str], list[dict[str, float]]], about: str) -> str:
    """Return medians as a table in Markdown."""
    columns = ("all us", "edge us", "storage us", "msg/s", "PUBACK P50 ms", "PUBACK P99 ms")
    lines = [about, "", f"| row | broker | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for (row, who), figures in sorted(runs.items(), key=lambda item: (item[0][0], item[0][1])):
        medians = (statistics.median(run[column] for run in figures) for column in columns)
        lines.append(f"| {row} | {who} | {' | '.join(f'{median:,.1f}' for median in medians)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
