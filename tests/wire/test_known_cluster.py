"""The cluster that a node belongs to: remembered in its data folder, learned of the first map, kept against others."""

import stat
from pathlib import Path

import pytest
import trio

from conf.data_folder import CLUSTER_FILE, DataFolder
from conf.errors import UserError
from tests.patience import PATIENCE_S
from tests.wire.test_lease_holder import Node
from tests.wire.test_service import Node as LinkedNode
from tests.wire.test_service import linked
from wire.messages.cluster_map import ClusterMap
from wire.messages.map_pages import map_pages
from wire.messages.nodes import FollowMap, MapPage
from wire.node.known_cluster import KnownCluster

ONE, OTHER = "1" * 32, "2" * 32


async def refused(node: LinkedNode) -> None:
    """Wait until a node has found another cluster at a seed; nothing else happens then."""
    with trio.fail_after(PATIENCE_S):
        while not node.hub.table.other_cluster:
            await trio.sleep(0.01)


def page_of(cluster_id: str, epoch: int = 4) -> MapPage:
    return map_pages(ClusterMap("c", epoch, cluster_id=cluster_id))[0]


def test_data_folder_keeps_the_cluster_over_a_restart(tmp_path: Path) -> None:
    """Private and synced; a damaged file is no fresh folder."""
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


def test_lease_holder_learns_the_cluster_of_the_first_map_and_takes_no_map_of_another() -> None:
    """Once it has a map, another one says something about its sender: it is refused, and the node goes on."""
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
    assert any(isinstance(message, FollowMap) for _, message in node.sent)  # it asks again


@pytest.mark.parametrize("theirs", [OTHER, ""])
def test_lease_holder_that_remembers_a_cluster_refuses_the_first_map_of_another(theirs: str) -> None:
    """It acts by nothing of that map, and its process ends."""
    node = Node("r1")
    node.holder.cluster = KnownCluster(ONE)
    node.holder.handle(0.1, "r1", page_of(theirs))
    assert node.holder.map.epoch == 0
    assert ONE in node.holder.cluster.refusal


def test_lease_holder_that_remembers_a_cluster_requests_the_map_again_of_a_router_that_has_none_yet() -> None:
    """A router that started again and has not applied its log: an edge ended, since that map had no cluster ID."""
    node = Node("r1")
    node.holder.cluster = KnownCluster(ONE)
    node.holder.handle(0.1, "r1", page_of("", epoch=0))
    assert node.holder.map.epoch == 0 and not node.holder.cluster.refusal
    node.sent.clear()
    node.holder.beat(0.6)
    assert any(isinstance(message, FollowMap) for _, message in node.sent)


async def test_seed_of_another_cluster_is_refused_at_both_ends_and_named() -> None:
    """Neither gets a frame of the other; who dialled knows why."""
    router, storage = LinkedNode("router", "router-0"), LinkedNode("storage", "storage-0")
    router.hub.table.belong(OTHER)
    storage.hub.table.belong(ONE)
    async with linked(router, storage, up=False):
        await refused(storage)
        assert router.hub.refusals["hello"] >= 1
    assert router.log == storage.log == []
    assert OTHER in storage.hub.table.other_cluster and ONE in storage.hub.table.other_cluster


async def test_links_to_another_cluster_end_when_a_node_learns_its_own() -> None:
    """A fresh node with seeds of two clusters is linked to both until the first map names its cluster."""
    router, storage = LinkedNode("router", "router-0"), LinkedNode("storage", "storage-0")
    router.hub.table.belong(OTHER)
    async with linked(router, storage):
        assert storage.log == [("up", "router-0", 1)]
        storage.hub.table.belong(ONE)
        await storage.until(lambda: ("down", "router-0", 1) in storage.log)
        await refused(storage)
    assert storage.log == [("up", "router-0", 1), ("down", "router-0", 1), ("reset", "router-0", 1)]
