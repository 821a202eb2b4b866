"""A whole cluster against Mosquitto: CPU per delivered message of our processes, on one CPU, generator on the other.

    python -m bench                        the short table (one run a row), kept in bench/results/
    python -m bench --runs 5               medians of five
    python -m bench --only "QoS 1"         rows whose name contains it

Every row runs on the broker as `stratamq up` starts it: router, storage and edges, leases, routes, claims, metrics. The
other broker is Debian's Mosquitto, persistence off and queue limits lifted, in the same run. CPU per message hardly
depends on other load of the machine; messages per second and latencies do.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.hot import ROWS, Row, build_mqload, figure, make_certificate, start_mosquitto

HERE = Path(__file__).resolve().parent
READY_S = 60.0
PACING_METRIC = "stratamq_pacing_switched_on_total"
SAMPLE_S = 0.1
AHEAD = ("chrt", "-f", "1")  # higher priority than other processes on its CPU, if permitted
IDLE_ROWS = (
    Row(
        "15 000 connections, the first 5 s",
        "-P 7500 -r 1.333 -d 5 --small-writes",
        0,
        latency=(math.inf, 2.0),
        settle_s=12.0,
    ),
    Row("10 000 idle connections, plain", "-m connect -N 10000 --hold 2", 0, idle_bytes_max=2 * 1024),
    Row("10 000 idle connections, TLS", "-m connect -N 10000 --hold 2", 0, tls=True, idle_bytes_max=20 * 1024),
    Row("15 000 connections, QoS 2 to QoS 1", "-P 7500 --pub-qos 2 --sub-qos 1 -r 1 -n 4", 0, idle_bytes_max=8 * 1024),
)
WARM_UP = Row("warm-up", "-m connect -N 100 --hold 0.1", 0)  # first uses of things are no cost of a connection


class Cluster:
    """A local cluster, all processes on CPU 0.

    Args:
        tree: Another checkout, with its own ``.venv``.
        path: First entry of the module path of its processes.
        options: More options of `up`.
    """

    def __init__(
        self,
        folder: Path,
        edges: int,
        tree: Path | None = None,
        path: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        name = f"cluster-{edges}{'-other' * (tree is not None)}{'' if path is None else f'-{path.name}'}"
        self.data = folder / name
        self._log = (folder / f"{name}.log").open("w+")
        python = str(tree / ".venv" / "bin" / "python") if tree else sys.executable
        command = ["taskset", "-c", "0", python, "-m", "stratamq", "up", "--data", str(self.data)]
        command += ["--edges", str(edges), "--tls-port", "0", "--plain-port", "0", *options]
        known = subprocess.run([*command[3:7], "--help"], capture_output=True, text=True, check=False, cwd=tree).stdout
        if "--no-admin" in known:  # an older tree has no HTTP service
            command.append("--no-admin")
        self.process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=tree,
            env=os.environ | ({"PYTHONPATH": str(path)} if path is not None else {}),
        )
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

    def resident_kib(self) -> dict[str, int]:
        """Return the resident memory of every node that still is the process that was started."""
        found: dict[str, int] = {}
        for node, pid in self.pids.items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{pid}/status").read_text()
                found[node] = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        return found

    def pacing_switched_on(self) -> int:
        """Return how often pacing was found useful, over all edges."""
        total = 0.0
        for node in self.state["nodes"].values():
            if node["tier"] == "edge":
                with urllib.request.urlopen(f"http://{node['addresses']['metrics']}/metrics", timeout=5) as page:
                    lines = page.read().decode().splitlines()
                total += sum(float(line.split()[1]) for line in lines if line.startswith(PACING_METRIC + " "))
        return int(total)

    def stop(self) -> None:
        """End all processes, and remove their data."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(30)
        self._log.close()
        shutil.rmtree(self.data, ignore_errors=True)


def _run(
    mqload: Path,
    hosts: list[int],
    pids: list[int],
    row: Row,
    authority: Path,
    watch: Callable[[], None] | None = None,
    ahead: bool = False,
) -> dict[str, Any]:
    command = [
        *(AHEAD if ahead and not subprocess.run([*AHEAD, "true"]).returncode else ()),
        "taskset",
        "-c",
        "1",
        str(mqload),
        "--json",
        "--max-time",
        "60",
    ]
    for port in hosts:
        command += ["-H", f"127.0.0.1:{port}"]
    for pid in pids:
        command += ["--pid", str(pid)]
    command += (row.arguments if len(hosts) > 1 else row.arguments.replace("--cross", "")).split()
    if row.tls:
        command += ["--ca", str(authority), "--sni", "localhost"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            if watch is not None:
                watch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE_S if watch is not None else None)
        assert process.stdout is not None and process.stderr is not None
        out, errors = process.stdout.read(), process.stderr.read()
    report: dict[str, Any] = json.loads(out) if out.startswith("{") else {"error": errors[-300:]}
    report["exit"] = process.returncode
    return report


def ours(mqload: Path, folder: Path, row: Row) -> dict[str, Any]:
    """One run of a row on a fresh cluster."""
    cluster = Cluster(folder, 2 if row.linked else 1)
    try:
        if row.idle_bytes_max:
            run_on(cluster, mqload, replace(WARM_UP, tls=row.tls))
        time.sleep(row.settle_s)
        return run_on(cluster, mqload, row)
    finally:
        cluster.stop()


def run_on(cluster: Cluster, mqload: Path, row: Row, *, ahead: bool = False) -> dict[str, Any]:
    """Run a row once on a running cluster; ``ahead``: the generator has priority on its CPU."""
    before = cluster.resident_kib()
    most = dict(before)

    def watch() -> None:
        most.update({node: max(most[node], kib) for node, kib in cluster.resident_kib().items()})

    ports, pids = cluster.ports("tls" if row.tls else "plain"), list(cluster.pids.values())
    authority = cluster.data / "tls" / "ca.pem"
    report = _run(mqload, ports, pids, row, authority, watch if row.idle_bytes_max else None, ahead)
    if len(cluster.resident_kib()) < len(pids):
        report["exit"] = report["exit"] or "a node ended"
        report["logs"] = {path.name: path.read_text()[-3000:] for path in (cluster.data / "logs").iterdir()}
    elif row.idle_bytes_max:
        count = max(1, int(report.get("connected", 0)) or 15_000)  # present in connect mode only
        report["bytes_per_connection"] = {n: (most[n] - kib) * 1024 // count for n, kib in before.items()}
    if row.pacing_off:
        report["pacing_switched_on"] = cluster.pacing_switched_on()
    return report


def theirs(mqload: Path, folder: Path, row: Row) -> dict[str, Any]:
    """One run of a row on Mosquitto, which has no second node to cross to."""
    broker = start_mosquitto(folder)
    try:
        return _run(mqload, [broker.ports[1 if row.tls else 0]], [broker.process.pid], row, folder / "cert.pem")
    finally:
        broker.stop()


def machine() -> dict[str, Any]:
    """Return a description of the measured machine."""
    mosquitto = subprocess.run(["/usr/sbin/mosquitto", "-h"], capture_output=True, text=True).stdout.splitlines()[:1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.strip(),
        "python": platform.python_version(),
        "trio": importlib.metadata.version("trio"),
        "cython": importlib.metadata.version("Cython"),
        "openssl": ssl.OPENSSL_VERSION,
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2,
        "load_1min": round(os.getloadavg()[0], 1),
        "mosquitto": mosquitto[0] if mosquitto else "",
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def judge(row: Row, mine: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[float, list[str]]:
    """Return our improvement by medians, and the results below their limits."""
    our_cpu, their_cpu = (statistics.median(figure(report)[0] for report in side) for side in (mine, other))
    ratio = their_cpu / our_cpu if our_cpu else 0.0
    wrong = [f"mqload's exit status: {report['exit']}" for report in mine if report["exit"]]
    if row.bar and ratio < row.bar:
        wrong.append(f"{ratio:.2f}x")
    for name, times in zip(("p50", "p99"), row.latency, strict=False):
        ours_us, theirs_us = (statistics.median(_latency_us(report, name) for report in side) for side in (mine, other))
        if ours_us > times * theirs_us:
            wrong.append(f"{name} {ours_us:.0f} us is more than {times} times {theirs_us:.0f} us")
    if row.pacing_off and any(report.get("pacing_switched_on") for report in mine):
        wrong.append("pacing was on")
    if row.idle_bytes_max:
        held = statistics.median(int(report.get("bytes_per_connection", {}).get("edge-0", 1 << 30)) for report in mine)
        if held > row.idle_bytes_max:
            wrong.append(f"{held:.0f} bytes per connection, {row.idle_bytes_max} allowed")
    return ratio, wrong


def _latency_us(report: dict[str, Any], name: str) -> float:
    return float(report.get("latency_us", {}).get(name, 0))


def _besides(report: dict[str, Any]) -> str:
    text = "".join(f", {node} {held} B each" for node, held in report.get("bytes_per_connection", {}).items())
    if "pacing_switched_on" in report:
        text += f", pacing switched on {report['pacing_switched_on']} times"
    if "latency_us" in report:
        text += f", generator late p99 {report.get('generator_lateness_us', {}).get('p99', 0):.0f}"
    if "connects_per_s" in report:
        text += f", {report['connects_per_s']:,.0f} connects/s"
    return text


def table(only: str, runs: int) -> int:
    """Measure and print the rows; keep them; return how many are below their bar or broke a promise."""
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    below = 0
    kept: list[dict[str, Any]] = []
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    make_certificate(folder)
    mqload = build_mqload(folder)
    try:
        for row in (*ROWS, *IDLE_ROWS):
            if only and only.lower() not in row.name.lower():
                continue
            mine, other = [], []
            for _ in range(runs):  # alternately: the speed of a shared machine drifts
                mine.append(ours(mqload, folder, row))
                other.append(theirs(mqload, folder, row))
            ratio, wrong = judge(row, mine, other)
            below += bool(wrong)
            bar = f"(bar {row.bar}x)" if row.bar else ""
            print(f"{row.name:40} {ratio:7.2f}x {bar}{''.join('  BELOW: ' + text for text in wrong)}", flush=True)
            for name, side in (("ours", mine), ("mosquitto", other)):
                for report in side:
                    print(f"    {name:10} {figure(report)[1]}{_besides(report)}", flush=True)
            kept.append(
                {"row": row.name, "arguments": row.arguments, "ratio": round(ratio, 3), "bar": row.bar}
                | {"below": wrong, "ours": mine, "mosquitto": other}
            )
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
