"""A whole cluster against Mosquitto: CPU per delivered message of our processes, on one CPU, generator on the other.

    python -m bench                        the short table (one run a row), kept in bench/results/
    python -m bench --runs 5               medians of five
    python -m bench --only "QoS 1"         rows whose name contains it

Every row runs on the broker as `stratamq up` starts it: router, storage and edges, leases, routes, claims, metrics. The
other broker is Debian's Mosquitto, persistence off and queue limits lifted, in the same run. CPU per message hardly
depends on what else the machine does; messages per second and latencies do.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.hot import ROWS, Row, build_mqload, figure, make_certificate, start_mosquitto

HERE = Path(__file__).resolve().parent
READY_S = 60.0
IDLE_ROWS = (
    Row("idle connections, plain", "-m connect -N 10000 --hold 3", 0),
    Row("idle connections, TLS", "-m connect -N 3000 --hold 3", 0, tls=True),
)


class Cluster:
    """A local cluster whose processes all run on CPU 0."""

    def __init__(self, folder: Path, edges: int) -> None:
        self.data = folder / f"cluster-{edges}"
        self._log = (folder / f"cluster-{edges}.log").open("w+")
        command = ["taskset", "-c", "0", sys.executable, "-m", "stratamq", "up", "--data", str(self.data)]
        command += ["--edges", str(edges), "--tls-port", "0", "--plain-port", "0"]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True)
        end = time.monotonic() + READY_S
        while "ready after" not in Path(self._log.name).read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the cluster did not start: {Path(self._log.name).read_text()[-1000:]}")
            time.sleep(0.05)
        self.state: dict[str, Any] = json.loads((self.data / "up.json").read_text())

    @property
    def pids(self) -> dict[str, int]:
        """Return node -> process."""
        return {name: int(node["pid"]) for name, node in self.state["nodes"].items()}

    def ports(self, listener: str) -> list[int]:
        """Return one listener's port of every edge."""
        return [int(listeners[listener]) for _, listeners in sorted(self.state["listeners"].items())]

    def resident_kib(self, node: str) -> int:
        """Return a node's resident memory."""
        status = Path(f"/proc/{self.pids[node]}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def stop(self) -> None:
        """End all processes."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(30)
        self._log.close()


def _run(mqload: Path, hosts: list[int], pids: list[int], row: Row, authority: Path) -> dict[str, Any]:
    command = ["taskset", "-c", "1", str(mqload), "--json", "--max-time", "60"]
    for port in hosts:
        command += ["-H", f"127.0.0.1:{port}"]
    for pid in pids:
        command += ["--pid", str(pid)]
    command += (row.arguments if len(hosts) > 1 else row.arguments.replace("--cross", "")).split()
    if row.tls:
        command += ["--ca", str(authority), "--sni", "localhost"]
    done = subprocess.run(command, capture_output=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr[-300:]}
    report["exit"] = done.returncode
    return report


def ours(mqload: Path, folder: Path, row: Row) -> dict[str, Any]:
    """One run of a row on a fresh cluster."""
    cluster = Cluster(folder, 2 if row.linked else 1)
    try:
        ports = cluster.ports("tls" if row.tls else "plain")
        before = {node: cluster.resident_kib(node) for node in cluster.pids}
        report = _run(mqload, ports, list(cluster.pids.values()), row, cluster.data / "tls" / "ca.pem")
        report["resident_kib_growth"] = {node: cluster.resident_kib(node) - before[node] for node in cluster.pids}
        return report
    finally:
        cluster.stop()
        shutil.rmtree(cluster.data, ignore_errors=True)


def theirs(mqload: Path, folder: Path, row: Row) -> dict[str, Any]:
    """One run of a row on Mosquitto, which has no second node to cross to."""
    broker = start_mosquitto(folder)
    try:
        return _run(mqload, [broker.ports[1 if row.tls else 0]], [broker.process.pid], row, folder / "cert.pem")
    finally:
        broker.stop()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    mosquitto = subprocess.run(["/usr/sbin/mosquitto", "-h"], capture_output=True, text=True).stdout.splitlines()[:1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.strip(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 1),
        "mosquitto": mosquitto[0] if mosquitto else "",
    }


def table(only: str, runs: int) -> int:
    """Measure and print the rows; keep them; return how many are below their bar or broke a promise."""
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    below = 0
    kept: list[dict[str, Any]] = []
    about = machine()
    print(" ".join(f"{name} {value}" for name, value in about.items()))
    make_certificate(folder)
    mqload = build_mqload(folder)
    try:
        for row in (*ROWS, *IDLE_ROWS):
            if only and only.lower() not in row.name.lower():
                continue
            mine = [ours(mqload, folder, row) for _ in range(runs)]
            other = [theirs(mqload, folder, row) for _ in range(runs)]
            our_cpu, their_cpu = (statistics.median(figure(report)[0] for report in side) for side in (mine, other))
            ratio = their_cpu / our_cpu if our_cpu else 0.0
            broken = any(report["exit"] for report in mine)
            below += bool(row.bar and (ratio < row.bar or broken))
            print(f"{row.name:40} {ratio:7.2f}x (bar {row.bar}x)" + ("  mqload failed" if broken else ""), flush=True)
            print(f"    ours       {figure(mine[0])[1]}", flush=True)
            print(f"    mosquitto  {figure(other[0])[1]}", flush=True)
            if "idle" in row.name:
                print(f"    resident KiB grown: {mine[0].get('resident_kib_growth')}", flush=True)
            kept.append({"row": row.name, "ratio": round(ratio, 3), "bar": row.bar, "ours": mine, "mosquitto": other})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    name = f"cluster-{about['at'].replace(':', '').replace('+0000', 'Z')}.json"
    (results / name).write_text(json.dumps({"machine": about, "rows": kept}, indent=1) + "\n")
    print(f"kept in bench/results/{name}")
    return below


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    return table(arguments.only, arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
