"""Restart to serving with many stored sessions: time, blocking of the loop, memory and disk per session.

The rows of the sessions (two subscriptions each) are written as SSTables with the project's own encoders, distributed
over the partitions as by the ring, and loaded with `stratamq store import`, as an operator would. Then `stratamq up`
runs on that folder: first all processes start (the router knows no route yet), then the storage process is killed with
-9 and restarts. Each time is measured from the start of the storage process until it reports that every partition
serves, until the router has every route, and until clients of stored sessions were probed: CONNACK with Session Present
1, and a QoS 1 message for each of their filters arrives.

    python -m bench.restart [--sessions 100000] [--rounds 3] [--folder KEPT] [--groups 100]

Import of 1 000 000 sessions takes minutes; ``--folder`` keeps the loaded store for the next run.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from bench.durable_figures import sync_latency
from mqtt.properties import PropertyId
from storage.export.run_rows import RowReader
from storage.state import keys
from storage.state.rows import FilterRow, MetaRow, SessionRow, SubscriptionRow, pack
from stratamq.local_plan import CLUSTER
from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster
from wire.messages.sessions import SessionSubscription
from wire.sstable.manifest import RingEntry, next_manifest, publish_manifest
from wire.sstable.writer import RunWriter

PARTITIONS = 256
NODE = "storage-0"
EXPIRY_S = 7 * 86_400
PROBES = 20
WAIT_S = 300.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Make the store unless it exists, restart on it, print one line per result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="kills of the storage process")
    parser.add_argument("--groups", type=int, default=100, help="first topic levels that the filters are spread over")
    parser.add_argument("--folder", type=Path, help="keep the data here, and use what an earlier run left")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratamq-bench-")))
        data = folder / "cluster"
        if not (data / NODE / "store").exists():
            make_store(folder, data, options.sessions, options.groups)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(f"{os.cpu_count()} CPUs, load {load}; fdatasync of 8 KiB: {sync_latency()}", flush=True)
        return run(data, options)


# --- the store


def client_of(number: int) -> str:
    """Return the client ID of a session."""
    return f"device-{number:08d}"


def filters_of(number: int, groups: int) -> tuple[str, str]:
    """Return the filters of a session."""
    prefix = f"fleet-{number % groups}/{client_of(number)}"
    return f"{prefix}/command", f"{prefix}/config/#"


def rows_of(partition: int, numbers: list[int], groups: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a partition that holds these sessions."""
    yield keys.meta_key(partition), pack(MetaRow(1, len(numbers), 1_000, len(numbers) + 1))
    rows: list[tuple[bytes, bytes]] = []
    for counter, number in enumerate(numbers, 1):
        session = partition << 48 | counter
        row = SessionRow(client_of(number), 1 << 32 | counter, EXPIRY_S, EXPIRY_S * 1000, protocol_version=5)
        rows.append((keys.session_key(partition, session), pack(row)))
        for name in filters_of(number, groups):
            rows.append((keys.filter_key(partition, name), pack(FilterRow(name))))
            rows.append(
                (keys.subscription_key(partition, session, name), pack(SubscriptionRow(SessionSubscription(name, 1))))
            )
    yield from sorted(rows)


def make_store(folder: Path, data: Path, sessions: int, groups: int) -> None:
    """Write SSTables and import them into the data folder of a cluster that never ran."""
    began = time.perf_counter()
    placed: dict[int, list[int]] = {}
    for number in range(sessions):
        placed.setdefault(crc32(client_of(number).encode()) % PARTITIONS, []).append(number)
    with tempfile.TemporaryDirectory(prefix="runs-", dir=folder) as name:
        root = Path(name)
        now_ms = time.time_ns() // 1_000_000
        manifest = next_manifest(None)
        manifest.cluster_id, manifest.created_ms, manifest.ring = CLUSTER, now_ms, RingEntry(partitions=PARTITIONS)
        (root / "runs").mkdir()
        for partition, numbers in sorted(placed.items()):
            reader = RowReader(partition, now_ms, 1_000, lambda _: None)
            path = root / "runs" / f"p{partition:05d}.parquet"
            with RunWriter(path, partition, generation=1, node=NODE, full=True, now_ms=now_ms, root=root) as writer:
                writer.write(
                    [reader.row(key, value, len(numbers), 1) for key, value in rows_of(partition, numbers, groups)]
                )
            manifest.files.append(writer.entry)
            manifest.op_index[str(partition)] = len(numbers)
        publish_manifest(root, manifest)
        rows = sum(entry.rows for entry in manifest.files)
        print(f"{rows} rows of {sessions} sessions written in {time.perf_counter() - began:.1f} s", flush=True)
        store = data / NODE / "store"
        command = [sys.executable, "-m", "stratamq", "store", "import", "--input", str(root), "--store", str(store)]
        command += ["--node", NODE, "--cluster", CLUSTER, "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(f"import failed: {result.stderr}")
        loaded = json.loads(result.stdout)
    print(f"imported {loaded['rows']} rows in {loaded['seconds']} s", flush=True)


# --- the restarts


def run(data: Path, options: argparse.Namespace) -> int:
    """Start a cluster on the store, kill its storage process some times; return 1 if anything is not as it must be."""
    sessions = options.sessions
    store = data / NODE / "store"
    disk = sum(path.stat().st_size for path in store.parent.glob("store*") if path.is_file())
    print(f"disk: {disk / sessions:.0f} bytes per session ({disk / 1e6:.0f} MB)", flush=True)
    cluster = LocalCluster(data, "--edges", "1", "--storages", "1")
    failed = 0
    try:
        failed += measured(cluster, options, "all processes start", 0)
        for number in range(options.rounds):
            before = cluster.pid(NODE)
            cluster.kill(NODE)
            failed += measured(cluster, options, f"kill {number + 1} of the storage process", before)
    finally:
        cluster.stop()
    return min(failed, 1)


def measured(cluster: LocalCluster, options: argparse.Namespace, what: str, former: int) -> int:
    """Wait until all partitions serve, and print the time since the start of the storage process."""
    cluster.wait_for(lambda: pid_of(cluster, former) > 0, "ready again", WAIT_S)
    pid = pid_of(cluster, former)
    ready_s = age_s(pid)
    if not former:
        cluster.wait_ready()
    wanted = 2 * options.sessions
    cluster.wait_for(lambda: gauge(cluster, "router-0", "routes") == wanted, "all routes known", WAIT_S)
    routes_s = age_s(pid)
    rng = random.Random(options.sessions)
    wrong = 0
    for number in [rng.randrange(options.sessions) for _ in range(PROBES)]:
        problem = probe(cluster.port(0, "plain"), number, options.groups)
        if problem:
            wrong += 1
            print(f"  FAILED: {client_of(number)}: {problem}")
    probed_s = age_s(pid)
    memory = resident_kib(pid) * 1024
    held = gauge(cluster, NODE, "sessions")
    wrong += int(held != options.sessions)
    print(
        f"{what}: {held:.0f} sessions; every partition serves after {ready_s:.2f} s, {wanted} routes stand after"
        f" {routes_s:.2f} s, {PROBES} stored clients served after {probed_s:.2f} s ({wrong} wrong); storage process"
        f" {cpu_s(pid):.1f} s of processor, {memory / 2**20:.0f} MiB = {memory / options.sessions:.0f} B per session;"
        f" router {resident_kib(cluster.pid('router-0')) / 1024:.0f} MiB; the loop stood still for at most"
        f" {gauge(cluster, NODE, 'turn_longest_seconds') * 1e3:.0f} ms",
        flush=True,
    )
    return wrong


def pid_of(cluster: LocalCluster, former: int) -> int:
    """Return the ready storage process, 0 if there is none or the former."""
    try:
        node = cluster.state["nodes"][NODE]
    except (OSError, ValueError, KeyError):
        return 0
    pid = int(node["pid"])
    return pid if pid != former and node["addresses"] else 0


def age_s(pid: int) -> float:
    """Return the seconds since a process began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS_PER_S


def cpu_s(pid: int) -> float:
    """Return its seconds of processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_kib(pid: int) -> int:
    """Return its resident memory."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def gauge(cluster: LocalCluster, node: str, name: str) -> float:
    """Return a metric, all labels together; -1 while the node does not answer."""
    with contextlib.suppress(OSError, KeyError):
        lines = cluster.metrics(node).splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"stratamq_{name} ", f"stratamq_{name}{{"))
        )
    return -1.0


# --- clients of stored sessions


def probe(port: int, number: int, groups: int) -> str:
    """Resume a stored session and get a message for each of its filters; return the error, "" if none."""
    client, publisher = BlockingClient(port, timeout_s=WAIT_S), BlockingClient(port, timeout_s=WAIT_S)
    stored: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: EXPIRY_S}
    connack = client.connect(client_of(number), clean_start=False, properties=stored)
    if connack.reason_code or not connack.session_present:
        return f"CONNACK {connack.reason_code:#x}, Session Present {connack.session_present}"
    publisher.connect(f"publisher-{number}")
    command, config = filters_of(number, groups)
    topics = [command, config.replace("#", "a/b")]
    for topic in topics:
        code = publisher.publish(topic)
        if code:
            return f"PUBACK {code:#x} for {topic}"
    got = [client.take().topic_name for _ in topics]
    publisher.disconnect()
    client.disconnect()
    return "" if sorted(got) == sorted(topics) else f"got {got}"


if __name__ == "__main__":
    sys.exit(main())
