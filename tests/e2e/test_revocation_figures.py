"""`user disable` at three routers, three storage nodes and two edges: its duration, and no later delivery.

Slow: `pytest -s -m slow tests/e2e/test_revocation_figures.py` prints the results.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.forked_commands import run_command
from tests.patience import PATIENCE_S

OPTIONS = ("--routers", "3", "--storages", "3", "--edges", "2")
SETTINGS = ("cluster_users=true", "cluster_roles=true")
RATE = 10_000  # messages per second, in batches
BATCH_S = 0.01
PACE_S = (
    0.005  # between messages of the user: two publishers that never rest would fill both cores, and that is not idle
)


def order(cluster: LocalCluster, *words: str, password: str = "") -> None:
    more = ["--password-fd", "0"] if password else []
    result = run_command(*words, "--data", str(cluster.data), *more, given=password)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = [word for setting in SETTINGS for word in ("--set", f"edge.listeners.plain.{setting}")]
    with local_cluster(*OPTIONS, *settings) as running:
        order(running, "role", "put", "all", "--publish", "#", "--subscribe", "#")
        for name in ("load", "watch", "bob", "bert", "ben"):
            order(running, "user", "add", name, "--role", "all", password="good")
        yield running


class Publisher:
    """Publishes at QoS 1, one at a time, some 200 a second, and keeps when each acknowledgement came."""

    def __init__(self, port: int, user: str, client_id: str) -> None:
        self.client = BlockingClient(port)
        self.client.open(client_id, username=user, password=b"good")
        self.acknowledged: list[float] = []
        self.thread = threading.Thread(target=self._run, args=(user,), daemon=True)
        self.thread.start()

    def _run(self, user: str) -> None:
        with contextlib.suppress(OSError, EOFError, AssertionError):
            while True:
                code = self.client.publish(f"of/{user}", str(time.monotonic()).encode())
                if code >= 0x80:
                    return
                self.acknowledged.append(time.monotonic())
                time.sleep(PACE_S)


@contextlib.contextmanager
def load(port: int) -> Iterator[list[int]]:
    """Publish 10 000 messages a second at QoS 0; yields how many it sent."""
    client, sent, over = BlockingClient(port), [0], threading.Event()
    client.open("load", username="load", password=b"good")
    packet = bytes([0x30, 2 + 6 + 1 + 16]) + b"\x00\x06of/all\x00" + b"x" * 16
    batch = packet * round(RATE * BATCH_S)

    def run() -> None:
        due = time.monotonic()
        while not over.is_set():
            client.socket.sendall(batch)
            sent[0] += round(RATE * BATCH_S)
            due += BATCH_S
            time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def disabled(cluster: LocalCluster, user: str) -> tuple[float, int, int]:
    """Disable a user who publishes at both edges.

    Returns:
        Seconds until the command returned, with its start; later acknowledgements; deliveries of messages
        published later.
    """
    publishers = [Publisher(cluster.port(edge, "plain"), user, f"{user}-{edge}") for edge in range(2)]
    watch = BlockingClient(cluster.port(1, "plain"))
    watch.open(f"watch-{user}", username="watch", password=b"good")
    watch.subscribe(f"of/{user}", qos=0)
    published: list[float] = []

    def read() -> None:
        with contextlib.suppress(OSError, EOFError, AssertionError):
            while True:
                published.append(float(watch.published().payload))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    cluster.wait_for(lambda: len(published) > 50 and all(one.acknowledged for one in publishers), "messages")
    command = [*cluster.command_line(), "user", "disable", user, "--data", str(cluster.data)]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)  # with its start, as an operator has it
    returned = time.monotonic()
    for publisher in publishers:
        publisher.thread.join(PATIENCE_S)
        assert not publisher.thread.is_alive()
    watch.socket.close()
    reader.join(PATIENCE_S)
    behind = sum(at > returned for publisher in publishers for at in publisher.acknowledged)
    return returned - began, behind, sum(at > returned for at in published)


@pytest.mark.slow
def test_disable_in_idle_cluster(cluster: LocalCluster) -> None:
    took_s, acknowledged, delivered = disabled(cluster, "bob")
    print(f"idle: `user disable` returned in {took_s:.2f} s; behind it {acknowledged} PUBACKs, {delivered} deliveries")
    assert took_s <= 1.0 and not acknowledged and not delivered


@pytest.mark.slow
def test_disable_at_ten_thousand_messages_a_second(cluster: LocalCluster) -> None:
    with load(cluster.port(0, "plain")) as sent:
        time_before, sent_before = time.monotonic(), sent[0]
        took_s, acknowledged, delivered = disabled(cluster, "bert")
        rate = (sent[0] - sent_before) / (time.monotonic() - time_before)
    print(
        f"{rate:.0f} msg/s: `user disable` returned in {took_s:.2f} s; behind it {acknowledged} PUBACKs, "
        f"{delivered} deliveries"
    )
    assert took_s <= 2.0 and not acknowledged and not delivered


@pytest.mark.slow
def test_disable_after_election(cluster: LocalCluster) -> None:
    """Faster than the fence time of an edge: the routers know that no edge died."""
    former = _leader(cluster)
    cluster.kill(former)
    cluster.wait_for(lambda: _leader(cluster) not in ("", former), "another leader")
    took_s, acknowledged, delivered = disabled(cluster, "ben")
    print(f"behind an election: returned in {took_s:.2f} s; behind it {acknowledged} PUBACKs, {delivered} deliveries")
    assert took_s <= 4.0 and not acknowledged and not delivered


def _leader(cluster: LocalCluster) -> str:
    answer = LocalCluster.command("cluster", "status", "-o", "json", "--data", str(cluster.data))
    return str(json.loads(answer.stdout)["leader"]) if answer.returncode == 0 else ""
