"""A router certificate outside every Raft group, at real nodes: its messages have no effect, and are counted.

Such messages stopped durable service of a cluster, granted a denied topic, and gave orders in an operator's name.
The nodes have it among their seeds, so they dial it; its own dials are refused (``test_forged_messages.py``).
"""

import re
from collections.abc import Iterator

import pytest

from access.policy.records import RoleRecord
from access.policy.step import PolicyStep, encode_step
from tests.clients.blocking import BlockingClient
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.stolen_router import STOLEN, StolenRouter, stolen_router
from tests.e2e.test_forged_messages import LIFE, control, link
from tests.e2e.test_hostile_links import authority, connect
from tests.e2e.test_stolen_certificates import Stolen
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState, PartitionEntry
from wire.messages.control import Control
from wire.messages.map_pages import MapReader
from wire.messages.nodes import FollowMap, Heartbeat, HeartbeatReply, MapPage, MapStep, RegisterRequest
from wire.messages.orders import OrderNode
from wire.messages.policy import PolicyStepped
from wire.messages.routes import Invalidate

ACTOR = "the-chief"
STORAGES = ("storage-0", "storage-1")


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.slow)], ids="{0} routers".format)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--storages", "2", "--routers", str(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def thief(cluster: LocalCluster) -> Iterator[StolenRouter]:
    with stolen_router(cluster, (*STORAGES, "edge-0")) as running:
        cluster.wait_for(lambda: is_settled(cluster), "settled")
        yield running


def is_settled(cluster: LocalCluster) -> bool:
    status = cluster.admin("cluster", "status")
    return not status["partitions_without_primary"] and status["settled_epoch"] == status["map_epoch"]


def the_map(cluster: LocalCluster) -> ClusterMap:
    """Return the map as the thief of an edge's certificate reads it: a forged step has the right digest."""
    with connect(cluster, "router-0", authority(cluster).node("edge", "edge-77")) as connection:
        stolen, reader = Stolen(connection, "edge-77"), MapReader()
        stolen.say(FollowMap(0))
        while True:
            page = stolen.hear(MapPage)[-1]
            assert isinstance(page, MapPage)
            if (cluster_map := reader.take(page)) is not None:
                return cluster_map
            stolen.say(FollowMap(0, *reader.wanted))


def orders(*verbs: tuple[str, str]) -> list[Control]:
    return [OrderNode(number, verb, subject, False, ACTOR, "admin") for number, (verb, subject) in enumerate(verbs, 1)]


def refused(cluster: LocalCluster, node: str) -> int:
    """Return how many messages a node refused for its sender's role."""
    found = re.search(r'event="refused_role"\} (\d+)', cluster.metrics(node))
    return int(found.group(1)) if found else 0


def attack(cluster: LocalCluster, thief: StolenRouter, node: str, *messages: Control) -> None:
    """Send messages to a node that dialled the thief; return when it has refused all of them."""
    before = refused(cluster, node)
    thief.say(node, *messages)
    cluster.wait_for(lambda: refused(cluster, node) >= before + len(messages), f"refused by {node}")


def serves(cluster: LocalCluster, name: str) -> BlockingClient:
    """Have a durable client get its own message; return it, connected."""
    client = BlockingClient(cluster.port(0, "plain"))
    client.open(name, properties={0x11: 60})
    client.subscribe(f"durable/{name}")
    assert client.publish(f"durable/{name}", b"mine") == 0
    return client


def test_forged_map_step_has_no_effect(cluster: LocalCluster, thief: StolenRouter) -> None:
    """Each storage node removed its partitions, and no durable CONNECT succeeded afterwards."""
    stays = serves(cluster, "map")
    before, status_before = the_map(cluster), cluster.admin("cluster", "status")
    nowhere = {number: PartitionEntry(entry.epoch + 1) for number, entry in enumerate(before.partitions)}
    step = MapStep(MapDelta(before.epoch + 1, partitions=nowhere, before=before.digest))
    for storage in STORAGES:
        attack(cluster, thief, storage, step)
    edge = before.nodes["edge-0"]
    dead = NodeEntry("edge-0", "edge", edge.incarnation, edge.address, state=NodeState.DEAD)
    attack(cluster, thief, "edge-0", MapStep(MapDelta(before.epoch + 1, (dead,), before=before.digest)), step)
    assert stays.publish("durable/map", b"again") == 0
    stays.socket.close()
    serves(cluster, "map-2").socket.close()
    after = cluster.admin("cluster", "status")
    assert is_settled(cluster) and not after["contradictions"] and after["map_epoch"] == status_before["map_epoch"]


def test_forged_policy_step_grants_no_permission(cluster: LocalCluster, thief: StolenRouter) -> None:
    """It granted a denied topic, and a later change of the role was reported as settled."""
    epoch = put_role(cluster, "other/#")
    for ahead in (1, 2):
        step = PolicyStep(epoch + ahead, roles={"device": RoleRecord("device", priority=1_000)})
        attack(cluster, thief, "edge-0", PolicyStepped(encode_step(step)))
    assert put_role(cluster, "more/#") == epoch + 1
    assert not cluster.admin("cluster", "status")["contradictions"]


def put_role(cluster: LocalCluster, denied: str) -> int:
    """Change a role; return the policy_epoch at which every node acts by it."""
    cluster.admin("role", "put", "denied", "--deny", denied)
    status = cluster.admin("policy", "status")
    assert status["settled"] and not status["waits_for"]
    return int(status["policy_epoch"])


def test_forged_operator_orders_refused(cluster: LocalCluster, thief: StolenRouter) -> None:
    """Clients were kicked, sessions deleted, listeners paused, and messages published past all rules."""
    stays = serves(cluster, "ordered")
    attack(cluster, thief, "edge-0", *orders(("listener pause", "plain"), ("reload", ""), ("client kick", "ordered")))
    for storage in STORAGES:
        attack(cluster, thief, storage, *orders(("session delete", "ordered"), ("reload", "")))
    attack(cluster, thief, "edge-0", Invalidate(1, 0, 1, ["#"]), HeartbeatReply(LIFE, 1.0, 1000.0, 10**6, STOLEN))
    assert stays.publish("durable/ordered", b"again") == 0
    stays.socket.close()
    again = BlockingClient(cluster.port(0, "plain"))
    assert again.open("ordered", clean_start=False, properties={0x11: 60}).session_present
    again.socket.close()
    assert ACTOR not in every_log(cluster)


def every_log(cluster: LocalCluster) -> str:
    """Return the logs and audits of all nodes."""
    files = [*cluster.data.rglob("*.log"), *(path for path in cluster.data.rglob("*audit*") if path.is_file())]
    assert files
    return "\n".join(path.read_text(errors="replace") for path in files)


def test_routers_refuse_forged_orders(cluster: LocalCluster) -> None:
    """Routers accept links of every registered node, and authorize the sender of each message."""
    entry = NodeEntry(STOLEN, "router", LIFE, "127.0.0.1:1")
    lines = [
        *orders(("reload", "")), RegisterRequest(1, entry), Heartbeat(STOLEN, LIFE, 1.0, 10**6),
        HeartbeatReply(LIFE, 1.0, 1000.0, 10**6, STOLEN),
    ]  # fmt: skip
    for router in [node for node in cluster.state["nodes"] if node.startswith("router")]:
        before = refused(cluster, router)
        with link(cluster, router, "router", STOLEN) as stolen:
            stolen.sendall(b"".join(control(message, number) for number, message in enumerate(lines, 1)))
            cluster.wait_for(lambda: refused(cluster, router) >= before + len(lines), f"refused by {router}")  # noqa: B023
    # The leader may be another one by now: elections under load are none of the thief's doing.
    assert cluster.admin("cluster", "status")["leader"] != STOLEN and STOLEN not in str(cluster.admin("node", "list"))
    serves(cluster, "routers").socket.close()
    assert ACTOR not in every_log(cluster)
