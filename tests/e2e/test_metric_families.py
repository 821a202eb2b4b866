"""docs/metrics.md and the pages of a running cluster have the same families, including the basic ones."""

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
LABELS = {  # labels of a family's series, except `le` of a histogram
    "connections": {"listener", "protocol"},
    "connects_total": {"result", "reason_code"},
    "disconnects_total": {"reason"},
    "packets_total": {"direction", "type"},
    "bytes_total": {"direction"},
    "messages_received_total": {"qos"},
    "messages_delivered_total": {"qos"},
    "messages_dropped_total": {"reason"},
    "queue_oldest_seconds": {"partition"},
    "sessions": {"state"},
    "subscriptions": {"kind"},
    "gossip_members": {"state"},
    "tls_cert_not_after_seconds": {"listener"},
    "partition_epoch": {"partition"},
    "partition_lag_ops": {"partition"},
    "build_info": {"version", "tier", "node"},
}
NEVER = {"hook_seconds", "store_level_files", "store_read_amplification", "overload_level", "rebalance_evicted_total"}


def documented() -> set[str]:
    """Return the families that the page names as a row's first cell or in its text, without labels."""
    names = re.findall(r"`([a-z0-9_]+)(?:\{[^}`]*\})?`", PAGE.read_text())
    return set(names)


def test_docs_page_has_basic_families() -> None:
    assert WANTED - documented() == set()
    assert documented() >= NEVER, "the page says what is not here"


def labels_of(page: str) -> dict[str, set[str]]:
    """Return the labels of each family that has series on a page."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^stratamq_(\w+?)(?:_bucket|_count|_sum)?(?:\{([^}]*)\})? \S+$", page, re.M):
        found.setdefault(name, set()).update(set(re.findall(r'(\w+)="', labels)) - {"le", "quantile"})
    return found


@pytest.mark.slow
def test_running_cluster_has_families_of_docs_page() -> None:
    """Each basic family is on some page; each family of a page is in the docs."""
    kinds: dict[str, str] = {}
    with local_cluster("--edges", "1") as cluster:
        client = PahoClient(cluster.port(0, "plain"))
        client.subscribe("a/#", 1)
        client.publish("a/b", "x", 1, retain=True)
        client.wait_for(1)
        absent = PahoClient(cluster.port(0, "plain"), "absent", expiry_s=60)
        absent.subscribe("a/b", 1)
        absent.close()
        client.publish("a/b", "x", 1)
        kicked = PahoClient(cluster.port(0, "plain"), "kicked")
        kicked.paho.reconnect_delay_set(60, 60)
        cluster.admin("client", "kick", "kicked")
        shown: dict[str, set[str]] = {}
        for node in cluster.state["nodes"]:
            for name, labels in labels_of(cluster.metrics(node)).items():
                shown.setdefault(name, set()).update(labels)
            for name, kind in re.findall(r"^# TYPE stratamq_(\w+) (\w+)$", cluster.metrics(node), re.M):
                assert kinds.setdefault(name, kind) == kind, f"{name} is of two kinds"
        page = cluster.metrics("edge-0")
        client.close()
        kicked.close()
    assert WANTED - kinds.keys() == set()
    assert kinds.keys() - documented() == set()
    assert not NEVER & kinds.keys()
    wrong = {name: shown.get(name) for name, wanted in LABELS.items() if shown.get(name) != wanted}
    assert not wrong, "labels are others"
    labels_in_docs = {
        name: set(labels.split(",")) for name, labels in re.findall(r"`(\w+)\{([\w,]+)\}`", PAGE.read_text())
    }
    assert not {
        name: (labels, shown[name])
        for name, labels in labels_in_docs.items()
        if name in shown and shown[name] != labels
    }
    assert {name for name, kind in kinds.items() if kind == "histogram"} >= HISTOGRAMS
    assert 'stratamq_connections{listener="plain",protocol="3.1.1"} 1.0' in page
    assert re.search(r"^stratamq_delivery_seconds_count [1-9]", page, re.M)
