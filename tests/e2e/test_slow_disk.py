"""Slow or failing syncs under a real cluster: only requests that need the disk wait; no message is lost."""

import itertools
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.slow_disk import SlowDisk
from tests.patience import PATIENCE_S
from tests.turn_time import assert_within, timed
from wire.messages.cluster_map import partition_of

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: apt install gcc")

PARTITIONS = 8
SOON_MS = 1_500  # limit for requests that do not wait for a sync of 3 s
SERIAL = itertools.count()  # of an attempt, for its names


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> SlowDisk:
    return SlowDisk(tmp_path_factory.mktemp("disk") / "control")


@pytest.fixture(scope="module")
def cluster(disk: SlowDisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with (
        disk.preloaded(tmp_path_factory.mktemp("shim"), "/storage-0/store-ahead"),
        local_cluster("--edges", "1", "--storages", "1", "--set", f"router.partitions={PARTITIONS}") as running,
    ):
        yield running


def elsewhere(beside: str, *prefixes: str) -> list[str]:
    """Return topics or client IDs of other partitions: requests of the same partition wait for the commit."""
    free = (f"{prefix}{number}" for prefix in prefixes for number in range(100))
    wanted: dict[str, str] = {}
    for key in free:
        if partition_of(key, PARTITIONS) != partition_of(beside, PARTITIONS):
            wanted.setdefault(key.rstrip("0123456789"), key)
    return [wanted[prefix] for prefix in prefixes]


def client(cluster: LocalCluster, client_id: str = "", *, expiry_s: int = 0) -> PahoClient:
    return PahoClient(cluster.port(0, "plain"), client_id, expiry_s=expiry_s)


@pytest.mark.parametrize("seconds", [0.01, 0.2, 3.0])
@timed
def test_only_requests_of_slow_partition_wait(cluster: LocalCluster, disk: SlowDisk, seconds: float) -> None:
    """CONNECTs, retained reads and QoS 0 continue during a sync; PUBACK follows it; no lease expires (3.0 > L)."""
    name = f"s{seconds}-{next(SERIAL)}-"
    retained, reads = elsewhere(name, f"{name}/retained", f"{name}-reads")
    stored, subscriber, publisher = client(cluster, name, expiry_s=1), client(cluster), client(cluster)
    stored.subscribe(f"{name}/kept", 1)
    subscriber.subscribe(f"{name}/live", 0)
    publisher.publish(retained, "there", 1, retain=True)
    publisher.publish(f"{name}/kept", "warm", 1)
    before = cluster.pid("storage-0")
    disk.set(seconds)
    try:
        begun, longest_s = time.monotonic(), 0.0
        waiting = publisher.paho.publish(f"{name}/kept", "late", 1)
        while time.monotonic() < begun + max(seconds, 0.5):
            at = time.monotonic()
            came = len(subscriber.messages)
            publisher.publish(f"{name}/live", "at once", 0)
            subscriber.wait_for(came + 1)
            reader = client(cluster, reads)
            reader.subscribe(retained, 0)
            assert reader.wait_for(1) == [f"{retained} there"]
            reader.close()
            longest_s = max(longest_s, time.monotonic() - at)
            is_published = waiting.is_published()
            assert not is_published or time.monotonic() >= begun + seconds, "acknowledged before it was synced"
        waiting.wait_for_publish(PATIENCE_S)
        assert waiting.is_published()
        assert time.monotonic() - begun >= seconds
    finally:
        disk.set()
    assert stored.wait_for(2)[-1] == f"{name}/kept late"
    assert cluster.pid("storage-0") == before
    assert "this incarnation" not in (cluster.data / "logs" / "storage-0.log").read_text()
    for one in (stored, subscriber, publisher):
        one.close()
    assert_within("what does not wait for the disk", longest_s * 1e3, SOON_MS)


def test_failed_sync_ends_process_without_acknowledgement(cluster: LocalCluster, disk: SlowDisk) -> None:
    """The node restarts from the disk; unacknowledged messages are sent again by the edge, and acknowledged."""
    stored, publisher = client(cluster, "failed", expiry_s=1), client(cluster)
    stored.subscribe("failed/kept", 1)
    publisher.publish("failed/kept", "one", 1)
    before = cluster.pid("storage-0")
    disk.set(0.3, failures=1)
    waiting = publisher.paho.publish("failed/kept", "two", 1)

    def is_started_again() -> bool:
        is_published = waiting.is_published()  # read first: the next process may acknowledge it at once
        found = cluster.is_started_again("storage-0", before)
        assert found or not is_published, "acknowledged by a node whose sync failed"
        return found

    cluster.wait_for(is_started_again, "ended")
    disk.set()
    waiting.wait_for_publish(PATIENCE_S)
    assert waiting.is_published()
    stored.wait(lambda: {bytes(message.payload) for message in stored.messages} == {b"one", b"two"}, "both came")
    assert "fdatasync" in (cluster.data / "logs" / "storage-0.log").read_text()
    for one in (stored, publisher):
        one.close()
