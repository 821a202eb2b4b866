"""Metrics of the cluster from those of its nodes: sums, earliest expiry, and rates of two samples."""

import math

from admin.http.cluster_metrics import (
    CERTIFICATES,
    POINTS_MAX,
    ClusterMetrics,
    MetricHistory,
    cluster_metrics_of,
    drops_of,
    finite,
)
from wire.messages.node_rows import StatsRow


def edge(at_ms: int, received: float, incarnation: int = 1) -> StatsRow:
    counters = {
        'stratamq_messages_received_total{qos="1"}': received,
        'stratamq_messages_delivered_total{qos="0"}': 2 * received,
        'stratamq_messages_dropped_total{reason="slow"}': 3.0,
        'stratamq_messages_dropped_total{reason="expired"}': 0.0,
    }
    gauges = {"stratamq_clients": 4.0, 'stratamq_tls_cert_not_after_seconds{listener="tls"}': 50.0}
    row = StatsRow(node="e", incarnation=incarnation, at_ms=at_ms, ready=True)
    row.counters, row.gauges = counters, gauges
    return row


def test_cluster_metrics_sums_and_earliest_expiry() -> None:
    storage = StatsRow(node="s", ready=False, gauges={'stratamq_sessions{state="absent"}': 7.0})
    figures = cluster_metrics_of(1_000, [edge(1_000, 0.0), storage], 3, copies_met=False)
    assert (figures.nodes, figures.nodes_ready, figures.connections, figures.sessions) == (3, 1, 4, 7)
    assert figures.tls_not_after_ms == 50_000 and not figures.copies_met
    assert drops_of([edge(0, 0.0), edge(0, 0.0)]) == {"slow": 6}


def test_cluster_metrics_ignore_non_finite_values() -> None:
    """One node with such values stopped the service."""
    row = edge(1_000, math.inf)
    assert row.gauges is not None
    row.gauges |= {"stratamq_clients": math.nan, CERTIFICATES + '{listener="tls"}': math.inf}
    figures = cluster_metrics_of(1_000, [finite(row), edge(1_000, 0.0)], 2, copies_met=True)
    assert (figures.connections, figures.tls_not_after_ms) == (4, 50_000)
    assert drops_of([finite(row)]) == {"slow": 3}


def test_history_rate_needs_two_samples_of_one_incarnation() -> None:
    """A restarted node adds no rate until its second sample, and the history is bounded."""
    history = MetricHistory()
    assert history.take(ClusterMetrics(), [edge(0, 100.0)]).in_per_s == 0.0
    figures = history.take(ClusterMetrics(), [edge(2_000, 300.0)])
    assert (figures.in_per_s, figures.out_per_s) == (100.0, 200.0)
    assert history.take(ClusterMetrics(), [edge(3_000, 5.0, incarnation=2)]).in_per_s == 0.0
    for at_ms in range(POINTS_MAX + 10):
        history.keep(ClusterMetrics(at_ms=at_ms))
    columns = history.columns()
    assert len(columns["at"]) == POINTS_MAX and columns["at"][0] == 0.01
