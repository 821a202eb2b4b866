"""A partition without its only complete copy waits, reports the rest, and serves that after an operator's consent."""

import json
import shutil
from typing import Any

from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_cluster import connected, publish


def test_operator_accepts_loss_of_wiped_disk() -> None:
    """Before that the partition serves no request, and the command requires --yes."""
    with local_cluster("--edges", "1", "--set", "router.partitions=8") as cluster:
        former = cluster.pid("storage-0")
        cluster.kill("storage-0")
        shutil.move(cluster.data / "storage-0" / "store", cluster.data / "gone")
        cluster.wait_for(lambda: without_primary(cluster) == 8, "known to be without a primary")
        # It has no primary because the node died; the empty copy is known after the node returned and reported.
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
        assert unsure.returncode == 2 and "permanently" in unsure.stderr and "with --yes" in unsure.stderr
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
    """Return the recoverable data of each waiting partition."""
    return cluster.admin("ring", "recover", "all")


def without_primary(cluster: LocalCluster) -> int:
    """Return the number of partitions without a primary."""
    return int(cluster.admin("cluster", "status")["partitions_without_primary"])
