"""Flood an edge, or another broker, with wrong passwords while honest clients log in and exchange messages.

The flood is ``login_flood.py``. The limits are in ``test_login_figures.py``, the floor in ``bench/attacks.py``.
"""

import contextlib
import json
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.blocking import BlockingClient
from tests.clients.mosquitto_process import mosquitto
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_revocation_figures import order
from tests.patience import PATIENCE_S

__all__ = [
    "ADDRESSES",
    "FLOOD_RATE",
    "FLOOD_S",
    "Flooded",
    "beside",
    "flooded_edge",
    "honest_logins",
    "logged_in",
    "mosquitto_of_ann",
    "p99_of_pair",
    "under_attack",
]

FLOOD_S = 30
FLOOD_RATE = 500  # wrong passwords per second
ADDRESSES = 50
HONEST_RATE = 10  # logins per second beside it
CALM_S = 3.0
CALMS = 3


@contextlib.contextmanager
def flooded_edge() -> Iterator[tuple[LocalCluster, ExtraEdge]]:
    """Run a cluster with the user ``ann``, and an edge whose listener ``word`` authenticates the cluster's users."""
    with local_cluster("--edges", "1") as cluster:
        word: dict[str, Any] = {"tls": False, "allow_anonymous": False, "cluster_users": True, "cluster_roles": True}
        # The last two listeners hash no passwords: one accepts every client, the other none.
        bare = {"tls": False, "allow_anonymous": True}
        shut = bare | {"allow_anonymous": False}
        tables: dict[str, dict[str, Any]] = {"word": word, "bare": bare, "shut": shut, "secure": word | {"tls": True}}
        with extra_edge(cluster, tables, "edge-9", takeovers_max=0, failed_logins_max=10) as edge:
            order(cluster, "role", "put", "all", "--publish", "#", "--subscribe", "#")
            order(cluster, "user", "add", "ann", "--role", "all", password="good")
            yield cluster, edge


@contextlib.contextmanager
def mosquitto_of_ann(folder: Path) -> Iterator[int]:
    """Run Mosquitto with one user in a password file of its own format (`$7$`); yield its port."""
    subprocess.run(["mosquitto_passwd", "-c", "-b", folder / "users", "ann", "good"], check=True)
    with mosquitto(folder, "allow_anonymous false", f"password_file {folder / 'users'}") as port:
        yield port


def logged_in(port: int, client_id: str, secure: ssl.SSLContext | None = None) -> BlockingClient:
    """Return a client that logged in as ``ann``."""
    client = BlockingClient(port, timeout_s=PATIENCE_S)
    if secure is not None:
        client.socket = secure.wrap_socket(client.socket, server_hostname="localhost")
    client.open(client_id, username="ann", password=b"good")
    return client


def p99_of_pair(pair: tuple[BlockingClient, BlockingClient], seconds: float, name: str) -> float:
    """Return the P99 in ms of one message at a time, from PUBLISH to its delivery; the pair is gone then."""
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
) -> Iterator[Counter[str]]:
    """Log in with the right password at a rate, each time a new connection.

    Yields how many were ``tried`` and let ``in``, and how many times each error came.
    """
    outcome, over = Counter(tried=0), threading.Event()
    outcome["in"] = 0

    def run() -> None:
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):  # by the clock, however long a login takes
            due += 1.0 / rate
            outcome["tried"] += 1
            try:
                logged_in(port, f"{name}-{outcome['tried']}", secure).close()
                outcome["in"] += 1
            except (OSError, AssertionError) as error:
                outcome[f"{type(error).__name__} {error}"[:200]] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        over.set()
        thread.join(PATIENCE_S)


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


@dataclass(frozen=True)
class Flooded:
    """Latency of an honest pair without and during a flood, in ms, and the outcomes of attackers and honest logins."""

    calm_ms: float
    attacked_ms: float
    tried: int
    codes: dict[str, int]
    honest_tried: int
    honest_in: int

    def __str__(self) -> str:
        return (
            f"P99 {self.calm_ms:.2f} -> {self.attacked_ms:.2f} ms, {self.attacked_ms / self.calm_ms:.2f} times;"
            f" {self.honest_in} of {self.honest_tried} logins; {self.tried} wrong passwords, answers {self.codes}"
        )


def under_attack(port: int, seconds: int = FLOOD_S) -> Flooded:
    """Measure a pair three times without the flood, then beside it."""

    def p99_ms(length: float, name: str) -> float:
        return p99_of_pair((logged_in(port, f"{name}-w"), logged_in(port, f"{name}-r")), length, name)

    calm = statistics.median(p99_ms(CALM_S, f"calm{number}") for number in range(CALMS))
    command = [sys.executable, "-m", "tests.e2e.login_flood", str(port), str(FLOOD_RATE), str(seconds), str(ADDRESSES)]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with honest_logins(port, HONEST_RATE) as outcome:
        attacked = p99_ms(seconds - 2, "beside")
    report = json.loads(flood.communicate(timeout=300)[0])
    return Flooded(calm, attacked, report["tried"], report["codes"], outcome["tried"], outcome["in"])
