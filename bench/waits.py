"""How long the edge waits for the core while another node of its cluster runs there, by the kernel's own trace.

    python -m bench.waits                       10 000 msg/s over 100 pairs, all nodes on CPU 0
    python -m bench.waits --values 0,5,10       with these nice values of the groups of router and storage, alternately
    python -m bench.waits --floor               after each run the minimum cost of sharing a core

Needs ``perf`` and the right to trace (root). While the edge was ready and did not run, the times when a
process of the same cluster ran on its CPU are added up: other programs are excluded, so the result holds on a
busy machine as well. ``perf`` runs on CPU 1.

With ``--floor`` router and storage go to CPU 1 for another run of the same load, and minimal programs
(``as_often.c``) run on CPU 0 as often as they did and as long in all, evenly, under the same nice value: the edge's
waits for those are the kernel's, independent of our nodes.
"""

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster import IDLE_ROWS, WARM_UP, Cluster, machine, run_on
from bench.hot import HERE, ROWS, build_mqload, make_certificate

__all__ = ["main"]

ROW = "10 000 msg/s over 100 pairs"
SECONDS = 6
LINE = re.compile(r"\[(\d+)\]\s+(\d+\.\d+):\s+sched:(\w+): (.*)")
SWITCH = re.compile(r"prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> .*next_pid=(\d+)")
WAKE = re.compile(r"pid=(\d+) ")


@dataclass
class Waits:
    """The edge's waits in one run, in milliseconds a second; the longest single stretch in microseconds.

    Attributes:
        taken: Process of the cluster -> how often it got the CPU in a second, and for how many microseconds each time.
    """

    ours: float
    others: float
    longest_us: float
    taken: dict[int, tuple[float, float]] = field(default_factory=dict)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", default="", help="nice values of the groups of router and storage; default: as set")
    parser.add_argument("--turns", type=int, default=3, help="runs of each")
    parser.add_argument("--floor", action="store_true", help="also programs that only take as much, in turns")
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        parser.error("no perf: apt install linux-perf")
    values = [int(value) for value in arguments.values.split(",")] if arguments.values else [None]
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    found: dict[str, list[Waits]] = {}
    try:
        make_certificate(folder)
        generator = build_mqload(folder)
        cluster = Cluster(folder, 1)
        try:
            run_on(cluster, generator, WARM_UP)
            time.sleep(11)  # until the nodes' start-up work has ended
            for _ in range(arguments.turns):
                for value in values:
                    name = "as set" if value is None else f"group_nice {value:2}"
                    run = _run(generator, cluster, folder, value)
                    found.setdefault(name, []).append(run)
                    if arguments.floor:
                        with _stand_ins(cluster, folder, run.taken) as stand_ins:
                            found.setdefault(f"{name}, floor", []).append(
                                _run(generator, cluster, folder, value, stand_ins)
                            )
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, runs in found.items():
        ours, longest = statistics.median(run.ours for run in runs), max(run.longest_us for run in runs)
        others = statistics.median(run.others for run in runs)
        print(f"{name}: waits for our nodes {ours:.2f} ms/s, longest {longest:.0f} us; for others {others:.2f} ms/s")
    return 0


@contextlib.contextmanager
def _stand_ins(cluster: Cluster, folder: Path, taken: dict[int, tuple[float, float]]) -> Iterator[set[int]]:
    """Put programs that only take the CPU in the place of router and storage, which run on the other one meanwhile."""
    program = folder / "as_often"
    subprocess.run(["cc", "-O2", "-std=c11", str(HERE / "as_often.c"), "-o", str(program)], check=True)
    nodes = [pid for name, pid in cluster.pids.items() if not name.startswith("edge")]
    started = []
    try:
        for pid in (*nodes, cluster.process.pid):
            _move(pid, 1)
            times, us = taken.get(pid, (0.0, 0.0))
            if pid in nodes and times:
                command = ["taskset", "-c", "0", str(program), f"{times:.1f}", f"{us:.1f}"]
                process = subprocess.Popen(command, start_new_session=True)
                started.append(process)
                Path(f"/proc/{process.pid}/autogroup").write_text(_group_nice(pid))
        yield {process.pid for process in started}
    finally:
        for process in started:
            process.kill()
            process.wait()
        for pid in (*nodes, cluster.process.pid):
            _move(pid, 0)


def _move(pid: int, cpu: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


def _group_nice(pid: int) -> str:
    return Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2].strip()


def _run(generator: Path, cluster: Cluster, folder: Path, nice: int | None, stand_ins: set[int] | None = None) -> Waits:
    edge = next(pid for name, pid in cluster.pids.items() if name.startswith("edge"))
    nodes = set(cluster.pids.values()) | {cluster.process.pid} | (stand_ins or set())
    for pid in nodes - {edge, cluster.process.pid}:
        if nice is not None:
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    row = next(row for row in (*ROWS, *IDLE_ROWS) if row.name == ROW)
    trace = folder / "sched.data"
    events = ("-e", "sched:sched_switch", "-e", "sched:sched_wakeup", "-e", "sched:sched_wakeup_new")
    perf = ["taskset", "-c", "1", "perf", "record", "-q", "-C", "0", *events, "-o", str(trace), "--", "sleep"]
    with subprocess.Popen([*perf, str(SECONDS)], stderr=subprocess.DEVNULL) as recording:
        run_on(cluster, generator, row)
        recording.wait()
    threads = {int(task.name): pid for pid in nodes for task in Path(f"/proc/{pid}/task").iterdir()}
    text = subprocess.run(
        ["perf", "script", "-i", str(trace), "-F", "cpu,time,event,trace"], capture_output=True, text=True, check=True
    ).stdout
    return waits(text.splitlines(), edge, threads)


def waits(lines: list[str], edge: int, threads: dict[int, int]) -> Waits:
    """Add up, over a trace of one CPU, the runs of other processes while the edge's main thread was ready.

    Args:
        lines: Of ``perf script``.
        edge: The thread.
        threads: Thread -> process, of the cluster.
    """
    ready_at = now = began = 0.0
    first = last = 0.0
    running = 0
    ours = others = longest = 0.0
    taken: dict[int, list[float]] = {}

    def account(until: float) -> None:
        nonlocal ours, others, longest
        if not ready_at or running == edge:
            return
        spent = until - max(began, ready_at)
        if spent <= 0:
            return
        if running in threads and threads[running] != edge:
            ours += spent
            longest = max(longest, spent)
        elif running:
            others += spent

    for line in lines:
        match = LINE.search(line)
        if match is None:
            continue
        now = float(match[2])
        first = first or now
        last = now
        if match[3] == "sched_switch" and (switch := SWITCH.search(match[4])):
            account(now)
            if running in threads:
                taken.setdefault(threads[running], []).append(now - began)
            if int(switch[1]) == edge:
                ready_at = now if switch[2].startswith("R") else 0.0
            running, began = int(switch[3]), now
            if running == edge:
                ready_at = 0.0
        elif (wake := WAKE.search(match[4])) and int(wake[1]) == edge and running != edge and not ready_at:
            ready_at = now
    seconds = max(last - first, 1e-9)
    each = {pid: (len(spans) / seconds, 1e6 * sum(spans) / len(spans)) for pid, spans in taken.items()}
    return Waits(1000 * ours / seconds, 1000 * others / seconds, 1e6 * longest, each)


if __name__ == "__main__":
    sys.exit(main())
