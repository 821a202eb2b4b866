"""docs/metrics.md and the pages of a running cluster name the same families, with those that operators look for."""

import re
from pathlib import Path

import pytest

from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import local_cluster

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
WANTED = {
    *("connections", "connects_total", "disconnects_total"),
    *("takeovers_total", "packets_total", "bytes_total"),
    *("messages_received_total", "messages_delivered_total", "messages_dropped_total"),
    *("publish_ack_seconds", "subscribe_ack_seconds", "delivery_seconds"),
    *("queue_fill_ratio", "queue_oldest_seconds", "sessions"),
    *("sessions_expired_uncollected", "subscriptions", "retained_messages"),
    *("retained_bytes", "retained_budget_bytes", "raft_term"),
    *("raft_leader", "raft_commit_lag_entries", "partition_epoch"),
    *("partition_lag_ops", "partitions_under_replicated", "ring_version"),
    *("ring_moves_pending", "gossip_members", "store_wal_fsync_seconds"),
    *("store_compaction_pending_bytes", "event_loop_lag_seconds", "tls_cert_not_after_seconds"),
    "build_info",
}
HISTOGRAMS = {
    *("delivery_seconds", "publish_ack_seconds", "subscribe_ack_seconds"),
    *("event_loop_lag_seconds", "store_wal_fsync_seconds", "queue_fill_ratio"),
}
NEVER = {"hook_seconds", "store_level_files", "store_read_amplification", "overload_level", "rebalance_evicted_total"}


def documented() -> set[str]:
    """Return the families that the page names as a row's first cell or in its text, without labels."""
    names = re.findall(r"`([a-z0-9_]+)(?:\{[^}`]*\})?`", PAGE.read_text())
    return set(names)


def test_the_page_has_what_operators_look_for() -> None:
    assert WANTED - documented() == set()
    assert documented() >= NEVER, "the page says what is not here"


@pytest.mark.slow
def test_a_running_cluster_has_the_families_of_the_page() -> None:
    """Each family that operators look for is on some page; each family of a page is in the docs."""
    kinds: dict[str, str] = {}
    with local_cluster("--edges", "1") as cluster:
        client = PahoClient(cluster.port(0, "plain"))
        client.subscribe("a/#", 1)
        client.publish("a/b", "x", 1, retain=True)
        client.wait_for(1)
        for node in cluster.state["nodes"]:
            for name, kind in re.findall(r"^# TYPE stratamq_(\w+) (\w+)$", cluster.metrics(node), re.M):
                assert kinds.setdefault(name, kind) == kind, f"{name} is of two kinds"
        page = cluster.metrics("edge-0")
        client.close()
    assert WANTED - kinds.keys() == set()
    assert kinds.keys() - documented() == set()
    assert not NEVER & kinds.keys()
    assert {name for name, kind in kinds.items() if kind == "histogram"} >= HISTOGRAMS
    assert 'stratamq_connections{listener="plain",protocol="3.1.1"} 1.0' in page
    assert re.search(r"^stratamq_delivery_seconds_count [1-9]", page, re.M)
