"""Leases and durable messages while the edge fills the core: the possible nice values of the others' group.

    python -m bench.starved                    group_nice 0, 5, 10 and 19 of router and storage, alternately
    python -m bench.starved --values 0,5 --turns 3

A cluster of one edge, one router and one storage node on CPU 0, and two generators on CPU 1: a flood of QoS 0, more
than the core's capacity, and durable QoS 1 at 100 a second beside it. Prints the time and number of PUBACKs, the
number of ``/readyz`` polls of a node without its lease, and the number of nodes that lost it and restarted. The
nice values are written from outside, as ``node.group_nice`` sets them.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from bench.cluster import Cluster, machine
from bench.hot import build_mqload, make_certificate

__all__ = ["main"]

SECONDS = 8
LOOK_S = 0.1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", default="0,5,10,19", help="nice values of the groups of router and storage")
    parser.add_argument("--turns", type=int, default=3, help="runs of each value")
    arguments = parser.parse_args()
    values = [int(value) for value in arguments.values.split(",")]
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    found: dict[int, list[dict[str, float]]] = {value: [] for value in values}
    try:
        make_certificate(folder)
        generator = build_mqload(folder)
        cluster = Cluster(folder, 1)
        try:
            _generate(generator, cluster, "-q 1 -P 20 --persistent -n 20").communicate()
            for turn in range(arguments.turns):
                for value in values if turn % 2 else reversed(values):
                    found[value].append(_run(generator, cluster, value))
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for value, runs in found.items():
        medians = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}
        print(f"group_nice {value:2}: " + ", ".join(f"{name} {figure:,.1f}" for name, figure in medians.items()))
    return 1 if any(run["begun anew"] for runs in found.values() for run in runs) else 0


def _run(generator: Path, cluster: Cluster, nice: int) -> dict[str, float]:
    cluster.state = json.loads((cluster.data / "up.json").read_text())
    nodes = cluster.pids
    for name, pid in nodes.items():
        if not name.startswith("edge"):
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    before = _cpu_s(nodes)
    flood = _generate(generator, cluster, f"-P 100 -d {SECONDS + 1} -w 20 --prefix flood --small-writes")
    durable = _generate(generator, cluster, f"-q 1 -P 20 --persistent -r 5 -d {SECONDS}")
    looks = unleased = 0
    while durable.poll() is None:
        looks += 1
        unleased += sum(not _has_lease(node["addresses"]["metrics"]) for node in cluster.state["nodes"].values())
        time.sleep(LOOK_S)
    cpu_s = _cpu_s(nodes)
    spent = {name: seconds - before[name] for name, seconds in cpu_s.items()}
    report, flooded = (json.loads(process.communicate()[0] or "{}") for process in (durable, flood))
    ack: dict[str, Any] = report.get("ack_latency_us", {"p50": 0, "p99": 0})
    return {
        "PUBACK P50 ms": ack["p50"] / 1e3,
        "P99 ms": ack["p99"] / 1e3,
        "durable lost": report.get("lost", -1),
        "durable received": report.get("received", 0),
        "flood msg/s": flooded.get("receive_msg_per_s", 0),
        "looks without a lease": unleased,
        "begun anew": len(nodes) - len(cpu_s),
        **{f"{name} % of the core": 100 * seconds / SECONDS for name, seconds in spent.items()},
    }


def _generate(generator: Path, cluster: Cluster, arguments: str) -> "subprocess.Popen[str]":
    command = ["taskset", "-c", "1", str(generator), "--json", "-H", f"127.0.0.1:{cluster.ports('plain')[0]}"]
    return subprocess.Popen(
        [*command, *arguments.split()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _has_lease(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz?verbose", timeout=5) as page:
            checks = page.read().decode()
    except urllib.error.HTTPError as error:
        checks = error.read().decode()
    except OSError:
        return True  # a late answer gives no evidence about its lease
    return "lease: no" not in checks


def _cpu_s(nodes: dict[str, int]) -> dict[str, float]:
    """Return the CPU time of each node with an unchanged process."""
    found = {}
    for name, pid in nodes.items():
        with contextlib.suppress(FileNotFoundError):
            found[name] = float(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return found


if __name__ == "__main__":
    sys.exit(main())
