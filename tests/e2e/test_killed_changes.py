"""Kills in the middle of a change, done or not done and never half; and a thousand streams at once."""

import contextlib
import random
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from admin.http.request_admission import STREAMS_MAX
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_prometheus import served
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

STREAMS = 1_000
ROUNDS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--routers", "3", "--admin-port", "0") as here:
        served(here)
        yield here


@pytest.fixture(scope="module")
def token(cluster: LocalCluster) -> str:
    return str(cluster.admin("token", "create", "kills", "--role", "admin")["token"])


def banned(cluster: LocalCluster) -> list[str]:
    """Return the values of all bans, once routers answer."""
    found: list[dict[str, Any]] = []

    def listed() -> bool:
        answer = cluster.command("ban", "list", "--all", "-o", "jsonl", "--data", str(cluster.data))
        if answer.returncode == 0:
            found[:] = cluster.admin("ban", "list", "--all")["bans"]
        return answer.returncode == 0

    cluster.wait_for(listed, "listed")
    return [str(row["value"]) for row in found]


def ban(cluster: LocalCluster, name: str) -> subprocess.Popen[str]:
    words = ("ban", "add", "user", name, "--data", str(cluster.data))
    command = [*cluster.command_line(), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_and_wait(cluster: LocalCluster, node: str) -> None:
    """Kill a process of the cluster, and wait until it is ready again."""
    before = cluster.pid(node)
    cluster.kill(node)
    cluster.wait_for(lambda: cluster.is_started_again(node, before), f"{node} again")


def test_killed_command_applies_change_or_not(cluster: LocalCluster) -> None:
    """Killed at any time from start to end; after exit code 0 the ban exists, and repeating the command creates it."""
    rng = random.Random(22)
    done = set()
    for number in range(ROUNDS):
        name = f"command-{number}"
        process = ban(cluster, name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.1, 1.5))
        process.kill()
        process.communicate()
        if process.returncode == 0:
            done.add(name)
    now = banned(cluster)
    assert done <= {*now} and len(now) == len({*now})
    for number in range(ROUNDS):
        again = ban(cluster, f"command-{number}")
        assert again.wait(60) == 0, again.communicate()
    now = [name for name in banned(cluster) if name.startswith("command-")]
    assert sorted(now) == [f"command-{number}" for number in range(ROUNDS)]


def test_killed_service_keeps_acknowledged_changes(cluster: LocalCluster, token: str) -> None:
    """An acknowledged change persists; another one exists completely or not at all, and its repeat is one ban."""
    rng = random.Random(23)
    headers = {"Authorization": f"Bearer {token}"}
    for number in range(ROUNDS // 2):
        name = f"service-{number}"
        answers: list[int] = []

        def post(name: str, answers: list[int]) -> None:
            with contextlib.suppress(httpx.HTTPError):
                asked = {"kind": "user", "value": name}
                keyed = {**headers, "Idempotency-Key": name}
                answers.append(
                    httpx.post(f"{served(cluster)}/bans", json=asked, headers=keyed, timeout=PATIENCE_S).status_code
                )

        thread = threading.Thread(target=post, args=(name, answers))
        thread.start()
        thread.join(rng.uniform(0.0, 0.06))
        kill_and_wait(cluster, "admin")
        thread.join()
        cluster.wait_for(lambda: httpx.get(f"{served(cluster)}/version", timeout=PATIENCE_S).is_success, "served again")
        assert not answers or (answers == [200] and name in banned(cluster)), answers
        post(name, answers)
        assert answers[-1] == 200
    now = [name for name in banned(cluster) if name.startswith("service-")]
    assert sorted(now) == [f"service-{number}" for number in range(ROUNDS // 2)]


def test_killed_leader_applies_order_once(cluster: LocalCluster) -> None:
    """The command retries through the election: its order is applied once, or the result is reported as unknown."""
    rng = random.Random(24)
    for number in range(ROUNDS // 2):
        name = f"router-{number}"
        leader = str(cluster.admin("cluster", "status")["leader"])
        process = ban(cluster, name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.3, 1.0))
        kill_and_wait(cluster, leader)
        _, errors = process.communicate(timeout=300)
        now = banned(cluster)
        assert now.count(name) <= 1
        assert process.returncode in (0, 3, 4), errors
        assert process.returncode == 4 or name in now, errors
        assert process.returncode != 4 or errors.count("\n") <= 4, errors


def test_thousand_streams_bounded_and_released(cluster: LocalCluster, token: str) -> None:
    """Streams up to the limit are served, more are refused at once, others are served, and slots are released."""
    base = served(cluster)
    host, port = base.removeprefix("http://").removesuffix("/api/v1").split(":")
    cookie = httpx.post(f"{base}/login", json={"token": token}, timeout=PATIENCE_S).headers["set-cookie"]
    cookie = cookie.partition(";")[0]
    asked = f"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode()
    streams = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(STREAMS)]
    try:
        for stream in streams:
            stream.settimeout(PATIENCE_S)
            stream.sendall(asked)
        statuses = Counter(stream.recv(16)[9:12] for stream in streams)
        assert statuses[b"200"] == STREAMS_MAX // 2  # of one caller
        # Closed: beyond the address's connections
        assert statuses[b"200"] + statuses[b"503"] + statuses[b""] == STREAMS
        for path in ("/me", "/clients", "/overview"):
            answer = httpx.get(f"{base}{path}", headers={"Cookie": cookie}, timeout=PATIENCE_S)
            assert answer.is_success, answer.text
    finally:
        for stream in streams:
            stream.close()

    def is_free() -> bool:
        with httpx.stream("GET", f"{base}/live", headers={"Cookie": cookie}, timeout=PATIENCE_S) as stream:
            return stream.status_code == 200

    cluster.wait_for(is_free, "free again")
