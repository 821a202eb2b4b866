"""Every sync of a storage node's store takes long, and much is stored meanwhile: the node keeps its lease."""

import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.store.write_ahead import REGION_BYTES
from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.slow_disk import SlowDisk
from tests.patience import PATIENCE_S
from tests.turn_time import assert_within, timed
from wire.messages.cluster_map import partition_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: apt install gcc"),
]

PAYLOAD = "x" * 8_000
PUBLISHERS = 20
IN_FLIGHT = 100  # messages of one publisher
SESSIONS = 4
PARTITIONS = 64
WIDE = 256  # partitions, nearly each of which keeps a long message
LONG = "x" * 140_000
READS = 6  # of each kind
SHOWN_MS = 2_500  # by a command that has to start
SOON_MS = 1_500  # limit for requests that wait for no sync
STORED_S = 10 * PATIENCE_S
SERIAL = itertools.count()  # of an attempt, for its folder


@contextmanager
def _slow(tmp_path: Path, partitions: int) -> Iterator[tuple[SlowDisk, LocalCluster]]:
    """Run a cluster whose storage node has a disk with adjustable delay."""
    folder = tmp_path / str(next(SERIAL))
    folder.mkdir()
    disk = SlowDisk(folder / "control")
    with (
        disk.preloaded(folder, "/storage-0/store"),
        local_cluster("--edges", "1", "--storages", "1", "--set", f"router.partitions={partitions}") as cluster,
    ):
        yield disk, cluster


def assert_none_in_the_loop(disk: SlowDisk, cluster: LocalCluster) -> None:
    """Assert that the storage node's loop waited for no sync; the node's log lists the syncs."""
    if disk.waited:
        lines = (cluster.data / "logs" / "storage-0.log").read_text().splitlines()
        raise AssertionError("syncs in the loop:\n" + "\n".join(line for line in lines if line.startswith("slow disk")))


@pytest.mark.parametrize(("seconds", "megabytes"), [(1.0, 80), (3.0, 40)])
@timed
def test_store_with_slow_syncs_acknowledges_all(tmp_path: Path, seconds: float, megabytes: int) -> None:
    """Much QoS 1: one incarnation acknowledges all, and QoS 0 and CONNECTs continue meanwhile."""
    with _slow(tmp_path, PARTITIONS) as (disk, cluster):
        port, before = cluster.port(0, "plain"), cluster.pid("storage-0")
        partitions = set()
        for number in range(SESSIONS):
            stored = PahoClient(port, f"stored-{number}", expiry_s=3_600)
            partitions.add(partition_of(f"stored-{number}", PARTITIONS))
            stored.subscribe(f"kept/{number}", 1)
            stored.close()
        publishers = [PahoClient(port, in_flight=IN_FLIGHT) for _ in range(PUBLISHERS)]
        live = PahoClient(port)
        live.subscribe("live", 0)
        disk.set(seconds)
        all_sent = [
            publishers[number % PUBLISHERS].paho.publish(f"kept/{number % SESSIONS}", PAYLOAD, 1)
            for number in range(megabytes * 1_000_000 // len(PAYLOAD))
        ]
        ended = threading.Event()
        longest_s = [0.0]
        elsewhere = [name for name in map(str, range(100)) if partition_of(name, PARTITIONS) not in partitions]
        watch = threading.Thread(target=_watch, args=(port, elsewhere[0], live, ended, longest_s))
        watch.start()
        deadline = time.monotonic() + STORED_S
        try:
            for sent in all_sent:
                sent.wait_for_publish(max(0.0, deadline - time.monotonic()))
                assert sent.is_published(), f"not stored within {STORED_S} s"
        finally:
            disk.set()
            ended.set()
            watch.join()
        assert_none_in_the_loop(disk, cluster)
        assert cluster.pid("storage-0") == before
        assert "this incarnation" not in (cluster.data / "logs" / "storage-0.log").read_text()
        for client in (*publishers, live):
            client.close()
    assert_within("what does not wait for the disk", longest_s[0] * 1e3, SOON_MS)


@pytest.mark.parametrize("seconds", [0.01, 0.2, 3.0])
@timed
def test_commit_larger_than_log_region(tmp_path: Path, seconds: float) -> None:
    """Each partition stores a message's body: with many of them, one iteration writes more than a region holds.

    Leases, links and QoS 0 continue. A CONNECT may wait: during such a commit, storage reads no requests of edges.
    """
    with _slow(tmp_path, WIDE) as (disk, cluster):
        port, before = cluster.port(0, "plain"), cluster.pid("storage-0")
        names = {partition_of(name, WIDE): name for name in map(str, range(10_000))}
        for name in names.values():
            stored = PahoClient(port, name, expiry_s=3_600)
            stored.subscribe("kept/#", 1)
            stored.close()
        publishers = [PahoClient(port, in_flight=IN_FLIGHT) for _ in range(4)]
        live = PahoClient(port)
        live.subscribe("live", 0)
        publishers[0].publish("kept/warm", "", 1)
        disk.set(seconds)
        all_sent = [publisher.paho.publish("kept/now", LONG, 1) for publisher in publishers]
        ended, longest_s = threading.Event(), [0.0]
        watch = threading.Thread(target=_watch, args=(port, None, live, ended, longest_s))
        watch.start()
        try:
            for sent in all_sent:
                sent.wait_for_publish(STORED_S)
                assert sent.is_published(), f"not stored within {STORED_S} s"
        finally:
            disk.set()
            ended.set()
            watch.join()
        assert_none_in_the_loop(disk, cluster)
        assert cluster.pid("storage-0") == before
        assert "this incarnation" not in (cluster.data / "logs" / "storage-0.log").read_text()
        data = cluster.data / "storage-0" / "store-ahead"
        assert data.stat().st_size > 2 * REGION_BYTES, "no commit was larger than what its region had left"
        for client in (*publishers, live):
            client.close()
    assert_within("what does not wait for the disk", longest_s[0] * 1e3, SOON_MS)


@pytest.mark.parametrize("seconds", [0.2, 3.0])
@timed
def test_other_partitions_readable_during_hung_sync(tmp_path: Path, seconds: float) -> None:
    """One partition writes: retained messages arrive, sessions are listed, clients without a stored one connect."""
    with _slow(tmp_path, PARTITIONS) as (disk, cluster):
        port = cluster.port(0, "plain")
        written = partition_of("stored", PARTITIONS)
        stored, publisher = PahoClient(port, "stored", expiry_s=3_600), PahoClient(port, in_flight=IN_FLIGHT)
        stored.subscribe("kept", 1)
        away = next(name for name in map(str, range(100)) if partition_of(name, PARTITIONS) != written)
        PahoClient(port, away, expiry_s=3_600).close()
        topics = [f"state/{number}" for number in range(100) if partition_of(f"state/{number}", PARTITIONS) != written]
        for topic in topics[:READS]:
            publisher.publish(topic, "m", 1, True)
        disk.set(seconds)
        waiting, read_s, shown_s = [], 0.0, 0.0
        for topic in topics[:READS]:
            waiting.append(publisher.paho.publish("kept", "m", 1))
            began = time.monotonic()
            one = PahoClient(port, f"reads {topic}")
            one.paho.subscribe(topic, 0)
            assert one.receive() == (topic, "m", 0, True)
            one.close()
            read_s, began = max(read_s, time.monotonic() - began), time.monotonic()
            assert cluster.admin("session", "show", away)["session"]["client_id"] == away
            shown_s = max(shown_s, time.monotonic() - began)
        disk.set()
        for sent in waiting:
            sent.wait_for_publish(STORED_S)
            assert sent.is_published()
        assert_none_in_the_loop(disk, cluster)
        publisher.close()
        stored.close()
    assert_within("a connect and a retained message", read_s * 1e3, SOON_MS)
    assert_within("a session that is shown", shown_s * 1e3, SHOWN_MS)


def _watch(port: int, client_id: str | None, live: PahoClient, ended: threading.Event, longest_s: list[float]) -> None:
    """Connect, which asks the storage node, if there is a client ID for it, and send QoS 0, again and again."""
    while not ended.wait(0.05):
        at = time.monotonic()
        came = len(live.messages)
        one = live if client_id is None else PahoClient(port, client_id)
        one.publish("live", "now", 0)
        live.wait_for(came + 1)
        if one is not live:
            one.close()
        longest_s[0] = max(longest_s[0], time.monotonic() - at)
