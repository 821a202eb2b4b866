"""Alerts become active when their condition has held for its time, and clear with it."""

from typing import Any

import msgspec

from admin.alerts import ALARMS, GROWING, Alerts, ClusterView
from admin.growth import Growth
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.node_rows import StatsRow


def view(now_s: float, **about: Any) -> ClusterView:
    cluster_map = ClusterMap("c")
    found = ClusterView(int(now_s * 1000), cluster_map, {}, (), "r1")
    return found._replace(**about)


def test_alerts_after_duration_become_active_once() -> None:
    alarms = Alerts()
    assert alarms.evaluate(view(0, silent=["edge-1"])) == ([], [])
    began, ended = alarms.evaluate(view(5, silent=["edge-1"]))
    assert [(one.name, one.about, one.since_ms) for one in began] == [("node_down", "edge-1", 0)] and not ended
    assert alarms.evaluate(view(6, silent=["edge-1"])) == ([], [])
    began, ended = alarms.evaluate(view(7))
    assert not began and [(one.name, one.ended_at_ms) for one in ended] == [("node_down", 7000)]
    assert not alarms.active and alarms.past == ended
    assert alarms.evaluate(view(8, silent=["edge-1"])) == ([], [])  # its time restarts


def test_conditions() -> None:
    """Each in one evaluation, or in two if it has a duration."""
    alarms = Alerts()
    cluster_map = ClusterMap("c")
    cluster_map.partitions = [PartitionEntry(), PartitionEntry()]
    ends = {'stratamq_tls_cert_not_after_seconds{listener="tls"}': 3 * 86_400.0}
    stats = {
        "s1": StatsRow(node="s1", version="1", disk_free_bytes=5, disk_bytes=100, gauges=ends),
        "s2": StatsRow(node="s2", version="2", queue_oldest_s=700.0, ready=False, why_not_ready=["no lease"]),
    }
    for now in (0, 400, 90_000):
        alarms.evaluate(view(now, map=cluster_map, stats=stats, offsets_ms={"s1": 300.0}))
    names = {(one.name, one.severity) for one in alarms.active}
    assert names == {
        ("partition_without_primary", "critical"),
        ("disk_full", "critical"),
        ("certificate_7_days", "critical"),
        ("queue_oldest", "warning"),
        ("not_ready", "warning"),
        ("mixed_releases", "warning"),
        ("clock_offset", "warning"),
    }
    assert [one.severity for one in alarms.active] == sorted(one.severity for one in alarms.active)


def counted(**counters: float) -> dict[str, StatsRow]:
    """Return one edge's counters: canaries, queue_full, and connects that were refused or accepted."""
    names = {
        "canaries": "stratamq_canary_failures_total",
        "full": 'stratamq_messages_dropped_total{reason="queue_full"}',
        "refused": 'stratamq_connects_total{result="refused",reason_code="0x86"}',
        "accepted": 'stratamq_connects_total{result="accepted",reason_code="0x00"}',
        "displaced": 'stratamq_admission_ended_total{pool="edge_clients",reason="displaced_slow"}',
        "no_place": 'stratamq_admission_ended_total{pool="edge_clients",reason="refused"}',
        "silent": 'stratamq_admission_ended_total{pool="edge_links",reason="silent"}',
        "syncs": "stratamq_store_syncs_total",
        "slow": "stratamq_store_slow_syncs_total",
    }
    return {"e1": StatsRow(node="e1", incarnation=1, counters={names[key]: value for key, value in counters.items()})}


def test_alerts_on_counter_growth_clear_when_it_stops() -> None:
    """Counts from before the service started, or from more than five minutes ago, raise no alert."""
    alarms, growth = Alerts(), Growth(GROWING)

    def names(now_s: float, stats: dict[str, StatsRow]) -> set[str]:
        alarms.evaluate(view(now_s, stats=stats, grown=growth.take(int(now_s * 1000), stats)))
        return {one.name for one in alarms.active}

    assert names(0, counted(syncs=100.0, slow=50.0)) == set()
    slow = counted(syncs=200.0, slow=52.0)
    assert names(10, slow) == set() and names(80, slow) == {"sync_slow"}, "two in a hundred"
    alarms, growth = Alerts(), Growth(GROWING)
    many = {"canaries": 9.0, "full": 9.0, "refused": 900.0, "accepted": 1.0}
    assert names(0, counted(**many)) == set()
    grown = {"canaries": 11.0, "full": 10.0, "refused": 930.0, "accepted": 10.0}
    assert names(10, counted(**grown)) == {"canary_fails", "queue_full"}
    assert names(80, counted(**grown)) == {"canary_fails", "queue_full", "connects_refused"}
    assert names(250, {}) == set(), "a node that does not answer"
    assert names(260, counted(**grown)) == {"canary_fails", "queue_full"}
    for now_s in range(275, 700, 15):
        last = names(now_s, counted(**grown))
    assert last == set()
    began_anew = {"e1": msgspec.structs.replace(counted(canaries=5.0)["e1"], incarnation=2)}
    assert names(710, began_anew) == set()


def test_alerts_on_displaced_connections_of_a_pool() -> None:
    """Silent connections do not count: a port closes them without need."""
    alarms, growth = Alerts(), Growth(GROWING)
    calm = counted(displaced=0.0, no_place=0.0, silent=0.0)
    crowded = counted(displaced=15.0, no_place=15.0, silent=900.0)
    for now_s, stats in ((0, calm), (10, crowded), (80, crowded)):
        alarms.evaluate(view(now_s, stats=stats, grown=growth.take(int(now_s * 1000), stats)))
    assert [(one.name, one.about) for one in alarms.active] == [("unauthenticated_crowd", "e1 edge_clients")]


def test_conditions_of_gauges() -> None:
    """A rebalance with progress raises no alert, and a node without gossip sees no members by design."""
    alarms = Alerts()

    def names(now_s: float, moves: float, **gauges: float) -> set[str]:
        shown = {"stratamq_ring_moves_pending": moves} | {f"stratamq_{key}": value for key, value in gauges.items()}
        members = [{'stratamq_gossip_members{state="alive"}': members_seen} for members_seen in (9.0, 8.0, 0.0)]
        rows = zip("abc", members, strict=True)
        stats = {node: StatsRow(node=node, gauges=shown | members_seen) for node, members_seen in rows}
        alarms.evaluate(view(now_s, stats=stats))
        return {one.name for one in alarms.active}

    assert names(0, 5, store_full=1, turn_longest_seconds=2) == {"store_full", "loop_stalls"}
    assert names(1, 5, contradicting_nodes=1) == {"contradicting_nodes"}
    assert names(2, 5, contradicting_nodes=0) == set()
    assert names(100, 5) == set()
    assert names(200, 5) == {"gossip_disagrees"}
    assert names(899, 4) == {"gossip_disagrees"}
    assert "moves_stalled" not in names(1_700, 4) and "moves_stalled" in names(1_800, 4)
    assert "moves_stalled" not in names(1_801, 3)


def test_alerts_have_remedies() -> None:
    for alarm in ALARMS:
        assert alarm.severity in ("critical", "warning") and alarm.do and alarm.sentence and alarm.for_s >= 0
    assert len({alarm.name for alarm in ALARMS}) == len(ALARMS)
