"""Alarms begin when their condition has held for its time, and end with it."""

from typing import Any

from admin.alarms import ALARMS, Alarms, Sight
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.look_rows_nodes import SeenStats


def sight(now_s: float, **about: Any) -> Sight:
    cluster_map = ClusterMap("c")
    found = Sight(int(now_s * 1000), cluster_map, {}, (), "r1")
    return found._replace(**about)


def test_an_alarm_waits_for_its_time_and_is_told_once() -> None:
    alarms = Alarms()
    assert alarms.look(sight(0, silent=["edge-1"])) == ([], [])
    began, ended = alarms.look(sight(5, silent=["edge-1"]))
    assert [(one.name, one.about, one.since_ms) for one in began] == [("node_down", "edge-1", 0)] and not ended
    assert alarms.look(sight(6, silent=["edge-1"])) == ([], [])
    began, ended = alarms.look(sight(7))
    assert not began and [(one.name, one.ended_at_ms) for one in ended] == [("node_down", 7000)]
    assert not alarms.active and alarms.past == ended
    assert alarms.look(sight(8, silent=["edge-1"])) == ([], [])  # its time begins anew


def test_conditions() -> None:
    """Each in one look, or in two where it has a time."""
    alarms = Alarms()
    cluster_map = ClusterMap("c")
    cluster_map.partitions = [PartitionEntry(), PartitionEntry()]
    ends = {'stratamq_tls_cert_not_after_seconds{listener="tls"}': 3 * 86_400.0}
    stats = {
        "s1": SeenStats(node="s1", version="1", disk_free_bytes=5, disk_bytes=100, gauges=ends),
        "s2": SeenStats(node="s2", version="2", queue_oldest_s=700.0, ready=False, why_not_ready=["no lease"]),
    }
    for now in (0, 400, 90_000):
        alarms.look(sight(now, map=cluster_map, stats=stats, offsets_ms={"s1": 300.0}))
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


def test_each_alarm_says_what_to_do() -> None:
    for alarm in ALARMS:
        assert alarm.severity in ("critical", "warning") and alarm.do and alarm.sentence and alarm.for_s >= 0
    assert len({alarm.name for alarm in ALARMS}) == len(ALARMS)
