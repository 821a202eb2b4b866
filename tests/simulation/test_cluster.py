"""All cores of a cluster together: connect, subscribe, publish, crash, resume; one seed gives one trace."""

import os
import subprocess
import sys

from tests.simulation.cluster import Cluster

DETERMINISM = """
from tests.simulation.test_cluster import life_of_a_session
cluster = life_of_a_session(7)
print(cluster.scheduler.digest, cluster.scheduler.events, cluster.scheduler.now)
"""


def life_of_a_session(seed: int) -> Cluster:
    """Publisher and subscriber on different edges; the storage node is killed; the subscriber resumes on the other."""
    cluster = Cluster(seed)
    cluster.start_all()
    publisher, subscriber = cluster.client("publisher"), cluster.client("subscriber")
    publisher.connect("e1:2")
    subscriber.connect("e2:2")
    cluster.until(lambda: publisher.connected and subscriber.connected)
    subscriber.subscribe("sensors/#", 2)
    cluster.until(lambda: subscriber.subscribed)
    for number in range(9):
        assert publisher.publish("sensors/1", f"live-{number}", number % 3)
    cluster.until(lambda: len(subscriber.received) == 9 and not publisher.busy)

    subscriber.disconnect()
    cluster.run(1.0)
    for number in range(8):
        publisher.publish("sensors/2", f"queued-{number}", 1 + number % 2)
    cluster.until(lambda: not publisher.busy)
    cluster.kill("s1")
    cluster.run(0.3)
    for number in range(6):
        publisher.publish("sensors/3", f"while-down-{number}", 1 + number % 2)
    cluster.run(0.3)
    assert publisher.busy, "nothing was acknowledged without the storage node"
    cluster.start("s1")
    subscriber.connect("e1:2")
    cluster.until(lambda: len(subscriber.received) == 23 and not publisher.busy)
    assert subscriber.session_present
    cluster.run(1.0)
    assert len(subscriber.received) == 23
    return cluster


def test_connect_subscribe_publish_crash_resume() -> None:
    cluster = life_of_a_session(1)
    verdict = cluster.judge()
    assert verdict.clean, verdict.findings
    assert verdict.reports["lost"].checked >= 14
    assert verdict.reports["duplicate"].checked >= 5


def test_power_loss_keeps_acknowledged_messages() -> None:
    cluster = Cluster(3)
    cluster.start_all()
    publisher, subscriber = cluster.client("publisher"), cluster.client("subscriber")
    subscriber.connect("e2:2")
    publisher.connect("e1:2")
    cluster.until(lambda: publisher.connected and subscriber.connected)
    subscriber.subscribe("a/+", 1)
    cluster.until(lambda: subscriber.subscribed)
    subscriber.drop()
    for number in range(10):
        publisher.publish("a/b", f"m{number}", 1)
        cluster.run(0.001)
    cluster.kill("s1", power=True)
    cluster.run(0.2)
    cluster.start("s1")
    subscriber.connect("e1:2")
    cluster.until(lambda: len(subscriber.received) == 10 and not publisher.busy)
    assert subscriber.received == [f"m{number}" for number in range(10)]
    assert cluster.judge().clean


def test_one_seed_is_one_trace_in_two_processes() -> None:
    lines = []
    for hash_seed in ("1", "20"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", DETERMINISM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        lines.append(done.stdout)
    assert lines[0] == lines[1]
    assert lines[0].strip()
