"""Links over ``wire/links/tls_stream.py`` against ``trio.SSLStream``: CPU time of idle nodes, time to SUBACK.

Two clusters of real processes (3 routers, a storage node, an edge) run side by side, one with each stream, under the
same load of the machine. First the clusters are idle, and the CPU time of routers and storage nodes is read at both
ends of the same windows. Then one client of each cluster subscribes alternately: SUBACK arrives after the router that
owns the filter's shard has answered the edge.

    python -m bench.tls_stream [--windows 12] [--window-s 5] [--subscribes 400]

The last line reports whether our stream saves at least 10 % of either, the reason to keep it (docs/adr/0028).
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster

ROUTERS = 3
START_S = 240.0
SETTLE_S = 6.0  # after the start: elections, placement and first reports are over
WORTH = 0.10  # of idle processor time or of the time to SUBACK
IDLE = "idle, all of these"

# Runs at the start of each Python of the second cluster: its links use trio's stream, and have no other difference.
STAND_IN = """
import trio
from wire import connection
from wire.messages.hello import LinkError

async def wrap_tls(stream, context, *, server_side):
    secured = trio.SSLStream(stream, context, server_side=server_side, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        await connection.close_quietly(secured)
        raise LinkError(f"TLS handshake failed: {error.__cause__ or error}") from None
    return secured

connection.wrap_tls = wrap_tls
"""


def main() -> int:
    """Run both clusters and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=12, help="of idle time")
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--subscribes", type=int, default=400, help="in each cluster")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratamq-bench-")))
        hook = folder / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(STAND_IN)
        ours = stack.enter_context(_cluster(folder / "ours", ""))
        trios = stack.enter_context(_cluster(folder / "trios", str(hook)))
        both = (ours, trios)
        time.sleep(SETTLE_S)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{os.cpu_count()} CPUs, load {load}; {options.windows} windows of {options.window_s:g} s", flush=True)
        print(f"{'':34} {'ours':>9} {'trio':>9} {'saved':>7}")
        idle = {name: _row(name, *pair) for name, pair in _idle(both, options.windows, options.window_s).items()}
        first, second = _subscribes(both, options.subscribes)
        suback = _row("SUBACK, ms, median", statistics.median(first), statistics.median(second))
        _row("SUBACK, ms, 90 of 100 below", statistics.quantiles(first, n=10)[8], statistics.quantiles(second, n=10)[8])
    best = max(idle[IDLE], suback)
    print(f"saved at most {100 * best:.0f} %: our stream {'stays' if best >= WORTH else 'is not worth its lines'}")
    return 0


@contextlib.contextmanager
def _cluster(data: Path, path: str) -> Iterator[LocalCluster]:
    """Start a cluster whose Pythons search a folder first ("" for none); stop it at the end."""
    before = os.environ.get("PYTHONPATH")
    if path:
        os.environ["PYTHONPATH"] = path
    try:
        cluster = LocalCluster(data, "--edges", "1", "--storages", "1", "--routers", str(ROUTERS))
    finally:
        if path and before is None:
            del os.environ["PYTHONPATH"]
        elif before is not None:
            os.environ["PYTHONPATH"] = before
    try:
        cluster.wait_for(lambda: b"ready after" in cluster.log.read_bytes(), "ready", START_S)
        yield cluster
    finally:
        cluster.stop()


def _row(name: str, ours: float, trios: float) -> float:
    """Print a row; return the saved fraction of trio's value."""
    saved = 1 - ours / trios if trios else 0.0
    print(f"{name:34} {ours:9.3f} {trios:9.3f} {100 * saved:6.1f}%", flush=True)
    return saved


def _idle(both: tuple[LocalCluster, ...], windows: int, window_s: float) -> dict[str, tuple[float, float]]:
    """Return processor time, in ms a second, by kind of node: medians over windows, (ours, trio's)."""
    nodes = [f"router-{number}" for number in range(ROUTERS)] + ["storage-0"]
    found: list[dict[str, list[float]]] = [{}, {}]
    for _ in range(windows):
        began = time.monotonic()
        before = [{node: _processor_ns(cluster.pid(node)) for node in nodes} for cluster in both]
        time.sleep(window_s)
        after = [{node: _processor_ns(cluster.pid(node)) for node in nodes} for cluster in both]
        seconds = time.monotonic() - began
        for figures, old, new in zip(found, before, after, strict=True):
            used = {node: (new[node] - old[node]) / 1e6 / seconds for node in nodes}
            rows = {
                "idle routers, ms of a second": sum(used[node] for node in nodes if node != "storage-0"),
                "idle storage node": used["storage-0"],
                IDLE: sum(used.values()),
            }
            for name, value in rows.items():
                figures.setdefault(name, []).append(value)
    ours, trios = ({name: statistics.median(values) for name, values in figures.items()} for figures in found)
    return {name: (ours[name], trios[name]) for name in ours}


def _processor_ns(pid: int) -> int:
    """Return the processor time of a process and all of its threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)


def _subscribes(both: tuple[LocalCluster, ...], count: int) -> tuple[list[float], list[float]]:
    """Return the times from SUBSCRIBE to SUBACK in ms, alternating between the clusters, of unused filters."""
    found: tuple[list[float], list[float]] = ([], [])
    clients = [BlockingClient(cluster.port(0, "plain"), version=4) for cluster in both]
    for client in clients:
        client.open("bench", keep_alive_s=0)
    for number in range(count):
        turns = (0, 1) if number % 2 else (1, 0)
        for turn in turns:
            found[turn].append(1000 * clients[turn].subscribe_each(f"bench/{number}/one"))
    for client in clients:
        client.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
