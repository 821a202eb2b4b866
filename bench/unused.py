"""The cost of the operating features while unused: CPU time and memory of idle nodes, by pairs of clusters.

    python -m bench.unused                     this checkout with its canary against itself without: CPU time
    python -m bench.unused --other ../before   this checkout against another one: CPU time, memory a node, and the loop

Both clusters of a pair have three nodes of each tier, all on CPU 0, and are measured in the same seconds: disturbances
affect both. Each pair is restarted, every second one in the other order. Memory is a process's private memory
that is not mapped from a file. The loop is ``python -m bench.tracing --other``. Limits: CPU time 1.03 times,
the canary included, 1 MiB a node, the loop 1.02 times. Later work in this checkout counts too.
The exit code is the number of missed limits.
"""

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.cluster import Cluster, machine
from bench.tracing import compare

PROCESSOR_MAX, MEMORY_MIB_MAX, LOOP_TOLERANCE = 1.03, 1.0, 0.02
SETTLE_S = 20.0  # leases, rebalances and caches of a start
WITHOUT_CANARY = """
import sys
if "edge" in sys.orig_argv:
    import edge.canary
    edge.canary.PERIOD_S = 1e9
"""


def processor_s(pid: int) -> float:
    """Return the processor time of a process, all its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def anonymous_kib(pid: int) -> int:
    """Return the memory that a process has for itself."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def tier_of(node: str) -> str:
    """Return the tier of a node of ``up``."""
    return node.partition("-")[0]


class Pair:
    """Results: ratios of CPU time, and memory by tier of both."""

    def __init__(self) -> None:
        self.ratios: list[float] = []
        self.shares: tuple[list[float], list[float]] = ([], [])  # of a core, all nodes
        self.kib: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})

    def measure(self, mine: Cluster, its: Cluster, seconds: float, turns: int) -> None:
        """Measure two clusters in the same seconds, some times."""
        for _ in range(turns):
            before = [sum(map(processor_s, cluster.pids.values())) for cluster in (mine, its)]
            began = time.monotonic()
            time.sleep(seconds)
            used = [sum(map(processor_s, cluster.pids.values())) for cluster in (mine, its)]
            here, there = (after - earlier for after, earlier in zip(used, before, strict=True))
            self.ratios.append(here / there)
            for shares, one in zip(self.shares, (here, there), strict=True):
                shares.append(one / (time.monotonic() - began))
            summary = f"{here / seconds:.4f} of a core against {there / seconds:.4f}"
            print(f"  {here / there:.3f} times ({summary})", flush=True)
        for kib, cluster in zip(self.kib, (mine, its), strict=True):
            for node, pid in cluster.pids.items():
                kib.setdefault(tier_of(node), []).append(anonymous_kib(pid))

    def processor(self, against: str) -> bool:
        """Print the judgement of the processor; return whether the bar is missed."""
        ratio = statistics.median(self.ratios)
        here, there = map(statistics.median, self.shares)
        summary = f"{here:.4f} of a core against {there:.4f} {against}"
        print(f"idle processor: {ratio:.3f} times (bar {PROCESSOR_MAX}), {summary}")
        return ratio > PROCESSOR_MAX

    def memory(self) -> int:
        """Print the judgement of memory of each tier; return how many bars are missed."""
        missed = 0
        for tier in sorted(self.kib[0]):
            here, there = (statistics.median(kib[tier]) / 1024 for kib in self.kib)
            missed += here - there > MEMORY_MIB_MAX
            summary = f"{here:.1f} against {there:.1f}"
            print(f"memory of a node, {tier}: {here - there:+.2f} MiB (bar {MEMORY_MIB_MAX:g}), {summary}")
        return missed


def run(asked: argparse.Namespace, folder: Path) -> Pair:
    """Start pairs and measure them."""
    overlay = folder / "without"
    overlay.mkdir()
    (overlay / "sitecustomize.py").write_text(WITHOUT_CANARY)
    options = ("--routers", "3", "--storages", "3")
    pair = Pair()
    for number in range(asked.pairs):
        with contextlib.ExitStack() as stack:
            here = Path(tempfile.mkdtemp(dir=folder))
            starts: list[Callable[[], Cluster]] = [
                lambda: Cluster(here, 3, options=options),  # noqa: B023
                lambda: Cluster(here, 3, asked.other, None if asked.other else overlay, options),  # noqa: B023
            ]
            clusters: dict[int, Cluster] = {}
            for index in (1, 0) if number % 2 else (0, 1):
                clusters[index] = starts[index]()
                stack.callback(clusters[index].stop)
            time.sleep(SETTLE_S)
            pair.measure(clusters[0], clusters[1], asked.seconds, asked.turns)
    return pair


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another checkout, with a .venv of its own")
    parser.add_argument("--pairs", type=int, default=3, help="of clusters, each started anew")
    parser.add_argument("--turns", type=int, default=3, help="of a pair")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a turn: some canaries of each edge")
    asked = parser.parse_args()
    asked.other = asked.other.resolve() if asked.other else None
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    try:
        pair = run(asked, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    missed = int(pair.processor("of the other checkout" if asked.other else "without a canary"))
    if asked.other:
        missed += pair.memory()
        missed += not compare(asked.other, LOOP_TOLERANCE)
    return missed


if __name__ == "__main__":
    sys.exit(main())
