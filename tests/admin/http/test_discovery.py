"""Pages that Prometheus is told of: those of all nodes of the map, also of one that is down."""

from admin.http.overview_poller import MetricsPage, pages_of
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.node_rows import StatsRow


def entry(name: str, state: str = NodeState.ACTIVE) -> NodeEntry:
    return NodeEntry(name, "edge", 1, "127.0.0.1:1", state=state)


def test_a_node_that_is_down_stays_until_the_map_forgets_it() -> None:
    """Without its page `up` would not be 0 but absent, and the alarm node_down would end by itself."""
    cluster_map = ClusterMap("c", nodes={"e1": entry("e1"), "e2": entry("e2")})
    stats = {name: StatsRow(node=name, tier="edge", zone="z", metrics=f"h:{name[1]}") for name in ("e1", "e2")}
    pages = pages_of([], cluster_map, stats)
    assert pages == [MetricsPage("e1", "edge", "z", "h:1"), MetricsPage("e2", "edge", "z", "h:2")]
    cluster_map.nodes["e2"] = entry("e2", NodeState.DEAD)
    del stats["e2"]
    assert pages_of(pages, cluster_map, stats) == pages
    stats["e2"] = StatsRow(node="e2", tier="edge", metrics="h:3")  # it began anew at another port
    assert [page.address for page in pages_of(pages, cluster_map, stats)] == ["h:1", "h:3"]
    del cluster_map.nodes["e2"], stats["e2"]
    assert [page.node for page in pages_of(pages, cluster_map, stats)] == ["e1"]
