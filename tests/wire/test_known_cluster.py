"""The cluster of a node: stored in its data folder, learned from the first map, defended against others."""

import stat
from pathlib import Path

import pytest
import trio

from conf.data_folder import CLUSTER_FILE, DataFolder
from conf.errors import UserError
from tests.patience import PATIENCE_S
from tests.wire.test_hub import Node as LinkedNode
from tests.wire.test_hub import linked
from tests.wire.test_lease_holder import Node
from wire.messages.cluster_map import ClusterMap
from wire.messages.map_pages import map_pages
from wire.messages.nodes import FollowMap, MapPage
from wire.node.known_cluster import KnownCluster

ONE, OTHER = "1" * 32, "2" * 32


async def refused(node: LinkedNode) -> None:
    """Wait until a node has found another cluster at a seed, and check that it has no other effect."""
    with trio.fail_after(PATIENCE_S):
        while not node.hub.table.other_cluster:
            await trio.sleep(0.01)


def page_of(cluster_id: str, epoch: int = 4) -> MapPage:
    return map_pages(ClusterMap("c", epoch, cluster_id=cluster_id))[0]


def test_data_folder_keeps_the_cluster_across_a_restart(tmp_path: Path) -> None:
    """The file is private and synced; a damaged one is not a fresh folder."""
    folder = DataFolder(tmp_path)
    assert (folder.cluster, folder.cluster_id) == ("", "")
    folder.belong("c", ONE)
    folder.close()
    again = DataFolder(tmp_path)
    again.close()
    assert (again.cluster, again.cluster_id) == ("c", ONE)
    assert stat.S_IMODE((tmp_path / CLUSTER_FILE).stat().st_mode) == 0o600
    for damage in (b"", b"c\n", b"c 12\n", b"c " + b"g" * 32 + b"\n", b"\xff\xfe"):
        (tmp_path / CLUSTER_FILE).write_bytes(damage)
        with pytest.raises(UserError):
            DataFolder(tmp_path)


def test_lease_holder_learns_the_cluster_of_the_first_map_and_refuses_other_maps() -> None:
    """Once it has a map, a map of another cluster indicates a faulty sender: it is refused, and the node continues."""
    node = Node("r1")
    node.holder.handle(0.1, "r1", page_of(ONE))
    assert (node.holder.cluster.cluster_id, node.holder.map.epoch) == (ONE, 4)
    node.holder.follow_again(0.2)
    node.holder.beat(0.2)
    node.holder.handle(0.2, "r1", page_of(OTHER, epoch=9))
    assert (node.holder.cluster.cluster_id, node.holder.map.epoch) == (ONE, 4)
    assert not node.holder.cluster.refusal
    node.sent.clear()
    node.holder.beat(0.6)
    assert any(isinstance(message, FollowMap) for _, message in node.sent)  # it requests the map again


@pytest.mark.parametrize("theirs", [OTHER, ""])
def test_lease_holder_with_a_stored_cluster_refuses_a_first_map_of_another(theirs: str) -> None:
    """The map has no effect, and the process ends."""
    node = Node("r1")
    node.holder.cluster = KnownCluster(ONE)
    node.holder.handle(0.1, "r1", page_of(theirs))
    assert node.holder.map.epoch == 0
    assert ONE in node.holder.cluster.refusal


def test_lease_holder_with_a_stored_cluster_requests_the_map_again_from_a_router_without_one() -> None:
    """A restarted router that has not applied its log sent a map without a cluster ID, and the edge ended."""
    node = Node("r1")
    node.holder.cluster = KnownCluster(ONE)
    node.holder.handle(0.1, "r1", page_of("", epoch=0))
    assert node.holder.map.epoch == 0 and not node.holder.cluster.refusal
    node.sent.clear()
    node.holder.beat(0.6)
    assert any(isinstance(message, FollowMap) for _, message in node.sent)


async def test_seed_of_another_cluster_is_refused_at_both_ends_and_named() -> None:
    """Neither gets a frame of the other; the dialling node knows the reason."""
    router, storage = LinkedNode("router", "router-0"), LinkedNode("storage", "storage-0")
    router.hub.table.belong(OTHER)
    storage.hub.table.belong(ONE)
    async with linked(router, storage, up=False):
        await refused(storage)
        assert router.hub.refusals["hello"] >= 1
    assert router.log == storage.log == []
    assert OTHER in storage.hub.table.other_cluster and ONE in storage.hub.table.other_cluster


async def test_links_to_another_cluster_end_when_a_node_learns_its_own() -> None:
    """A fresh node with seeds of two clusters links to both until the first map names its cluster."""
    router, storage = LinkedNode("router", "router-0"), LinkedNode("storage", "storage-0")
    router.hub.table.belong(OTHER)
    async with linked(router, storage):
        assert storage.log == [("up", "router-0", 1)]
        storage.hub.table.belong(ONE)
        await storage.until(lambda: ("down", "router-0", 1) in storage.log)
        await refused(storage)
    assert storage.log == [("up", "router-0", 1), ("down", "router-0", 1), ("reset", "router-0", 1)]
