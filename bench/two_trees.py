"""Two trees alternately: CPU time per message (or connect) of this checkout against another one's.

    python -m bench.two_trees ../other                         every row, nine rounds
    python -m bench.two_trees ../other --runs 25 --only QoS    rows whose name contains it

The other checkout has its own ``.venv`` with its modules compiled (``make setup`` there). A cluster of each tree
runs at the same time, the idle one waits. Each round runs a row on one, then on the other, both by this tree's
generator; every second round begins with the other tree. After every few rounds both clusters are restarted, since
two processes of one program differ too. A row is evaluated by the median of the rounds' ratios: the speed of a shared
machine drifts between rounds, and less within one. The minima of both are the trees' costs without disturbance;
where the two results differ, the machine was not quiet. The exit code is 1 if a row is slower than
``--tolerance`` by both, or was not measured.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.cluster import IDLE_ROWS, WARM_UP, Cluster, machine, run_on
from bench.hot import ROWS, Row, build_mqload, figure, make_certificate

__all__ = ["main", "take_turns"]

TURNS_OF_A_PAIR = 5


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--runs", type=int, default=9, help="turns of each row")
    parser.add_argument("--only", default="", help="rows whose name contains it")
    parser.add_argument("--tolerance", type=float, default=0.03, help="of a row, as a share")
    arguments = parser.parse_args()
    other: Path = arguments.other.resolve()
    if not (other / ".venv" / "bin" / "python").exists():
        parser.error(f"{other} has no .venv/bin/python: run `make setup` there")
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    try:
        make_certificate(folder)
        mqload = build_mqload(folder)
        rows = [row for row in (*ROWS, *IDLE_ROWS) if arguments.only.lower() in row.name.lower()]
        slower = [row.name for row in rows if not _within(row, mqload, folder, other, arguments)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{len(slower)} of {len(rows)} rows are slower or not measured" + (f": {', '.join(slower)}" if slower else "")
    )
    return 1 if slower else 0


def take_turns(
    row: Row,
    mqload: Path,
    runs: int,
    clusters: tuple[Callable[[int], Cluster], Callable[[int], Cluster]],
    turns_of_a_pair: int = TURNS_OF_A_PAIR,
) -> tuple[list[float], list[float]]:
    """Return the results of this many rounds of a row on either of two clusters, made for a number of edges.

    With every new pair the start order is reversed.
    """
    figures: tuple[list[float], list[float]] = ([], [])
    pairs = 0
    while len(figures[0]) < runs:
        turns = range(len(figures[0]), min(len(figures[0]) + turns_of_a_pair, runs))
        pair: dict[int, Cluster] = {}
        try:
            for index in (1, 0) if pairs % 2 else (0, 1):
                pair[index] = clusters[index](2 if row.linked else 1)
            for cluster in pair.values():
                run_on(cluster, mqload, replace(WARM_UP, tls=row.tls))
            time.sleep(row.settle_s)
            for turn in turns:
                for index in (1, 0) if turn % 2 else (0, 1):
                    figures[index].append(figure(run_on(pair[index], mqload, row))[0])
        finally:
            for cluster in pair.values():
                cluster.stop()
        pairs += 1
    return figures


def _within(row: Row, mqload: Path, folder: Path, other: Path, arguments: argparse.Namespace) -> bool:
    """Run the rounds of a row, print its line, and return whether this tree is no slower than allowed."""
    ours, others = (lambda edges: Cluster(folder, edges)), (lambda edges: Cluster(folder, edges, other))
    here, there = take_turns(row, mqload, arguments.runs, (ours, others))
    if not (min(here) and min(there)):
        print(f"{row.name:40} not measured: a turn of {'this tree' if not min(here) else 'the other tree'} failed")
        return False
    by_turns = statistics.median(mine / its for mine, its in zip(here, there, strict=True))
    by_least = min(here) / min(there)
    limit = 1 + arguments.tolerance
    slower = by_turns > limit and by_least > limit
    print(
        f"{row.name:40} {by_turns:6.3f} by turns {by_least:6.3f} by the least"
        f"  {statistics.median(here):8.3f} us (least {min(here):.3f})"
        f" against {statistics.median(there):8.3f} ({min(there):.3f}){'  SLOWER' * slower}",
        flush=True,
    )
    return not slower


if __name__ == "__main__":
    sys.exit(main())
