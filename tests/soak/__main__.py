"""A long run of every workload against one cluster, with each history checked and memory watched.

    python -m tests.soak --minutes N       as `make soak MINUTES=N` calls

It injects no fault (that is `make chaos`) and detects errors that need time. Exit code 1 on a
violation, or when a process grew by more than the bound after the first third of the run.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.local_cluster import LocalCluster, local_cluster

WORKLOADS = ("queue", "routes", "takeover", "retained", "wills", "shared")
SECONDS_PER_WORKLOAD = 20
GROWTH_MIB_MAX = 64.0  # per process, after the first third: caches are full by then


def resident_mib(cluster: LocalCluster) -> dict[str, float]:
    """Return each node's resident memory in MiB."""
    sizes = {}
    for node in cluster.state["nodes"]:
        status = Path(f"/proc/{cluster.pid(node)}/status").read_text()
        sizes[node] = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024
    return sizes


def run_workload(cluster: LocalCluster, workload: str, seed: int, folder: Path) -> bool:
    """Record one workload and check it; True if it is clean."""
    history = folder / f"{seed}-{workload}.jsonl"
    brokers = [option for edge in (0, 1) for option in ("--broker", f"127.0.0.1:{cluster.port(edge, 'plain')}")]
    command = [sys.executable, "-m", "stratamq", "record", *brokers, "--workload", workload]
    command += ["--seconds", str(SECONDS_PER_WORKLOAD), "--seed", str(seed), "--output", str(history)]
    subprocess.run(command, check=True, timeout=SECONDS_PER_WORKLOAD * 10)
    judged = subprocess.run([sys.executable, "-m", "stratamq", "check", str(history)], timeout=600)
    if judged.returncode == 0:
        history.unlink()
    else:
        print(f"kept {history}")
    return judged.returncode == 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stratamq-soak-"))
    begin = time.monotonic()
    end = begin + arguments.minutes * 60
    settled: dict[str, float] = {}
    violations = 0
    with local_cluster() as cluster:
        for seed in itertools.count(arguments.seed):
            workload = WORKLOADS[seed % len(WORKLOADS)]
            violations += not run_workload(cluster, workload, seed, folder)
            sizes = resident_mib(cluster)
            print(
                f"{workload:10} " + "  ".join(f"{node} {size:.0f} MiB" for node, size in sorted(sizes.items())),
                flush=True,
            )
            now = time.monotonic()
            if not settled and now - begin > (end - begin) / 3:
                settled = sizes
            if now >= end:
                break
    grown = {node: sizes[node] - size for node, size in settled.items() if sizes[node] - size > GROWTH_MIB_MAX}
    for node, size in grown.items():
        print(f"{node} grew by {size:.0f} MiB")
    print(f"{violations} histories with violations, {len(grown)} processes that grew")
    return 1 if violations or grown else 0


if __name__ == "__main__":
    sys.exit(main())
