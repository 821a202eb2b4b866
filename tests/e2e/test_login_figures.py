"""Figures of logins under attack, and of reloads beside them.

Slow: `pytest -s -m slow tests/e2e/test_login_figures.py` prints the figures.
"""

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_revocation_figures import order
from tests.free_ports import free_port
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority

FLOOD_S = 30
FLOOD_RATE = 500  # wrong passwords per second
ADDRESSES = 50
RELOADS = 50
CONNECT_RATE = 200
GENERATORS = 8


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[LocalCluster, ExtraEdge]]:
    with local_cluster("--edges", "1") as cluster:
        word: dict[str, Any] = {"tls": False, "allow_anonymous": False, "cluster_users": True, "cluster_roles": True}
        word["proxy_trusted"] = ["127.0.0.1/32"]  # the honest one; loopback's others are counted
        # The last two hash nothing: everybody is let in, and nobody is.
        bare = {"tls": False, "allow_anonymous": True, "proxy_trusted": ["127.0.0.1/32"]}
        shut = bare | {"allow_anonymous": False}
        tables: dict[str, dict[str, Any]] = {"word": word, "bare": bare, "shut": shut, "secure": word | {"tls": True}}
        with extra_edge(cluster, tables, "edge-9", takeovers_max=0, flapping_ends_max=0) as edge:
            order(cluster, "role", "put", "all", "--publish", "#", "--subscribe", "#")
            order(cluster, "user", "add", "ann", "--role", "all", password="good")
            yield cluster, edge


def logged_in(port: int, client_id: str, secure: ssl.SSLContext | None = None) -> BlockingClient:
    client = BlockingClient(port, timeout_s=PATIENCE_S)
    if secure is not None:
        client.socket = secure.wrap_socket(client.socket, server_hostname="localhost")
    client.open(client_id, username="ann", password=b"good")
    return client


def p99_ms(port: int, seconds: float, name: str) -> float:
    """Return the P99 of an honest pair that logs in for it."""
    return p99_of_pair((logged_in(port, f"{name}-w"), logged_in(port, f"{name}-r")), seconds, name)


def p99_of_pair(pair: tuple[BlockingClient, BlockingClient], seconds: float, name: str) -> float:
    """Return the P99 of one message at a time, from PUBLISH to its delivery; the pair is gone then."""
    writer, reader = pair
    reader.subscribe(f"pair/{name}", qos=0)
    took: list[float] = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        writer.publish(f"pair/{name}")
        reader.published()
        took.append(time.monotonic() - began)
        time.sleep(0.005)
    writer.close()
    reader.close()
    return statistics.quantiles(took, n=100)[98] * 1e3


@contextlib.contextmanager
def honest_logins(
    port: int, rate: float, name: str = "honest", secure: ssl.SSLContext | None = None
) -> Iterator[dict[str, int]]:
    """Log in with the right password at a rate, each time a new connection; yields how many were tried and let in."""
    outcome, over = {"tried": 0, "in": 0}, threading.Event()

    def run() -> None:
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):  # by the clock, however long a login takes
            due += 1.0 / rate
            outcome["tried"] += 1
            with contextlib.suppress(OSError, AssertionError):
                logged_in(port, f"{name}-{outcome['tried']}", secure).close()
                outcome["in"] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        over.set()
        thread.join(PATIENCE_S)


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    """Run Mosquitto with one user in a file of its own making (`$7$`); yield its port."""
    for name in ("mosquitto", "mosquitto_passwd"):
        if shutil.which(name) is None:
            pytest.skip(f"needs {name}: apt-get install mosquitto")
    port = free_port()
    subprocess.run(["mosquitto_passwd", "-c", "-b", folder / "users", "ann", "good"], check=True)
    words = f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {folder / 'users'}\nuser root\n"
    (folder / "conf").write_text(words)
    process = subprocess.Popen(["mosquitto", "-c", folder / "conf"], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.slow
def test_the_floor_under_wrong_passwords(tmp_path: Path) -> None:
    """Mosquitto under the same attack: what its 101 iterations of PBKDF2 leave of an honest pair's latency."""
    with mosquitto(tmp_path) as port:
        calm, attacked, said, outcome = under_attack(port)
    print(
        f"Mosquitto: P99 {calm:.1f} -> {attacked:.1f} ms, {outcome} logins, {said['tried']} wrong ones {said['codes']}"
    )
    assert said["tried"] > FLOOD_RATE * FLOOD_S * 0.8


@contextlib.contextmanager
def beside(module: str, *words: object) -> Iterator[None]:
    """Run a program of this folder meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.e2e.{module}", *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    time.sleep(1.0)  # of its time: it has begun
    try:
        yield
    finally:
        print(f"{module} {' '.join(map(str, words[1:]))}: {process.communicate(timeout=300)[0].strip()}")


def anonymous(port: int, client_id: str) -> BlockingClient:
    client = BlockingClient(port, timeout_s=PATIENCE_S)
    client.open(client_id)
    return client


@pytest.mark.slow
def test_what_wrong_passwords_are_made_of(place: tuple[LocalCluster, ExtraEdge]) -> None:
    """The floor: the same hashes in a program of their own, the same CONNECTs where nothing is hashed, and both.

    A quiet pair, without the honest logins that come beside the attack. No design of the edge can be below what the
    hashes alone take from it as another process of the lowest priority.
    """
    edge = place[1]
    bare, seconds = edge.port("bare"), 12.0
    flood = ("login_flood", edge.port("shut"), FLOOD_RATE, int(seconds) + 2, ADDRESSES, 2)  # the attack's own stay free
    found: dict[str, float] = {}
    for name, programs in {
        "calm": (),
        "hashes of nice 19": (("hash_burner", seconds + 2),),
        "hashes of SCHED_IDLE": (("hash_burner", seconds + 2, "--idle"),),
        "CONNECTs without hashes": (flood,),
        "both": (flood, ("hash_burner", seconds + 2)),
        "calm again": (),
    }.items():
        key = name.replace(" ", "-")
        pair = anonymous(bare, f"{key}-w"), anonymous(bare, f"{key}-r")
        with contextlib.ExitStack() as stack:
            for module, *words in programs:
                stack.enter_context(beside(str(module), *words))
            found[name] = p99_of_pair(pair, seconds, key)
        print(f"P99 {name}: {found[name]:.2f} ms")
    assert max(found["calm"], found["calm again"]) < 20


def under_attack(port: int) -> tuple[float, float, dict[str, Any], dict[str, int]]:
    """Return the P99 of an honest pair without the attack and beside it, and what attacker and honest logins met."""
    calm = statistics.median(p99_ms(port, 3.0, f"calm{number}") for number in range(3))
    command = [sys.executable, "-m", "tests.e2e.login_flood", str(port), str(FLOOD_RATE), str(FLOOD_S), str(ADDRESSES)]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with honest_logins(port, 10) as outcome:
        attacked = p99_ms(port, FLOOD_S - 2, "beside")
    return calm, attacked, json.loads(flood.communicate(timeout=300)[0]), outcome


@pytest.mark.slow
def test_wrong_passwords_from_fifty_addresses(place: tuple[LocalCluster, ExtraEdge]) -> None:
    """NIST: protect. Honest clients go on: P99 below twice its value, and more than 95 of 100 logins."""
    port = place[1].port("word")
    calm, attacked, said, outcome = under_attack(port)
    print(
        f"{said['tried']} wrong passwords in {FLOOD_S} s from {ADDRESSES} addresses, answers {said['codes']}; honest "
        f"P99 {calm:.2f} -> {attacked:.2f} ms, {outcome['in']} of {outcome['tried']} logins"
    )
    assert said["tried"] > FLOOD_RATE * FLOOD_S * 0.8 and not said["codes"].get("0x00")
    assert outcome["in"] > 0.95 * outcome["tried"] and attacked < 2 * max(calm, 2.0)


@pytest.mark.slow
def test_reloads_under_connects(place: tuple[LocalCluster, ExtraEdge]) -> None:
    """NIST: recover. Fifty reloads, each of another certificate and of the roles: no handshake and no login fails.

    Nobody who is there is ended, and who comes behind them is shown the last certificate.
    """
    cluster, edge = place
    port, shown = edge.port("secure"), cluster.data / "tls" / "server.pem"
    authority = DevelopmentAuthority(cluster.data / "tls", "stratamq", datetime.datetime.now(datetime.UTC))
    secure = ssl.create_default_context(cafile=str(cluster.data / "tls" / "ca.pem"))
    stays = [logged_in(port, f"stays-{number}", secure) for number in range(20)]
    before, first = edge.events(cluster), stays[0].socket.getpeercert(True)  # type: ignore[attr-defined]
    renewed = [authority.server(f"renewed-{number}") for number in range(2)]
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        each = CONNECT_RATE / GENERATORS
        outcomes = [stack.enter_context(honest_logins(port, each, f"h{one}", secure)) for one in range(GENERATORS)]
        for number in range(RELOADS):
            pair = renewed[number % 2]
            shown.write_bytes(pair.certificate.read_bytes())
            shown.with_suffix(".key").write_bytes(pair.key.read_bytes())  # a reload that comes between is refused whole
            roles = cluster.data / "roles.toml"
            roles.write_text(f"{roles.read_text()}# {number}\n")
            os.kill(edge.process, signal.SIGHUP)
            time.sleep(0.1)
        rate = sum(outcome["tried"] for outcome in outcomes) / (time.monotonic() - began)
    tried, let_in = (sum(outcome[what] for outcome in outcomes) for what in ("tried", "in"))
    after, reloads = edge.events(cluster), cluster.metrics_at(edge.addresses["metrics"])
    ended = after.get("logins_ended", 0) - before.get("logins_ended", 0)
    counted = dict(re.findall(r'stratamq_reloads_total\{outcome="(\w+)"\} (\d+)', reloads))
    print(
        f"{RELOADS} reloads beside {tried} logins by TLS, {rate:.0f} a second: {let_in} let in; logins ended {ended}; "
        f"reloads {counted}"
    )
    assert let_in == tried and not ended and int(counted["done"]) > RELOADS / 2
    late = logged_in(port, "late", secure)
    assert late.socket.getpeercert(True) != first  # type: ignore[attr-defined]
    for client in (late, *stays):
        assert client.publish("still/here") < 0x80
        client.close()
