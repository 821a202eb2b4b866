"""Cost of a scrape to each tier: CPU time of the node's process, less its idle use meanwhile.

    python -m bench.scrape [--scrapes 100] [--runs 3] [--pause 0]     three minutes

Starts its own cluster, requests ``/metrics`` over one open connection, as Prometheus does, and over a new
one each time; and ``/livez``, the cost of HTTP alone. Counts the thread of the node's loop. Limit: 2 ms.
After 20 ms of idle time the loop's code is out of the caches; ``--pause 0`` repeats at once, and measures a busy
loop.
"""

import argparse
import http.client
import statistics
import time
from pathlib import Path

from tests.e2e.local_cluster import LocalCluster, local_cluster

NODES = ("router-0", "edge-0", "storage-0")
PAUSE_S = 0.02  # between two scrapes: the node is idle when one comes


def processor_s(pid: int) -> float:
    """Return the processor time of a process' first thread, which is the loop's."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def cost_ms(
    cluster: LocalCluster, node: str, path: str, scrapes: int, stands: bool, pause_s: float
) -> tuple[float, int]:
    """Return the processor time of one request, and the lines of its answer."""
    entry = cluster.state["nodes"][node]
    pid = int(entry["pid"])
    connection = http.client.HTTPConnection(entry["addresses"]["metrics"], timeout=10)
    lines = 0
    used = elapsed = 0.0
    for number in range(scrapes + 1):
        before, began = processor_s(pid), time.monotonic()
        connection.request("GET", path)
        lines = connection.getresponse().read().count(b"\n")
        if not stands:
            connection.close()
        time.sleep(pause_s)
        if number:  # the first one imports and connects
            used, elapsed = used + processor_s(pid) - before, elapsed + time.monotonic() - began
    connection.close()
    before = processor_s(pid)
    time.sleep(2.0)
    idle = (processor_s(pid) - before) / 2.0
    return 1000 * (used - idle * elapsed) / scrapes, lines


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="s; between two scrapes")
    asked = parser.parse_args()
    with local_cluster("--edges", "3", "--set", "metrics.prepare=true") as cluster:
        for node in NODES:
            for stands in (True, False):
                runs = [
                    cost_ms(cluster, node, "/metrics", asked.scrapes, stands, asked.pause) for _ in range(asked.runs)
                ]
                floors = [
                    cost_ms(cluster, node, "/livez", asked.scrapes, stands, asked.pause)[0] for _ in range(asked.runs)
                ]
                took, floor = statistics.median(run[0] for run in runs), statistics.median(floors)
                print(
                    f"scrape of {node}, {'standing' if stands else 'new'} connection: {took:.2f} ms (bar 2 ms), "
                    f"{runs[-1][1]} lines; of it HTTP alone {floor:.2f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
