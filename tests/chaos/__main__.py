"""``python -m tests.chaos --minutes N [--seed n] [--rows F01,...]``: schedules of faults on real processes.

``--schedules 30 --seconds 60 --kills 4 --fresh --write docs/chaos.md`` creates the tables of the manual:
every row at least once, then kills of one node per role with clients that measure the time without service.

This module selects rows, clusters and workloads; ``schedule.py`` draws the faults. Every schedule
ends in a quiet phase and all checkers. Exit code 1 after a broken promise or an unexpected end of a process; the
history and the logs of such a run are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import resource
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
from tests.chaos import namespaces, probes
from tests.chaos.chaos_result import RESULTS, Result, fault_table, points_line, read_results, result_of, wait_table
from tests.chaos.chaos_run import run_schedule
from tests.chaos.fleet import OPEN_FILES, SETTINGS, run_fleet
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
# Of --schedules: each once, then the first ten again with other seeds. F19 has disks, and so its own cluster.
SHOWN = (
    *("F01", "F02", "F03", "F04", "F05", "F06", "F07", "F08", "F09", "F10"),
    *("F11", "F14", "F16", "F17", "F20", "F21", "F22", "F34", "F35", "F19"),
)
SHOWN_MINUTES = 45.0
SECONDS = 20.0  # of faults per schedule
DETECTION_S = 12.0  # bound until a will is published: lost edge, lease and a slow machine
PER_CLUSTER = 6  # schedules before a cluster is replaced by a new one

__all__ = ["main", "run_one"]


async def run_one(
    cluster: RealCluster,
    schedule: Schedule,
    workload: str,
    seconds: float,
    kept: Path,
    *,
    every_fault: bool = False,
    operations_per_s: float = 15.0,
) -> Result:
    """Run one schedule and check it; a failed run, or one that does not recover in time, is written to ``kept``.

    Args:
        seconds: Minimum duration of the workload.
        every_fault: Run the whole schedule, even if it takes longer.
    """
    if schedule.row == "fleet":
        return await run_fleet(cluster, schedule, kept)
    slow: list[str] = []

    async def break_things(run: Run) -> None:
        late = await run_schedule(schedule, cluster, run, float("inf") if every_fault else seconds)
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
    cluster.crash_points.clear()
    await record(settings, sink, break_things)
    history = parse_history(sink.getvalue())
    verdict = judge(history)
    result = result_of(schedule, str(cluster.shape), workload, history, verdict, slow, cluster.ended[before:][:3])
    result = msgspec.structs.replace(result, points=dict(cluster.crash_points))
    if not result.clean or slow:
        folder = kept / f"{schedule.row}-{schedule.seed}-{workload}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.jsonl").write_bytes(sink.getvalue())
        (folder / "schedule.txt").write_text(f"{schedule}\n\n{as_text(verdict, 20)}\n")
        shutil.copytree(cluster.folder / "logs", folder / "logs", dirs_exist_ok=True)
    return result


def shape_for(row: str, rng: random.Random, options: argparse.Namespace) -> Shape:
    """Choose the cluster for a row."""
    if row == "fleet":
        routers, storages, edges = 3, 3, 4
    elif options.shape:
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
    elif row == "fleet":
        settings = SETTINGS
    return Shape(routers, storages, edges, small, options.namespaces, settings)


def _rows(options: argparse.Namespace) -> list[str]:
    wanted = options.rows.split(",") if options.rows else [row for row in ROWS if row not in {*LEFT_OUT, "fleet"}]
    reasons = dict(LEFT_OUT)
    if not options.namespaces:
        reasons |= dict.fromkeys(LINKS, "cutting links between processes needs root and `ip`")
    if not can_preload():
        reasons |= dict.fromkeys(SHIMMED, "the shim needs gcc")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < OPEN_FILES:
        reasons |= {"fleet": f"it needs {OPEN_FILES} open files of a process"}
    elif soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
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

    def goes_on() -> bool:
        return time.monotonic() < end and (not options.schedules or number < options.schedules)

    while rows and goes_on():
        row = rows[number % len(rows)]
        shape = shape_for(row, random.Random(f"{options.seed}/{number}/shape"), options)
        folder = Path(tempfile.mkdtemp(prefix="stratamq-chaos-"))
        try:
            async with real_cluster(folder / "cluster", shape, options.seed) as cluster:
                for _ in range(options.per_cluster):
                    result = await _run_number(cluster, rows[number % len(rows)], number, options)
                    results.append(result)
                    number += 1
                    row = rows[number % len(rows)]
                    same = shape_for(row, random.Random(0), options).small_disks == shape.small_disks
                    needs_more = row in DAMAGE | LINKS and shape.storages < 3
                    if not result.clean or result.slow or not goes_on() or not same or needs_more:
                        break
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return results


async def _measure(options: argparse.Namespace) -> list[probes.Unavailability]:
    """Kill nodes by role on one cluster of three each."""
    print(f"{options.kills} rounds of kills, one per role", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="stratamq-chaos-"))
    try:
        async with real_cluster(folder / "cluster", Shape(3, 3, 3, namespaces=options.namespaces), 1) as cluster:
            found = await probes.measure(cluster, options.kills, options.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with (options.waits or probes.RESULTS).open("ab") as file:
        for entry in found:
            file.write(msgspec.json.encode(entry) + b"\n")
    return found


async def _run_number(cluster: RealCluster, row: str, number: int, options: argparse.Namespace) -> Result:
    seed = options.seed + number
    choice = options.workload or random.Random(f"{seed}/workload").choice(WORKLOADS_OF.get(row, WORKLOADS))
    schedule = draw(row, seed, cluster.nodes(), options.seconds)
    print(f"{number + 1}. {choice} on {cluster.shape}: {schedule}", flush=True)
    result = await run_one(cluster, schedule, choice, options.seconds, options.keep)
    summary = "clean" if result.clean else f"NOT CLEAN {result.found} {' '.join(result.ended)}, kept in {options.keep}"
    print(f"  {summary}; {result.accepted} accepted; {' '.join(result.slow)}", flush=True)
    if options.results is not None:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
    return result


def _write_between(page: Path, tables: str) -> None:
    begin, end = "<!-- chaos: begin -->", "<!-- chaos: end -->"
    head, _, rest = page.read_text().partition(begin)
    page.write_text(f"{head}{begin}\n{tables}\n{end}{rest.partition(end)[2]}")


def _tables(options: argparse.Namespace) -> str:
    kept = read_results(options.results or RESULTS)
    waits = probes.unavailability_table(probes.read_unavailability(options.waits or probes.RESULTS))
    return f"{fault_table(kept)}\n\n{points_line(kept)}\n\n{waits}"


def main() -> int:
    """Run, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument(
        "--rows", default="", help="of the fault catalogue, such as F01,F07; default: all that can run, but fleet"
    )
    parser.add_argument("--shape", default="", help="routers/storages/edges, such as 1/1/2; default: drawn")
    parser.add_argument("--workload", default="", help=f"one of {', '.join(WORKLOADS)}; default: drawn")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of faults per schedule")
    parser.add_argument("--per-cluster", type=int, default=PER_CLUSTER, help="schedules per cluster")
    parser.add_argument("--keep", type=Path, default=Path("chaos-failures"), help="folder for histories that fail")
    parser.add_argument("--results", type=Path, help=f"append results here; kept ones are in {RESULTS.name}")
    parser.add_argument("--schedules", type=int, default=0, help="so many instead of minutes, each row in turn")
    parser.add_argument("--kills", type=int, default=0, help="then measure so many rounds of kills, one per role")
    parser.add_argument("--waits", type=Path, help=f"append what the kills came to here, not to {probes.RESULTS.name}")
    parser.add_argument("--fresh", action="store_true", help="forget kept results first")
    parser.add_argument(
        "--write", type=Path, help="put the tables of all kept results into this page, between its marks"
    )
    parser.add_argument("--report", action="store_true", help="only print the tables of the kept results")
    options = parser.parse_args()
    if options.report:
        tables = _tables(options)
        print(tables)
        if options.write is not None:
            _write_between(options.write, tables)
        return 0
    if options.schedules or options.kills:
        options.results = options.results or RESULTS
        options.rows = options.rows or ",".join((*SHOWN, *SHOWN[:10]))
        options.shape = options.shape or "3/3/3"
        options.minutes = max(options.minutes, SHOWN_MINUTES)
    if options.fresh:
        for path in (options.results or RESULTS, options.waits or probes.RESULTS):
            path.unlink(missing_ok=True)
    options.keep = options.keep.absolute()
    options.namespaces = namespaces.available()
    if options.namespaces:
        try:
            namespaces.enter_own()
        except OSError:
            options.namespaces = False
    print(f"seed {options.seed}; each node in a network namespace: {'yes' if options.namespaces else 'no'}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        results = trio.run(_run_all, options) if options.schedules or not options.kills else []
        print(f"\n{fault_table(results)}\n{points_line(results)}\n\n{wait_table(results)}")
        if options.kills:
            print(probes.unavailability_table(trio.run(_measure, options)))
        if options.write is not None:
            _write_between(options.write, _tables(options))
        return 0 if all(result.clean for result in results) else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())
