"""Pipelined retained messages of one connection during failures: docs/protocol.md rule 7.11."""

import pytest

from tests.simulation.scene import EPHEMERAL, Scene

COUNT = 16  # a client's largest number of in-flight messages
PAYLOADS = [f"m{number}" for number in range(COUNT)]


@pytest.mark.parametrize("power", [False, True])
def test_primary_dies_with_retained_messages_in_flight(power: bool) -> None:
    """Live and queued copies arrive in the order sent, and each message is acknowledged."""
    scene = Scene(edges=2, storages=3, replicas=3, min_in_sync=2, partitions=8)
    live = scene.client("live", "e2", EPHEMERAL, "t/#")
    queue = scene.client("queue", "e2", None, "t/#")
    publisher = scene.client("publisher", "e1")
    for name in ("s1", "s2", "s3"):
        scene.cluster.storage(name).slow_s = 0.05
    for number, payload in enumerate(PAYLOADS):
        assert publisher.publish(f"t/{number % 12}", payload, 1, retain=True)
    scene.run(0.08)
    assert publisher.publishing
    scene.kill("s1", power=power)
    scene.until(lambda: not publisher.publishing, 20.0)
    for subscriber in (live, queue):
        scene.until(lambda of=subscriber: len(set(of.received)) == COUNT, 20.0)
        assert list(dict.fromkeys(subscriber.received)) == PAYLOADS
    scene.judge()


def test_edge_dies_with_retained_messages_in_flight() -> None:
    """The client sends them again through another edge."""
    scene = Scene(edges=3, storages=2, replicas=2, partitions=8)
    live = scene.client("live", "e2", EPHEMERAL, "t/#")
    publisher = scene.client("publisher", "e1")
    for number, payload in enumerate(PAYLOADS):
        assert publisher.publish(f"t/{number % 12}", payload, 1, retain=True)
    scene.run(0.002)
    scene.kill("e1")
    publisher.drop()
    scene.connect(publisher, "e3", 20.0)
    scene.until(lambda: not publisher.publishing, 20.0)
    scene.until(lambda: len(set(live.received)) == COUNT)
    scene.judge()
