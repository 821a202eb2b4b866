"""A record found damaged while its node serves: the node starts empty and copies from the others (R3)."""

import tempfile
from pathlib import Path

from storage.state.keys import meta_key
from storage.store.lsm_file import LsmFile
from tests.e2e.local_cluster import LocalCluster
from tests.e2e.test_cluster import connected, publish

OPTIONS = ("--edges", "1", "--storages", "3", "--set", "router.partitions=8")


def test_damage_found_late_is_quarantined_and_rebuilt() -> None:
    """Opening reads header, sentinel and newest commit; a partition's own row is read when the map arrives."""
    with tempfile.TemporaryDirectory(prefix="stratamq-test-") as folder:
        data = Path(folder) / "cluster"
        first = LocalCluster(data, *OPTIONS)
        try:
            first.wait_ready()
            absent = connected(first, 0, "absent", clean=False)
            absent.subscribe("a/#", 1)
            absent.close()
            publish(first, 0, "a/b", "kept", 1)
        finally:
            first.stop()
        for number in range(8):
            damage(data / "storage-1", number)
        second = LocalCluster(data, *OPTIONS, "--set", "router.replicas=1", "--set", "router.min_in_sync=1")
        try:
            second.wait_ready()
            assert "3 copies of every message" in second.log.read_text()  # of the map, which settings no longer move
            second.wait_for(lambda: whole(second), "whole again")
            log = (data / "logs" / "storage-1.log").read_text()
            assert log.count("quarantined as") == 1
            assert "storage-1 quarantined its damaged store (see its log)" in second.log.read_text()
            assert "checksum of the record" in log
            assert "Traceback" not in log
            absent = connected(second, 0, "absent", clean=False)
            assert absent.wait_for(1) == ["a/b kept"]
            absent.close()
        finally:
            second.stop()


def damage(node: Path, partition: int) -> None:
    """Let the partition's own row fail its checksum, in a store that is whole otherwise."""
    file = LsmFile(node / "store")
    file.connect()
    file.transact([(meta_key(partition), b"no record has this checksum")])
    file.disconnect()


def whole(cluster: LocalCluster) -> bool:
    """Return whether the damaged node was started again and every partition has its three copies."""
    log = cluster.data / "logs" / "storage-1.log"
    status = cluster.admin("cluster", "status")
    return "quarantined as" in log.read_text() and not status["partitions_under_replicated"]
