"""Exports: rows per second of a stopped store, the cost to clients of a running one, and the cost of the ledgers.

The first part writes a store of sessions, subscriptions and queued messages, exports it and loads it again. The second
publishes durable QoS 1 with and without an export, the third with and without acknowledgement ledgers.
All processes run on this machine, load generator included: read the ratios, and CPU seconds where it is shared.

    python -m bench.export [--only offline live ledger]
"""

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from bench.durable import PAIRS
from bench.durable_figures import Costs, durable_cluster, mqload, sync_latency
from bench.hot import build_mqload
from storage.export.export_run import export_store
from storage.export.importing import import_runs
from storage.state import keys
from storage.state.rows import MetaRow, QueueEntry, SessionRow, SubscriptionRow, encode_entry, pack
from storage.store.settings import StoreSettings
from storage.store.store import Store
from tests.e2e.local_cluster import LocalCluster
from wire.messages.sessions import SessionSubscription

PARTITIONS = 256
SETTINGS = StoreSettings()
BATCH_ROWS = 4_000


def main() -> int:
    """Run the selected parts and print one line per result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mqload", type=Path, help="built if not given")
    parser.add_argument("--only", nargs="+", default=["offline", "live", "ledger"])
    parser.add_argument("--sessions", type=int, default=100_000, help="in the stopped store, 2 subscriptions each")
    parser.add_argument("--queued", type=int, default=5, help="messages queued per session")
    parser.add_argument("--messages", type=int, default=500, help="per publisher, live and ledger")
    parser.add_argument("--pairs", type=int, default=3, help="of clusters without and with ledgers")
    parser.add_argument("--repeats", type=int, default=3, help="runs on each of these clusters")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        options.mqload = options.mqload or build_mqload(Path(folder))
        return measure(options)


def measure(options: argparse.Namespace) -> int:
    """Run the parts asked for."""
    print(f"fdatasync of 8 KiB: {sync_latency()}")
    failed = 0
    if "offline" in options.only:
        offline(options.sessions, options.queued)
    if "live" in options.only:
        failed += live(options)
    if "ledger" in options.only:
        failed += ledger(options)
    return min(failed, 1)


# --- a stopped store


def rows_of(sessions: int, queued: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a store."""
    placed: dict[int, list[str]] = {}
    for number in range(sessions):
        client_id = f"device-{number:08d}"
        placed.setdefault(crc32(client_id.encode()) % PARTITIONS, []).append(client_id)
    for partition, clients in sorted(placed.items()):
        yield keys.meta_key(partition), pack(MetaRow(1, len(clients), 1_000, len(clients) + 1))
        for number, client_id in enumerate(clients, 1):
            session = partition << 48 | number
            yield keys.session_key(partition, session), pack(SessionRow(client_id, 1 << 32 | number, 3600))
            for index in range(2):
                name = f"devices/{client_id}/{index}"
                yield (
                    keys.subscription_key(partition, session, name),
                    pack(SubscriptionRow(SessionSubscription(name, 1))),
                )
            for seq in range(1, queued + 1):
                entry = QueueEntry(seq, f"devices/{client_id}/0".encode(), b"x" * 64, origin_a=5, origin_b=seq)
                yield keys.queue_key(partition, session, seq), encode_entry(entry)


def offline(sessions: int, queued: int) -> None:
    """Export and import by path."""
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as name:
        folder = Path(name)
        path = folder / "from" / "store"
        store = Store.open(path, "bench", "s1", SETTINGS)
        batch: list[tuple[bytes, bytes | None]] = []
        for row in rows_of(sessions, queued):
            batch.append(row)
            if len(batch) >= BATCH_ROWS:
                store.write(batch)
                batch = []
        store.write(batch)
        store.close()
        begun, used = time.perf_counter(), time.process_time()
        result = export_store(path, folder / "runs", None, 1, lambda _: None)
        tell("export", result["rows"], begun, used, f"{result['bytes'] / result['rows']:.0f} B per row in Parquet")
        begun, used = time.perf_counter(), time.process_time()
        loaded = import_runs(folder / "runs", folder / "to" / "store", ("bench", "s2"), SETTINGS, lambda _: None)
        tell("import", loaded.rows, begun, used, f"{loaded.sessions} sessions")


def tell(what: str, rows: int, begun: float, used: float, more: str) -> None:
    """Print a rate by the clock and by CPU time, all threads."""
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - used
    print(
        f"{what}: {rows} rows in {seconds:.1f} s = {rows / seconds:,.0f} rows/s; {rows / cpu_s:,.0f} per CPU s; {more}"
    )


# --- a running cluster


def run(options: argparse.Namespace, cluster: LocalCluster, what: str) -> tuple[dict[str, Any], int]:
    """Publish to present subscribers and print rate, latency and costs."""
    pairs = ("-P", str(PAIRS), "-w", "20", "--persistent")
    costs = Costs(cluster)
    report, failed = mqload(options, cluster.port(0, "plain"), *pairs, "-n", str(options.messages))
    if report:
        ack = report["ack_latency_us"]
        print(
            f"{what}: {report['receive_msg_per_s']:.0f} msg/s, PUBACK P50 {ack['p50'] / 1e3:.1f}"
            f" P99 {ack['p99'] / 1e3:.1f} ms; {costs.line(report['received'])}"
        )
    return report, failed


def live(options: argparse.Namespace) -> int:
    """The same load without and with exports one after the other, of a store that holds queues."""
    with durable_cluster() as cluster, tempfile.TemporaryDirectory(prefix="stratamq-bench-") as name:
        run(options, cluster, "warm-up")
        alone, failed = run(options, cluster, "without export")
        exported = cluster.data / "exports"
        command = [sys.executable, "-m", "stratamq", "store", "export", "--data", str(cluster.data), "--output"]
        script = f'n=0; while [ ! -e "$0/stop" ]; do n=$((n+1)); "$@" "{exported}/$n" >/dev/null 2>&1; done'
        exporting = subprocess.Popen(["sh", "-c", script, name, *command])
        try:
            beside, also_failed = run(options, cluster, "with exports")
        finally:
            Path(name, "stop").touch()
            exporting.wait()
        exports = len(list(exported.glob("*/manifest-*.json")))
        if alone and beside:
            ratio = beside["ack_latency_us"]["p99"] / alone["ack_latency_us"]["p99"]
            print(f"PUBACK P99 during {exports} exports: {ratio:.2f} of that without")
        return failed + also_failed


def ledger(options: argparse.Namespace) -> int:
    """Ledgers off and on, alternately, each on a new cluster; medians of throughput and CPU per message."""
    failed = 0
    rates: dict[str, list[float]] = {"off": [], "on": []}
    cpu: dict[str, list[float]] = {"off": [], "on": []}
    sizes = ""
    for number in range(2 * options.pairs):
        state = ("off", "on")[number % 2]
        with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as name:
            kept = ("--set", f"edge.ledger={name}", "--set", f"storage.ledger={name}") if state == "on" else ()
            with durable_cluster("--storages", "1", *kept) as cluster:
                run(options, cluster, f"ledger {state}, warm-up")
                for _ in range(options.repeats):
                    costs = Costs(cluster)
                    report, wrong = run(options, cluster, f"ledger {state}")
                    failed += wrong
                    if report:
                        rates[state].append(report["receive_msg_per_s"])
                        cpu[state].append(costs.cpu_us(report["received"]))
                if state == "on":
                    sizes = ledger_sizes(Path(name), (options.repeats + 1) * PAIRS * options.messages)
    if not (rates["off"] and rates["on"]):
        return failed
    rate = {state: median(found) for state, found in rates.items()}
    used = {state: median(found) for state, found in cpu.items()}
    runs = f"medians of {len(rates['off'])} and {len(rates['on'])} runs"
    print(f"ledgers off: {rate['off']:.0f} msg/s, CPU {used['off']:.1f} us per message; on: {rate['on']:.0f} msg/s,")
    print(f"  CPU {used['on']:.1f} us; {runs}; {sizes}")
    print(f"durable throughput with ledgers: {rate['on'] / rate['off']:.3f} of that without")
    return failed


def ledger_sizes(folder: Path, messages: int) -> str:
    """Return a line with the disk space of a number of ledger entries, and the cost of their compression while idle."""
    data = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.jsonl.open")))
    begun = time.process_time()
    packed = len(gzip.compress(data, 1))
    us = (time.process_time() - begun) / messages * 1e6
    return f"{len(data) / messages:.0f} B per message, {packed / messages:.0f} compressed later for {us:.2f} us"


if __name__ == "__main__":
    raise SystemExit(main())
