"""A client with expensive filters ends no node: SUBACK refuses filters that are too expensive to match."""

import itertools
from collections.abc import Iterator

import pytest

from mqtt.packets import Puback, Publish, Suback, Subscribe, SubscriptionRequest
from mqtt.properties import PropertyId
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_endings import connected

FILTERS = [
    "/".join(head) + "/a" * 21 for head in itertools.islice(itertools.product("a+", repeat=10), 1000)
]  # each allowed: 31 levels
TOPIC = "/".join("a" * 31)
PER_PACKET = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("--edges", "1", "--storages", "2") as running:
        yield running


@pytest.mark.parametrize("expiry_s", [0, 3600], ids=["ephemeral", "stored"])
def test_hostile_filters_refused_and_nodes_survive(cluster: LocalCluster, expiry_s: int) -> None:
    """1 000 filters of 31 levels and one PUBLISH that would match all: 0x97 for most, and no process ends."""
    pids = {name: node["pid"] for name, node in cluster.state["nodes"].items()}
    client = connected(cluster)
    client.open(f"hostile-{expiry_s}", properties={PropertyId.SESSION_EXPIRY_INTERVAL: expiry_s})
    codes: list[int] = []
    for at in range(0, len(FILTERS), PER_PACKET):
        wanted = [SubscriptionRequest(name, 0) for name in FILTERS[at : at + PER_PACKET]]
        client.send(Subscribe(1 + at, wanted, {}))
        suback = client.read()
        assert isinstance(suback, Suback)
        codes += suback.reason_codes
    publisher = connected(cluster)
    publisher.open(f"publisher-{expiry_s}")
    publisher.send(Publish(TOPIC, b"x", 1, packet_identifier=1))
    assert isinstance(publisher.read(), Puback)
    assert client.published().topic_name == TOPIC  # granted filters are served
    assert set(codes) == {0, 0x97}
    assert {name: node["pid"] for name, node in cluster.state["nodes"].items()} == pids
    counted = cluster.metrics("edge-0") if not expiry_s else cluster.metrics("storage-0") + cluster.metrics("storage-1")
    assert "refused_filter_cost" in counted
