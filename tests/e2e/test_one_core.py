"""A machine with one core: all nodes and their clients share a processor, and a flood fills it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mqtt.codec import encode_packet
from mqtt.packets import Publish
from mqtt.properties import PropertyId
from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import local_cluster

MESSAGES = 100
FLOOD = encode_packet(Publish("flood", b"x" * 16), 5) * 2_000
EXPIRY = {PropertyId.SESSION_EXPIRY_INTERVAL: 3_600}


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread, and all processes that it starts, on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def test_durable_messages_beside_a_flood() -> None:
    """Each is acknowledged and stored, and no node restarts: leases and links get CPU time on the only core."""
    with _one_core(), local_cluster("--edges", "1", "--storages", "1") as cluster:
        pids = {node: cluster.pid(node) for node in cluster.state["nodes"]}
        assert all(os.sched_getaffinity(pid) == os.sched_getaffinity(0) for pid in pids.values())
        port = cluster.port(0, "plain")
        absent = BlockingClient(port)
        absent.open("absent", properties=EXPIRY)
        absent.subscribe("kept/#")
        absent.disconnect()
        flood, sender = BlockingClient(port), BlockingClient(port)
        flood.open("flood")
        sender.open("sender")
        for number in range(MESSAGES):
            flood.send(FLOOD)
            assert sender.publish(f"kept/{number}") == 0
        back = BlockingClient(port)
        back.open("absent", clean_start=False, properties=EXPIRY)
        assert [back.take().topic_name for _ in range(MESSAGES)] == [f"kept/{number}" for number in range(MESSAGES)]
        assert {node: cluster.pid(node) for node in pids} == pids
