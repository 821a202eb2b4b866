"""Figures of logins under attack, and of reloads beside them.

Slow: `pytest -s -m slow tests/e2e/test_login_figures.py` prints the figures.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_revocation_figures import order

FLOOD_S = 20
FLOOD_RATE = 500  # wrong passwords per second
ADDRESSES = 50
RELOADS = 50
CONNECT_RATE = 200


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[LocalCluster, ExtraEdge]]:
    with local_cluster("--edges", "1") as cluster:
        word = {"tls": False, "allow_anonymous": False, "cluster_users": True, "cluster_roles": True}
        tables = {"word": {**word, "proxy_trusted": ["127.0.0.1/32"]}}  # the honest one; loopback's others are counted
        with extra_edge(cluster, tables, "edge-9", takeovers_max=0) as edge:
            order(cluster, "role", "put", "all", "--publish", "#", "--subscribe", "#")
            order(cluster, "user", "add", "ann", "--role", "all", password="good")
            yield cluster, edge


def logged_in(port: int, client_id: str) -> BlockingClient:
    client = BlockingClient(port, timeout_s=10.0)
    client.open(client_id, username="ann", password=b"good")
    return client


def p99_ms(port: int, seconds: float, name: str) -> float:
    """Return the P99 of an honest pair: one message at a time, from PUBLISH to its delivery."""
    writer, reader = logged_in(port, f"{name}-w"), logged_in(port, f"{name}-r")
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
def honest_logins(port: int, rate: float) -> Iterator[dict[str, int]]:
    """Log in with the right password at a rate, each time a new connection; yields how many were tried and let in."""
    outcome, over = {"tried": 0, "in": 0}, threading.Event()

    def run() -> None:
        while not over.wait(1.0 / rate):
            outcome["tried"] += 1
            with contextlib.suppress(OSError, AssertionError):
                logged_in(port, f"honest-{outcome['tried']}").close()
                outcome["in"] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        over.set()
        thread.join(20)


@pytest.mark.slow
def test_wrong_passwords_from_fifty_addresses(place: tuple[LocalCluster, ExtraEdge]) -> None:
    """NIST: protect. Honest clients go on: P99 below twice its value, and more than 95 of 100 logins."""
    port = place[1].port("word")
    calm = statistics.median(p99_ms(port, 3.0, f"calm{number}") for number in range(3))
    command = [sys.executable, "-m", "tests.e2e.login_flood", str(port), str(FLOOD_RATE), str(FLOOD_S), str(ADDRESSES)]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with honest_logins(port, 10) as outcome:
        beside = p99_ms(port, FLOOD_S - 2, "beside")
    said = json.loads(flood.communicate(timeout=60)[0])
    print(
        f"{said['tried']} wrong passwords in {FLOOD_S} s from {ADDRESSES} addresses, answers {said['codes']}; honest "
        f"P99 {calm:.1f} -> {beside:.1f} ms, {outcome['in']} of {outcome['tried']} logins"
    )
    assert said["tried"] > FLOOD_RATE * FLOOD_S * 0.8 and not said["codes"].get("0x00")
    assert outcome["in"] > 0.95 * outcome["tried"] and beside < 2 * max(calm, 2.0)


@pytest.mark.slow
def test_reloads_under_connects(place: tuple[LocalCluster, ExtraEdge]) -> None:
    """NIST: recover. Fifty reloads of all files: no login fails, and nobody who is there is ended."""
    cluster, edge = place
    port = edge.port("word")
    stays = [logged_in(port, f"stays-{number}") for number in range(20)]
    before = edge.events(cluster)
    with contextlib.ExitStack() as stack:
        outcomes = [stack.enter_context(honest_logins(port, CONNECT_RATE / 4)) for _ in range(4)]
        for number in range(RELOADS):
            roles = cluster.data / "roles.toml"
            roles.write_text(f"{roles.read_text()}# {number}\n")
            os.kill(edge.process, signal.SIGHUP)
            time.sleep(0.1)
    tried, let_in = (sum(outcome[what] for outcome in outcomes) for what in ("tried", "in"))
    after = edge.events(cluster)
    print(f"{RELOADS} reloads beside {tried} logins: {let_in} let in; logins ended {after.get('logins_ended', 0)}")
    assert let_in == tried and after.get("logins_ended", 0) == before.get("logins_ended", 0)
    for client in stays:
        assert client.publish("still/here") < 0x80
        client.close()
