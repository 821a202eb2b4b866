"""The hot loop alone against Mosquitto: CPU per delivered message, broker on CPU 0, load generator on CPU 1.

    python -m bench.hot                      the table
    python -m bench.hot --only "100 pairs"   rows whose name contains it
    python -m bench.hot serve --port 1883    the toy broker only

All state is ephemeral and local (``bench/toy_broker.py``): this is the cost of the loop, not of a cluster.
CPU per message hardly depends on other load of the machine; messages per second do.
"""

import argparse
import json
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge.loop import broker_loop
from tests.free_ports import free_port

HERE = Path(__file__).resolve().parent
MOSQUITTO = "/usr/sbin/mosquitto"


@dataclass(frozen=True)
class Row:
    """One scenario: arguments of mqload, and the required improvement."""

    name: str
    arguments: str
    bar: float
    tls: bool = False
    linked: bool = False  # two toy edges on one CPU, publisher and subscriber on different ones
    latency: tuple[float, ...] = ()  # p50 and p99 at most, times the other broker's
    pacing_off: bool = False  # pacing must not have switched on in the row
    idle_bytes_max: int = 0  # of the edge per connection held
    settle_s: float = 0.0  # how long a cluster has been up when the row begins


ROWS = (
    Row("1 -> 1 QoS 0, batches", "-d 2", 40),
    Row("1 -> 1 QoS 0, batches, MQTT 5", "-d 2 -V 5", 25),
    Row("100 pairs QoS 0, one write each", "-P 100 --small-writes -d 2", 1.8),
    Row("fan-out 1 -> 1000", "-m fanout -S 1000 -n 500", 12),
    Row("fan-in 100 -> 1 through +", "-m fanin -P 100 -d 2 --wildcard plus --e2e-window 20", 4),
    Row("QoS 1, 100 pairs, window 20", "-q 1 -P 100 -w 20 -d 2", 8),
    Row("QoS 2, 100 pairs", "-q 2 -P 100 -w 20 -d 2", 10),
    # Paced rows give the cost of a rate: 8 s of it, 10 s after the start, when the nodes' start-up work and its worker
    # threads have ended.
    Row(
        "10 000 msg/s over 100 pairs",
        "-P 100 -r 100 -d 8 --small-writes",
        1.2,
        latency=(1.05, 1.5),
        pacing_off=True,
        settle_s=12.0,
    ),
    Row("50 000 msg/s over 100 pairs", "-P 100 -r 500 -d 8 --small-writes", 1.0, settle_s=12.0),
    Row("QoS 1, 1 -> 1, window 20", "-q 1 -w 20 -d 2", 4),
    Row("TLS, 100 pairs, one write each", "-P 100 --small-writes -d 2 --e2e-window 20", 1.2, tls=True),
    Row("100 pairs on two edges, link under TLS", "-P 100 --small-writes -d 2 --cross", 0.8, linked=True),
    Row("100 pairs on two edges, batches", "-P 100 -d 2 --cross", 1, linked=True),
    Row("connects, plain", "-m connect -N 3000 --churn", 0.4, settle_s=12.0),
    Row("connects, TLS", "-m connect -N 1000 --churn", 0.6, tls=True, settle_s=12.0),
)


# -- the toy broker


def serve(port: int, certificate: Path | None, pacing_us: int, nested: bool, link_to: int) -> None:
    """Run the toy broker until it is killed; prints its ports: plain, TLS, links."""
    import trio

    from bench.toy_broker import ToyHandler
    from edge.loop import options, state
    from edge.loop.descriptors import boot_ns, connections_allowed
    from edge.loop.host import host
    from edge.loop.loop import Loop
    from wire.trio_epoll import trio_epoll_fd

    async def main() -> None:
        connections_allowed()
        modules = SimpleNamespace(engine=broker_loop, options=options, state=state)
        handler = ToyHandler(modules)
        hot = broker_loop.BrokerLoop(handler, 1, options.HotLimits(pacing_ns=pacing_us * 1000))
        handler.hot = hot
        hot.set_lease(1 << 62)
        trio_fd = -1 if nested else trio_epoll_fd()
        loop = Loop(hot, trio_fd)
        context: ssl.SSLContext | None = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        plain = options.ConnOptions()
        secured = options.ConnOptions(tls=context)
        kinds = [(plain, state.CLIENT)]
        if context is not None:
            kinds += [(secured, state.CLIENT), (secured, state.LINK)]
        for index, kind in enumerate(kinds):
            listener = socket.create_server(("127.0.0.1", port + index if port else 0), backlog=4096)
            print(listener.getsockname()[1], flush=True)
            loop.listen(listener, kind)
        handler.attach = lambda kind, fd: hot.attach(fd, kind[1], kind[0], boot_ns())
        if link_to and certificate is not None:
            trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
            stream = socket.create_connection(("127.0.0.1", link_to))
            stream.setblocking(False)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            calling = options.ConnOptions(tls=trusting, server_hostname="localhost")
            handler.call(hot.attach(stream.detach(), state.LINK, calling, boot_ns()))
        await host(loop, trio_fd)

    trio.run(main)


# -- measuring


class Broker:
    """A broker process on CPU 0; without ``ports`` it prints them, so many lines."""

    def __init__(self, command: list[str], ports: list[int] | None, printed: int = 3) -> None:
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", *command],
            stdout=subprocess.PIPE if ports is None else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if ports is not None else None,
            text=True,
            cwd=HERE.parent,
        )
        if ports is None:
            assert self.process.stdout is not None
            self.ports = [int(self.process.stdout.readline()) for _ in range(printed)]
        else:
            self.ports = ports
        self.others: list[Broker] = []
        for port in self.ports[:2]:
            _wait_until_open(port)

    def stop(self) -> None:
        for other in self.others:
            other.stop()
        self.process.terminate()
        self.process.wait(10)


def _wait_until_open(port: int) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens on {port}")


def start_mosquitto(folder: Path) -> Broker:
    """Debian's Mosquitto, persistence off, queue limits lifted."""
    ports = [free_port(), free_port()]
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"persistence false\nmax_queued_messages 0\nmax_queued_bytes 0\nlog_type none\n"
        "allow_anonymous true\nuser root\n"
        f"listener {ports[0]} 127.0.0.1\nsocket_domain ipv4\n"
        f"listener {ports[1]} 127.0.0.1\ncertfile {folder}/cert.pem\nkeyfile {folder}/key.pem\n"
    )
    return Broker([MOSQUITTO, "-c", str(configuration)], ports)


def start_ours(folder: Path, pacing_us: int, nested: bool, linked: bool) -> Broker:
    """The toy broker, or two of them with a link."""
    command = [sys.executable, "-m", "bench.hot", "serve", "--certificate", str(folder), "--pacing-us", str(pacing_us)]
    command += ["--nested"] if nested else []
    broker = Broker(command, None)
    if linked:
        broker.others.append(Broker([*command, "--link-to", str(broker.ports[2])], None))
        time.sleep(0.3)  # the link's handshake; its end cannot be observed here
    return broker


def build_mqload(folder: Path) -> Path:
    """Compile the generator, unless one is given in MQLOAD."""
    if "MQLOAD" in os.environ:
        return Path(os.environ["MQLOAD"])
    program = folder / "mqload"
    command = ["cc", "-O2", "-std=c11", "-pthread", "-DMQLOAD_TLS", str(HERE / "mqload.c"), "-o", str(program)]
    subprocess.run([*command, "-lssl", "-lcrypto"], check=True)
    return program


def make_certificate(folder: Path) -> None:
    """A P-256 certificate for localhost."""
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem".split(),
        check=True,
        capture_output=True,
    )


def measure(mqload: Path, broker: Broker, row: Row, folder: Path) -> dict[str, Any]:
    """Run one scenario; the report of mqload with its exit status."""
    command = ["taskset", "-c", "1", str(mqload), "-H", f"127.0.0.1:{broker.ports[1 if row.tls else 0]}"]
    arguments = row.arguments if broker.others else row.arguments.replace("--cross", "")
    command += [*arguments.split(), "--json", "--pid", str(broker.process.pid), "--max-time", "60"]
    for other in broker.others:
        command += ["-H", f"127.0.0.1:{other.ports[0]}", "--pid", str(other.process.pid)]
    if row.tls:
        command += ["--ca", str(folder / "cert.pem"), "--sni", "localhost"]
    done = subprocess.run(command, capture_output=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr[-300:]}
    report["exit"] = done.returncode
    return report


def figure(report: dict[str, Any]) -> tuple[float, str]:
    """CPU microseconds per message (or connection), and a description."""
    if "error" in report:
        return 0.0, f"exit {report['exit']}: {report['error']}"
    if report.get("mode") == "connect":
        cpu = report.get("broker_cpu_us_per_conn", 0.0)
        return cpu, f"{cpu:.1f} us"
    cpu = report.get("broker_cpu_us_per_msg", 0.0)
    latency = report.get("latency_us", {})
    text = f"{cpu:.3f} us, {report.get('receive_msg_per_s', 0):,.0f}/s, p50 {latency.get('p50', 0):.0f}"
    text += f" p99 {latency.get('p99', 0):.0f}"
    return cpu, text + (f" EXIT {report['exit']}" if report["exit"] else "")


def table(only: str, runs: int, pacing_us: int, nested: bool, alone: bool) -> int:
    """Measure and print all rows; returns how many are below their bar."""
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    below = 0
    make_certificate(folder)
    mqload = build_mqload(folder)
    try:
        for row in ROWS:
            if only and only.lower() not in row.name.lower():
                continue
            results: list[list[tuple[float, str]]] = [[], []]
            for _ in range(runs):
                for which in (0,) if alone else (0, 1):
                    broker = (
                        start_ours(folder, pacing_us, nested, row.linked) if which == 0 else start_mosquitto(folder)
                    )
                    try:
                        results[which].append(figure(measure(mqload, broker, row, folder)))
                    finally:
                        broker.stop()
            ours = statistics.median(cpu for cpu, _ in results[0])
            theirs = statistics.median(cpu for cpu, _ in results[1]) if results[1] else 0.0
            ratio = theirs / ours if ours else 0.0
            below += ratio < row.bar
            print(f"{row.name:34} {ratio:7.2f}x (bar {row.bar}x)", flush=True)
            for name, which in (("ours", 0), ("mosquitto", 1)):
                for _, text in results[which]:
                    print(f"    {name:10} {text}", flush=True)
    finally:
        shutil.rmtree(folder)
    return below


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["table", "serve"], default="table")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--pacing-us", type=int, default=400)
    parser.add_argument("--nested", action="store_true")
    parser.add_argument("--link-to", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="without Mosquitto")
    arguments = parser.parse_args()
    if arguments.command == "serve":
        serve(arguments.port, arguments.certificate, arguments.pacing_us, arguments.nested, arguments.link_to)
        return 0
    return table(arguments.only, arguments.runs, arguments.pacing_us, arguments.nested, arguments.alone)


if __name__ == "__main__":
    sys.exit(main())
