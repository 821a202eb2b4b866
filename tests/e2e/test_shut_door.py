"""A balancer without an edge closes its listener at once, reports the reason, and opens it for the first edge."""

import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.extra_balancer import balancer, status_of, wait_until
from tests.e2e.extra_edge import extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.free_ports import free_port
from tests.patience import PATIENCE_S

LISTENERS = {"alone": {"tls": False}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--storages", "1", "--routers", "1") as running:
        yield running


def is_refused(port: int) -> bool:
    """Return whether the port refuses connections."""
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def readiness(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=PATIENCE_S) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_clients_refused_at_once_without_an_edge(cluster: LocalCluster) -> None:
    """Clients can try another address; /readyz names the listener without an edge.

    The listener is never seen closed while a candidate exists: it opens with the map that adds one.
    """
    health = f"127.0.0.1:{free_port()}"
    listeners = {"alone": {"port": free_port(), "opaque": False}}
    tables = {name: dict(table) for name, table in LISTENERS.items()}
    with (
        extra_edge(cluster, tables, "edge-5") as edge,
        balancer(cluster, "alone", metrics={"health_bind": health}, listeners=listeners) as (_, ports),
    ):
        assert not is_refused(ports["alone"]) and readiness(health)[0] == 200
        os.kill(edge.process, signal.SIGKILL)
        wait_until(lambda: is_refused(ports["alone"]))
        status, text = readiness(health)
        assert status == 503 and "no edge for listener alone" in text
        assert status_of(cluster, "alone")["listeners"]["alone"].endswith(" shut")
        seen: list[tuple[bool, bool]] = []
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                balancer_status = status_of(cluster, "alone")
                found = any(not row["state"].startswith("left out") for row in balancer_status["edges"])
                seen.append((found, balancer_status["listeners"]["alone"].endswith(" open")))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            with extra_edge(cluster, {name: dict(table) for name, table in LISTENERS.items()}, "edge-6"):
                wait_until(lambda: not is_refused(ports["alone"]))
                wait_until(lambda: readiness(health)[0] == 200)
                over.set()
                looking.join()  # before the edge stops at the end of the block
        finally:
            over.set()
        assert {(False, False), (True, True)} == set(seen)
