"""The durable path on real processes: `stratamq up`, `mqload`, and the cost of a message at every tier.

Durable QoS 1 with 1, 2 and 3 copies (100 pairs, 64 bytes), concurrent and paced (``bench/durable_paced.py``), queueing
for absent sessions and the drain, durable CONNECTs, and Mosquitto beside it (persistence on; it writes its file at
intervals, without a sync per message: its acknowledgements since the last write are lost with it). All processes,
also the load generator, run on this machine; CPU per message hardly depends on other load, rates do. Any loss, repeat
or disorder fails the run. Restarts: ``bench/restart.py``.

    python -m bench.durable [--runs 5] [--only online paced offline connect mosquitto] [--messages 300] [--output PAGE]
"""

import argparse
import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.durable_figures import Costs, cpu_s, durable_cluster, mqload, sync_latency
from bench.durable_paced import RATES, paced
from bench.durable_table import Table
from bench.hot import build_mqload
from tests.clients import packets

PAIRS = 100
MOSQUITTO = Path("/usr/sbin/mosquitto")
PARALLEL = 64  # handshakes under way at once
EXPIRY_S = 3600


def main() -> int:
    """Run the selected rows and print one line per result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mqload", type=Path, help="the load generator; built when none is given")
    parser.add_argument("--only", nargs="+", default=["online", "paced", "offline", "connect", "mosquitto"])
    parser.add_argument("--runs", type=int, default=1, help="of everything; the table at the end has medians")
    parser.add_argument("--output", type=Path, help="write the table there, too")
    parser.add_argument("--copies", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--messages", type=int, default=300, help="per publisher")
    parser.add_argument("--windows", nargs="+", type=int, default=[20, 3], help="unacknowledged, per publisher")
    parser.add_argument("--rates", nargs="+", type=int, default=[*RATES], help="of the paced rows, messages a second")
    parser.add_argument("--paced-s", type=float, default=10.0, help="how long a paced row lasts")
    parser.add_argument("--queued", type=int, default=100_000, help="messages queued for the absent, all sessions")
    parser.add_argument("--connects", type=int, default=5_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        options.mqload = options.mqload or build_mqload(Path(folder))
        return run_all(options)


def run_all(options: argparse.Namespace) -> int:
    """Make all runs; return 1 if any promise was broken."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    about = f"{os.cpu_count()} CPUs, load {load}; fdatasync of 8 KiB: {sync_latency()}"
    print(about, flush=True)
    options.table = Table()
    failed = 0
    for _ in range(options.runs):
        if "online" in options.only:
            for copies in options.copies:
                failed += online(options, copies)
        if "paced" in options.only:
            for copies in options.copies:
                failed += paced(options, copies)
        for what, run in (("offline", offline), ("connect", connect), ("mosquitto", mosquitto)):
            if what in options.only:
                failed += run(options)
    about += f"; after the runs {sync_latency()}; broken promises: {failed}"
    page = options.table.markdown(f"Medians of {options.runs}; {about}.")
    print(f"\n{page}", flush=True)
    if options.output:
        options.output.write_text(page)
    return min(failed, 1)


# --- results


def online(options: argparse.Namespace, copies: int) -> int:
    """Subscribers are there."""
    with durable_cluster("--storages", str(copies)) as cluster:
        port = cluster.port(0, "plain")
        pairs = ("-P", str(PAIRS), "--persistent")
        failed = 0
        mqload(options, port, *pairs, "-w", "20", "-n", "20")  # routes and caches
        for window in options.windows:
            costs = Costs(cluster)
            report, broken = mqload(options, port, *pairs, "-w", str(window), "-n", str(options.messages))
            failed += broken
            if report:
                ack = report["ack_latency_us"]
                options.table.add(
                    f"subscriber online, {copies} {'copy' if copies == 1 else 'copies'}, window {window}",
                    **{"msg/s": report["receive_msg_per_s"]},
                    **{"PUBACK P50 ms": ack["p50"] / 1e3, "PUBACK P99 ms": ack["p99"] / 1e3},
                    **costs.figures(report["received"]),
                )
                print(
                    f"online, {copies} copies, window {window}: {report['receive_msg_per_s']:.0f} msg/s, PUBACK P50"
                    f" {ack['p50'] / 1e3:.1f} P99 {ack['p99'] / 1e3:.1f} ms; {costs.line(report['received'])}"
                )
    return failed


def offline(options: argparse.Namespace) -> int:
    """Subscribers are away: queueing, then the drain; 100 sessions, then all messages for a single one."""
    failures = 0
    with durable_cluster("--storages", "1") as cluster:
        for publishers, subscribers in ((PAIRS, PAIRS), (PAIRS, 1)):
            mode = ("-m", "pair") if subscribers > 1 else ("-m", "fanin")
            each = str(options.queued // publishers)
            costs = Costs(cluster)
            report, failed = mqload(
                options, cluster.port(0, "plain"), *mode, "--offline", "-P", str(publishers), "-n", each, "-w", "20"
            )
            failures += failed
            if report:
                options.table.add(
                    f"subscriber absent, {subscribers} session{'s' if subscribers > 1 else ''}: queueing, then drain",
                    **{"msg/s": report["published"] / report["queue_s"]},
                    **{f"drain of {report['received']} s": report["drain_s"]},
                    **costs.figures(report["received"]),
                )
                print(
                    f"absent, {subscribers} sessions: queueing {report['published'] / report['queue_s']:.0f} msg/s,"
                    f" drain of {report['received']} in {report['drain_s']:.1f} s; {costs.line(report['received'])}"
                )
    return failures


def connect(options: argparse.Namespace) -> int:
    """Durable CONNECT to CONNACK, with DISCONNECT behind it."""
    count = options.connects
    with durable_cluster("--storages", "1") as cluster:
        for what, prefix in (("new", "a"), ("resumed", "a"), ("ephemeral", "e")):
            costs = Costs(cluster)
            rate, refused = connects(cluster.port(0, "plain"), prefix, count, 0 if what == "ephemeral" else EXPIRY_S)
            options.table.add(f"CONNECT to CONNACK, {what}", **{"msg/s": rate}, **costs.figures(count))
            print(f"CONNECT, {what}: {rate:.0f}/s, {refused} refused; {costs.line(count)}")
    return 0


def connects(port: int, prefix: str, count: int, expiry_s: int, filters: tuple[str, ...] = ()) -> tuple[float, int]:
    """Connect clients (and subscribe them), a number at once, disconnecting each; return (per second, refused)."""
    selector = selectors.DefaultSelector()
    started = done = refused = 0
    begun = time.perf_counter()

    def start() -> None:
        nonlocal started
        client_id = f"{prefix}{started}".encode()
        properties = packets.session_expiry(expiry_s) if expiry_s else b""
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        client.sendall(packets.connect(client_id, 5, properties, 60, clean=False))
        if filters:
            names = [topic_filter.format(started).encode() for topic_filter in filters]
            client.sendall(packets.subscribe(names, 1, 5))
        selector.register(client, selectors.EVENT_READ, bytearray())
        started += 1

    while done < count:
        while started < count and started - done < PARALLEL:
            start()
        for key, _ in selector.select(10):
            client, data = key.fileobj, key.data
            assert isinstance(client, socket.socket)
            piece = client.recv(4096)
            data += piece
            if piece and (len(data) < 2 or (filters and data[0] == 0x20 and len(data) <= data[1] + 2)):
                continue
            refused += not piece or data[0] != 0x20 or data[3] != 0
            with contextlib.suppress(OSError):
                client.sendall(packets.DISCONNECT)
            selector.unregister(client)
            client.close()
            done += 1
    return count / (time.perf_counter() - begun), refused


def mosquitto(options: argparse.Namespace) -> int:
    """The same load for Mosquitto with persistence on."""
    if not MOSQUITTO.exists():
        print("mosquitto is not installed")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="mosquitto-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "listener": f"{port} 127.0.0.1",
        "allow_anonymous": "true",
        "persistence": "true",
        "persistence_location": f"{folder}/",
        "autosave_interval": "1000",
        "autosave_on_changes": "true",
        "max_queued_messages": "0",
        "user": "root" if os.geteuid() == 0 else "nobody",
    }
    (folder / "mosquitto.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    process = subprocess.Popen([MOSQUITTO, "-c", folder / "mosquitto.conf"], stderr=subprocess.DEVNULL)
    failures = 0
    try:
        _wait_open(port)
        for what, arguments, count in (
            ("online", ("-P", str(PAIRS), "--persistent"), options.messages),
            ("absent", ("-P", str(PAIRS), "--offline"), options.queued // PAIRS),
        ):
            before = cpu_s(process.pid)
            report, failed = mqload(options, port, "-w", "20", *arguments, "-n", str(count))
            failures += failed
            if report:
                cpu = (cpu_s(process.pid) - before) / max(report["received"], 1) * 1e6
                figures = {"msg/s": report["receive_msg_per_s"], "Mosquitto us": cpu}
                if "drain_s" in report:
                    figures["msg/s"] = report["published"] / report["queue_s"]
                    figures[f"drain of {report['received']} s"] = report["drain_s"]
                options.table.add(f"Mosquitto, persistence on: subscriber {what}", **figures)
                drain = f", drain in {report['drain_s']:.1f} s" if "drain_s" in report else ""
                print(f"mosquitto, {what}: {report['receive_msg_per_s']:.0f} msg/s{drain}, CPU us {cpu:.1f}")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return failures


def _wait_open(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise TimeoutError("mosquitto did not start")


if __name__ == "__main__":
    sys.exit(main())
