"""``python -m tests.chaos --minutes N [--seed n] [--rows F01,...]``: schedules of faults on real processes.

Decides which rows run on which cluster with which workload; what is broken is drawn in ``schedule.py``. Every schedule
ends in a quiet phase and all checkers. Exit code 1 when a promise was seen broken or a process ended by itself; the
history and the logs of such a run are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import trio

from stratamq.history.check import judge
from stratamq.history.history import parse_history
from stratamq.history.recorder import RecordSettings, record
from stratamq.history.report import as_text
from stratamq.history.run import Run
from tests.chaos import namespaces
from tests.chaos.chaos_result import RESULTS, Result, fault_table, read_results, result_of, wait_table
from tests.chaos.chaos_run import run_schedule
from tests.chaos.node_disk import can_mount, can_preload
from tests.chaos.real_cluster import RealCluster, Shape, real_cluster
from tests.chaos.schedule import ROWS, Schedule, draw

WORKLOADS = ("queue", "routes", "takeover", "retained", "wills", "shared")
WORKLOADS_OF = {"F34": ("takeover",), "F35": ("queue",)}
CLIENTS_OF = {"F35": 200}
DAMAGE = frozenset({"F20", "F21", "F22"})  # other copies are needed to mend it
LINKS = frozenset({"F08", "F09", "F10", "F11", "F12", "F14"})
SHIMMED = frozenset({"F02", "F05", "F06", "F16", "F17", "F24"})
LEFT_OUT = {"F13": "this harness cannot delay links of real processes; tests/chaos/test_fault_proxy.py does"}
SECONDS = 20.0  # of faults per schedule
DETECTION_S = 12.0  # what a lost edge, a lease and a slow machine may take until a will is fired
PER_CLUSTER = 6  # schedules before a cluster is replaced by a new one

__all__ = ["main", "run_one"]


async def run_one(
    cluster: RealCluster, schedule: Schedule, workload: str, seconds: float, kept: Path, operations_per_s: float = 15.0
) -> Result:
    """Run one schedule with one workload and judge it; a failing history is written to ``kept``."""
    slow: list[str] = []

    async def break_things(run: Run) -> None:
        late = await run_schedule(schedule, cluster, run)
        slow.extend(f"{line}; still missing at the end: {cluster.missing or 'nothing'}" for line in late)

    clients = CLIENTS_OF.get(schedule.row, 0)
    settings = RecordSettings(
        brokers=cluster.brokers(),
        workload=workload,
        seconds=seconds,
        seed=schedule.seed,
        clients=clients,
        drain_s=30.0,
        operations_per_s=operations_per_s / 15 if clients else operations_per_s,
        detection_s=DETECTION_S,
        software="StrataMQ",
    )
    sink = io.BytesIO()
    before = len(cluster.ended)
    await record(settings, sink, break_things)
    history = parse_history(sink.getvalue())
    verdict = judge(history)
    result = result_of(schedule, str(cluster.shape), workload, history, verdict, slow, cluster.ended[before:])
    if not result.clean:
        folder = kept / f"{schedule.row}-{schedule.seed}-{workload}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.jsonl").write_bytes(sink.getvalue())
        (folder / "schedule.txt").write_text(f"{schedule}\n\n{as_text(verdict, 20)}\n")
        shutil.copytree(cluster.folder / "logs", folder / "logs", dirs_exist_ok=True)
    return result


def shape_for(row: str, rng: random.Random, options: argparse.Namespace) -> Shape:
    """Choose the cluster for a row."""
    if options.shape:
        routers, storages, edges = (int(count) for count in options.shape.split("/"))
    elif row in DAMAGE or row in LINKS or rng.random() < 0.6:
        routers, storages, edges = 3, 3, rng.choice((2, 3))
    else:
        routers, storages, edges = 1, 1, 2
    small: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    if row == "F19":
        small = tuple(
            f"{tier}-{n}" for tier, count in (("router", routers), ("storage", storages)) for n in range(count)
        )
        settings = ("storage.free_space_floor_bytes=2097152",)
    return Shape(routers, storages, edges, small, options.namespaces, settings)


def _rows(options: argparse.Namespace) -> list[str]:
    wanted = options.rows.split(",") if options.rows else [row for row in ROWS if row not in LEFT_OUT]
    reasons = dict(LEFT_OUT)
    if not options.namespaces:
        reasons |= dict.fromkeys(LINKS, "cutting links between processes needs root and `ip`")
    if not can_preload():
        reasons |= dict.fromkeys(SHIMMED, "the shim needs gcc")
    if not can_mount():
        reasons |= {"F19": "a small disk needs root"}
    for row in wanted:
        if row not in ROWS:
            raise SystemExit(f"no row {row!r}; there are {', '.join(ROWS)}")
        if row in reasons:
            print(f"{row} is left out: {reasons[row]}")
    return [row for row in wanted if row not in reasons]


async def _run_all(options: argparse.Namespace) -> list[Result]:
    rows, results = _rows(options), []
    end = time.monotonic() + options.minutes * 60
    number = 0
    while rows and time.monotonic() < end:
        row = rows[number % len(rows)]
        shape = shape_for(row, random.Random(f"{options.seed}/{number}/shape"), options)
        folder = Path(tempfile.mkdtemp(prefix="stratamq-chaos-"))
        try:
            async with real_cluster(folder / "cluster", shape, options.seed) as cluster:
                for _ in range(options.per_cluster):
                    result = await _run_number(cluster, rows[number % len(rows)], number, options)
                    results.append(result)
                    number += 1
                    same = (
                        shape_for(rows[number % len(rows)], random.Random(0), options).small_disks == shape.small_disks
                    )
                    needs_more = rows[number % len(rows)] in DAMAGE | LINKS and shape.storages < 3
                    if not result.clean or result.slow or time.monotonic() > end or not same or needs_more:
                        break
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return results


async def _run_number(cluster: RealCluster, row: str, number: int, options: argparse.Namespace) -> Result:
    seed = options.seed + number
    choice = random.Random(f"{seed}/workload").choice(WORKLOADS_OF.get(row, WORKLOADS))
    schedule = draw(row, seed, cluster.nodes(), options.seconds)
    print(f"{choice} on {cluster.shape}: {schedule}", flush=True)
    result = await run_one(cluster, schedule, options.workload or choice, options.seconds, options.keep)
    said = "clean" if result.clean else f"NOT CLEAN {result.found} {' '.join(result.ended)}, kept in {options.keep}"
    print(f"  {said}; {result.accepted} accepted; {' '.join(result.slow)}", flush=True)
    if options.results is not None:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
    return result


def _write_between(page: Path, tables: str) -> None:
    begin, end = "<!-- chaos: begin -->", "<!-- chaos: end -->"
    head, _, rest = page.read_text().partition(begin)
    page.write_text(f"{head}{begin}\n{tables}\n{end}{rest.partition(end)[2]}")


def main() -> int:
    """Run, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--rows", default="", help="of the fault catalogue, such as F01,F07; default: all that can run")
    parser.add_argument("--shape", default="", help="routers/storages/edges, such as 1/1/2; default: drawn")
    parser.add_argument("--workload", default="", help=f"one of {', '.join(WORKLOADS)}; default: drawn")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of faults per schedule")
    parser.add_argument("--per-cluster", type=int, default=PER_CLUSTER, help="schedules per cluster")
    parser.add_argument("--keep", type=Path, default=Path("chaos-failures"), help="folder for histories that fail")
    parser.add_argument("--results", type=Path, help=f"append results here; kept ones are in {RESULTS.name}")
    parser.add_argument("--schedules", type=int, default=0, help="so many instead of minutes, each row in turn")
    parser.add_argument("--kills", type=int, default=0, help="then measure so many rounds of kills, one per role")
    parser.add_argument("--write", type=Path, help="with --report: put the tables into this page, between its marks")
    parser.add_argument("--report", action="store_true", help="only print the tables of the kept results")
    options = parser.parse_args()
    if options.report:
        kept = read_results(options.results or RESULTS)
        tables = f"{fault_table(kept)}\n\n{wait_table(kept)}"
        print(tables)
        if options.write is not None:
            _write_between(options.write, tables)
        return 0
    options.keep = options.keep.absolute()
    options.namespaces = namespaces.available()
    if options.namespaces:
        try:
            namespaces.enter_own()
        except OSError:
            options.namespaces = False
    print(f"seed {options.seed}; each node in a network namespace: {'yes' if options.namespaces else 'no'}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        results = trio.run(_run_all, options)
        print(f"\n{fault_table(results)}\n\n{wait_table(results)}")
        return 0 if all(result.clean for result in results) else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())
