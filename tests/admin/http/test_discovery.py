"""Service discovery for Prometheus: the pages of all nodes in the map, including unreachable ones."""

from admin.http.overview_poller import MetricsPage, pages_of
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.node_rows import StatsRow


def entry(name: str, state: str = NodeState.ACTIVE) -> NodeEntry:
    return NodeEntry(name, "edge", 1, "127.0.0.1:1", state=state)


def test_pages_of_unreachable_node_stay_until_removed() -> None:
    """Without its page `up` would be absent instead of 0, and the alert node_down would clear."""
    cluster_map = ClusterMap("c", nodes={"e1": entry("e1"), "e2": entry("e2")})
    stats = {name: StatsRow(node=name, tier="edge", zone="z", metrics=f"h:{name[1]}") for name in ("e1", "e2")}
    pages = pages_of([], cluster_map, stats)
    assert pages == [MetricsPage("e1", "edge", "z", "h:1"), MetricsPage("e2", "edge", "z", "h:2")]
    cluster_map.nodes["e2"] = entry("e2", NodeState.DEAD)
    del stats["e2"]
    assert pages_of(pages, cluster_map, stats) == pages
    stats["e2"] = StatsRow(node="e2", tier="edge", metrics="h:3")  # restarted on another port
    assert [page.address for page in pages_of(pages, cluster_map, stats)] == ["h:1", "h:3"]
    del cluster_map.nodes["e2"], stats["e2"]
    assert [page.node for page in pages_of(pages, cluster_map, stats)] == ["e1"]
