"""A partition whose only whole copy is gone waits, says what is left, and serves that when an operator accepts it."""

import json
import shutil
from typing import Any

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import connected, publish


def test_an_operator_accepts_what_a_wiped_disk_took() -> None:
    """NIST: recover. Nothing is served before that, and nothing is given up without --yes."""
    with local_cluster("--edges", "1", "--set", "router.partitions=8") as cluster:
        former = cluster.pid("storage-0")
        cluster.kill("storage-0")
        shutil.move(cluster.data / "storage-0" / "store", cluster.data / "gone")
        cluster.wait_for(lambda: without_primary(cluster) == 8, "known to be without a primary")
        # Its node has no primary because it died; that it has nothing is known when it has come back and was asked.
        cluster.wait_for(
            lambda: all("storage-0" in row for row in recoverable(cluster)["partitions"]), "back and asked"
        )
        shown = recoverable(cluster)
        assert [row["partition"] for row in shown["partitions"]] == list(range(8))
        assert shown["partitions"][0]["storage-0"] == "nothing"
        assert shown["partitions"][0]["whole_copies"] == "none"
        refused = cluster.command("ring", "recover", "3", "--accept-loss", "edge-0", "--data", str(cluster.data))
        assert refused.returncode == 1
        assert "edge-0 is not a live storage node" in refused.stderr
        asked = ("ring", "recover", "all", "--accept-loss", "storage-0")
        unsure = cluster.command(*asked, "-o", "json", "--data", str(cluster.data))
        assert unsure.returncode == 2 and "lost for good" in unsure.stderr and "say --yes" in unsure.stderr
        assert len(json.loads(unsure.stdout)["partitions"]) == without_primary(cluster) == 8, (
            "what is left is said first"
        )
        cluster.admin(*asked, "--dry-run")
        assert without_primary(cluster) == 8
        cluster.admin(*asked, "--yes")
        served = cluster.command("ring", "recover", "3", "--data", str(cluster.data))
        assert "nothing to recover" in served.stderr
        cluster.wait_for(lambda: cluster.is_started_again("storage-0", former), "ready again")
        subscriber = connected(cluster, 0, "after", clean=False)
        subscriber.subscribe("a/#", 1)
        publish(cluster, 0, "a/b", "m", 1)
        assert subscriber.wait_for(1) == ["a/b m"]
        subscriber.close()


def recoverable(cluster: LocalCluster) -> dict[str, Any]:
    """Return what is left of each partition that waits."""
    return cluster.admin("ring", "recover", "all")


def without_primary(cluster: LocalCluster) -> int:
    """Return how many partitions nobody serves."""
    return int(cluster.admin("cluster", "status")["partitions_without_primary"])
