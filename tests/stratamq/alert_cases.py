"""Cases for promtool, one of each rule: series, a time at which it stands for, and one at which it is quiet."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from admin.alerts import ALARMS, Alert

__all__ = ["CASES", "AlertCase", "cases_texts"]


class AlertCase(NamedTuple):
    """Series in promtool's notation, a sample each second."""

    series: Sequence[tuple[str, str]]
    fires_at_s: int
    labels: dict[str, str]  # of what fires, beside the severity
    quiet_at_s: int


N1 = {"instance": "n1", "node": "n1"}
OF = 'instance="n1",node="n1"'


def _of(name: str, values: str, *labels: str) -> tuple[str, str]:
    return f"stratamq_{name}{{{','.join((OF, *labels))}}}", values


CASES = {
    "node_down": AlertCase(
        [('up{job="stratamq",instance="n1",node="n1"}', "1x9 0x9 1x9")], 16, N1 | {"job": "stratamq"}, 13
    ),
    "no_leader": AlertCase([_of("raft_leader", "1x9 0x19 1x9")], 25, {}, 15),
    "partition_without_primary": AlertCase([_of("partitions_without_primary", "0x9 3x9 0x9")], 15, {}, 11),
    "under_replicated": AlertCase([_of("partitions_under_replicated", "0x9 3x400 0x9")], 320, {}, 200),
    "disk_low": AlertCase([_of("disk_free_bytes", "50x9 15x100"), _of("disk_bytes", "100x109")], 80, N1, 60),
    "disk_full": AlertCase([_of("disk_free_bytes", "15x9 5x100"), _of("disk_bytes", "100x109")], 30, N1, 15),
    "queue_oldest": AlertCase([_of("queue_oldest_seconds", "0+1x800", 'partition="7"')], 670, N1, 630),
    "queue_full": AlertCase(
        [_of("messages_dropped_total", "0x9 5x400", 'reason="queue_full"')], 20, N1, 350
    ),
    "store_full": AlertCase([_of("store_full", "0x9 1x9 0x9")], 15, N1, 25),
    "contradicting_nodes": AlertCase([_of("contradicting_nodes", "0x9 1x9 0x9")], 15, {}, 25),
    "unauthenticated_crowd": AlertCase(
        [_of("admission_ended_total", "0x9 0+1x900", 'pool="node_links"', 'reason="displaced_silent"')],
        110, N1 | {"pool": "node_links"}, 25,
    ),
    "copies_lag": AlertCase(
        [_of("partition_lag_ops", "0x9 20000x99", 'partition="7"')], 75, N1 | {"partition": "7"}, 40
    ),
    "sync_slow": AlertCase(
        [_of("store_syncs_total", "0+10x900"), _of("store_slow_syncs_total", "0x9 0+1x900")], 85, N1, 60
    ),
    "not_ready": AlertCase([_of("ready", "1x9 0x60 1x9")], 45, N1, 35),
    "loop_stalls": AlertCase([_of("turn_longest_seconds", "0.1x9 2x9 0.1x9")], 15, N1, 25),
    "canary_fails": AlertCase([_of("canary_failures_total", "0x9 1x60 2x9 3x500")], 100, N1, 50),
    "connects_refused": AlertCase(
        [
            _of("connects_total", "0+1x600", 'result="refused"', 'reason_code="0x86"'),
            _of("connects_total", "0+0.1x600", 'result="accepted"', 'reason_code="0x00"'),
        ],
        120, {}, 15,
    ),
    "certificate_30_days": AlertCase(
        [_of("tls_cert_not_after_seconds", "2592010x60", 'listener="tls"')], 20, N1 | {"listener": "tls"}, 5
    ),
    "certificate_7_days": AlertCase(
        [_of("tls_cert_not_after_seconds", "604810x60", 'listener="tls"')], 20, N1 | {"listener": "tls"}, 5
    ),
    "open_files": AlertCase([_of("open_files", "10x9 95x99"), _of("open_files_max", "100x109")], 75, N1, 40),
    "clock_offset": AlertCase([_of("clock_seconds", "0+1x10 12+1x100")], 80, N1, 60),
    "mixed_releases": AlertCase(
        [("stratamq_build_info{version=\"1\"}", "1x90000"), ("stratamq_build_info{version=\"2\"}", "1x90000")],
        86_500, {}, 80_000,
    ),
    "moves_stalled": AlertCase([_of("ring_moves_pending", "9-1x4 4x2000")], 1_300, {}, 700),
    "gossip_disagrees": AlertCase(
        [
            _of("gossip_members", "9x9 8x200 9x9", 'state="alive"'),
            ('stratamq_gossip_members{instance="n2",node="n2",state="alive"}', "9x300"),
            ('stratamq_gossip_members{instance="n3",node="n3",state="alive"}', "0x300"),
        ],
        140, {}, 100,
    ),
}  # fmt: skip


def cases_texts(rules: str) -> list[str]:
    """Return the files that ``promtool test rules`` takes, a day in steps of a minute apart; JSON is YAML."""
    texts = []
    for step in ("1s", "60s"):
        tests = [_test(alarm, CASES[alarm.name], step) for alarm in ALARMS if _step(CASES[alarm.name]) == step]
        texts.append(json.dumps({"rule_files": [rules], "evaluation_interval": step, "tests": tests}))
    return texts


def _step(case: AlertCase) -> str:
    return "60s" if case.fires_at_s > 10_000 else "1s"


def _test(alarm: Alert, case: AlertCase, step: str) -> dict[str, object]:
    fires = {
        "exp_labels": {"severity": alarm.severity, **case.labels},
        "exp_annotations": {"summary": alarm.sentence, "description": alarm.do},
    }
    asked = [(case.fires_at_s, [fires]), (case.quiet_at_s, [])]
    return {
        "name": alarm.name,
        "interval": step,
        "input_series": [{"series": name, "values": values} for name, values in case.series],
        "alert_rule_test": [
            {"eval_time": f"{at}s", "alertname": alarm.name, "exp_alerts": expected} for at, expected in asked
        ],
    }
