"""The cost of large maps: start, idle cluster, memory and durable messages, by the number of partitions.

Each size is a fresh cluster of one edge, one router and as many storage nodes as copies, on this machine. Prints one
line a size: seconds from the command to ready, CPU time in microseconds a second and MiB of memory by tier while
idle, microseconds a durable message (paced, and window 20).

    python -m bench.large_map [--partitions 256 4096 8192] [--copies 1] [--rate 1000]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench.durable_figures import Costs, durable_cluster, mqload
from bench.hot import build_mqload
from tests.e2e.local_cluster import LocalCluster

SETTLE_S = 10.0  # until sizes and routes are reported, and start-up work has ended
IDLE_S = 20.0
PAIRS = ("-P", "100", "--persistent")


def main() -> int:
    """Run the selected sizes; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", nargs="+", type=int, default=[256, 4_096, 8_192])
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rate", type=int, default=1_000, help="of the paced messages, a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        options.mqload = build_mqload(Path(folder))
        return min(1, sum(one_size(options, partitions) for partitions in options.partitions))


def one_size(options: argparse.Namespace, partitions: int) -> int:
    """Measure one size; return how many runs broke a promise."""
    begun = time.monotonic()
    with durable_cluster("--storages", str(options.copies), "--set", f"router.partitions={partitions}") as cluster:
        ready_s = time.monotonic() - begun
        time.sleep(SETTLE_S)
        costs = Costs(cluster)
        time.sleep(IDLE_S)
        idle = {name: value for name, value in costs.figures(IDLE_S).items() if name.endswith(" us")}
        memory = {tier: resident_mib(cluster, tier) for tier in ("edge", "router", "storage")}
        port = cluster.port(0, "plain")
        mqload(options, port, *PAIRS, "-w", "20", "-n", "20")  # routes and caches
        parts = [
            f"{partitions} partitions, {options.copies} copies: ready after {ready_s:.1f} s",
            "idle us/s " + ", ".join(f"{name[:-3]} {value:.0f}" for name, value in idle.items()),
            "MiB " + ", ".join(f"{tier} {value:.0f}" for tier, value in memory.items()),
        ]
        failed = 0
        paced = ("-r", str(options.rate / 100), "-d", "10")
        for what, arguments in ((f"paced {options.rate}/s", paced), ("window 20", ("-w", "20", "-n", "300"))):
            costs = Costs(cluster)
            report, broken = mqload(options, port, *PAIRS, *arguments)
            failed += broken
            if report:
                ack = report["ack_latency_us"]
                parts.append(
                    f"{what}: {costs.cpu_us(report['received']):.0f} us a message, PUBACK P50 {ack['p50'] / 1e3:.1f}"
                    f" P99 {ack['p99'] / 1e3:.1f} ms"
                )
    print("; ".join(parts), flush=True)
    return failed


def resident_mib(cluster: LocalCluster, tier: str) -> float:
    """Return the resident memory of a tier's nodes together."""
    total = 0.0
    for node in cluster.state["nodes"].values():
        if node["tier"] == tier:
            status = Path(f"/proc/{node['pid']}/status").read_text()
            total += int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return total


if __name__ == "__main__":
    sys.exit(main())
