"""Every column of a row is filled by some tier."""

import pytest

from router.core import RouterCore
from router.settings import RouterLimits
from tests.edge.edge_harness import Edge
from tests.storage.storage_cluster import Cluster
from wire.messages.cluster_map import NodeEntry
from wire.messages.query_kinds import LOOK_KINDS, columns_of
from wire.node.node_queries import stats_columns

OF_A_PROCESS = {"config", "listeners", "log", "raft", "stats"}  # not available from a core alone
LATER = {"matches": {"detail"}}  # set by the caller that authorizes the message: admin/explanations.py


@pytest.fixture(scope="module")
def given() -> dict[str, set[str]]:
    """Return the columns filled by the cores of all tiers, by kind."""
    desks = (
        Edge().core.operators.query_server,
        Cluster(partitions=1).primary(0).core.operators.query_server,
        RouterCore(NodeEntry("r1", "router", 1, "r1:1"), RouterLimits()).looks,
    )
    found: dict[str, set[str]] = {}
    for desk in desks:
        for what, source in desk.kinds().items():
            found.setdefault(what, set()).update(source.columns)
    return found


@pytest.mark.parametrize("what", sorted(set(LOOK_KINDS) - OF_A_PROCESS))
def test_each_column_has_a_source(what: str, given: dict[str, set[str]]) -> None:
    assert set(columns_of(what)) - LATER.get(what, set()) == given[what]


def test_each_node_metric_has_a_source() -> None:
    assert set(columns_of("stats")) == set(stats_columns())
