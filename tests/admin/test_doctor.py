"""Each check of `stratamq doctor` finds its problem, and has a remedy."""

import datetime
import resource
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from admin.alerts import ClusterView
from admin.doctor import cluster, host
from admin.doctor.findings import FAIL, OK, SKIPPED, WARN, Check, DoctorFinding, judged, worst
from conf.errors import UserError
from wire.links.authority import DevelopmentAuthority
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState, PartitionEntry, ShardEntry
from wire.messages.node_rows import DropRow, ReplicaRow, StatsRow

NOW_MS = 1_800_000_000_000
DAY_S = 86_400
GIB = 1 << 30
FLOORS = {"storage.free_space_floor_bytes": str(GIB // 2), "storage.free_space_floor_percent": "20.0"}


def cluster_map(**about: Any) -> ClusterMap:
    made = ClusterMap("c", lease_s=2.0, replicas=2, **about)
    for tier, name in (("router", "r1"), ("edge", "e1"), ("storage", "s1"), ("storage", "s2")):
        made.nodes[name] = NodeEntry(name, tier, 1, "127.0.0.1:1", state=NodeState.ACTIVE)
    made.partitions = [PartitionEntry(1, f"s{n % 2 + 1}", in_sync=("s1", "s2")) for n in range(4)]
    made.shards = [ShardEntry(1, "r1")]
    return made


def examined(of_map: ClusterMap | None = None, stats: dict[str, StatsRow] | None = None, **more: Any) -> Any:
    view = ClusterView(NOW_MS, of_map or cluster_map(), stats or {}, more.pop("silent", ()), more.pop("leader", "r1"))
    view = view._replace(offsets_ms=more.pop("offsets_ms", {}))
    return cluster.ExaminedCluster(view, **{"status": {"stores_aside": 0}, "settings": {"e1": {}}, **more})


def found(cluster_state: cluster.ExaminedCluster) -> dict[str, str]:
    """Return the worst state of each check that is not ok."""
    states: dict[str, list[DoctorFinding]] = {}
    for finding in cluster.judge(cluster_state):
        states.setdefault(finding.check, []).append(finding)
    return {check: worst(those) for check, those in states.items() if worst(those) != OK}


def row(**about: Any) -> dict[str, StatsRow]:
    return {"s1": StatsRow(node="s1", **about)}


def gauges(**about: float) -> dict[str, StatsRow]:
    return row(gauges=about)


def test_doctor_healthy_cluster_has_one_line_per_check() -> None:
    findings = cluster.judge(examined())
    assert {finding.state for finding in findings} == {OK} and len(findings) == len(cluster.CHECKS)


WITHOUT = cluster_map()
WITHOUT.partitions[0] = PartitionEntry(1, "")
SHORT = cluster_map()
SHORT.partitions[0] = PartitionEntry(1, "s1", in_sync=("s1",))
SKEWED = cluster_map()
SKEWED.partitions = [PartitionEntry(1, "s1", in_sync=("s1", "s2"))] * 4
NO_EDGE = cluster_map()
del NO_EDGE.nodes["e1"]
CERTIFICATE = 'stratamq_tls_cert_not_after_seconds{listener="tls"}'
ANYBODY = {"edge.listeners.x.allow_anonymous": "true", "edge.listeners.x.bind": "0.0.0.0"}

WRONG = [
    (examined(silent=["e1"]), {"reachability": FAIL}),
    (examined(status={"nodes": [{"node": "e1", "state": "active", "gossip": "dead"}], "stores_aside": 0}),
     {"reachability": WARN}),
    (examined(status={"nodes": [{"node": "e1", "state": "dead", "gossip": "dead"}], "stores_aside": 0}),
     {"reachability": FAIL}),
    (examined(stats=row(ready=False, why_not_ready=["lease"])), {"reachability": FAIL}),
    (examined(stats=row(ready=False, draining=True)), {}),
    (examined(leader=""), {"leader": FAIL}),
    (examined(WITHOUT), {"primaries": FAIL}),
    (examined(SHORT), {"copies": WARN}),
    (examined(replicas=[ReplicaRow(partition=3, lag_ops=20_000)]), {"copies": WARN}),
    (examined(SKEWED), {"ring skew": WARN}),
    (examined(NO_EDGE), {"edges": WARN}),
    (examined(stats=row(lease_left_s=0.5)), {"leases": WARN}),
    (examined(stats=row(lease_left_s=0.0)), {"leases": FAIL}),
    (examined(stats=gauges(**{CERTIFICATE: NOW_MS / 1000 + 20 * DAY_S})), {"node certificates": WARN}),
    (examined(stats=gauges(**{CERTIFICATE: NOW_MS / 1000 + 6 * DAY_S})), {"node certificates": FAIL}),
    (examined(stats=gauges(**{CERTIFICATE: NOW_MS / 1000 + 31 * DAY_S})), {}),
    (examined(offsets_ms={"s1": -300.0}), {"clocks": WARN}),
    (examined(stats={"a": StatsRow(version="1"), "b": StatsRow(version="2")}), {"releases": WARN}),
    (examined(stats=row(open_files=95, open_files_max=100)), {"open files": FAIL}),
    (examined(stats=row(open_files_max=100), settings={"s1": {"edge.connections_max": "100"}}), {"open files": WARN}),
    (examined(stats=gauges(stratamq_core_dumps=1.0)), {"core dumps": WARN}),
    (examined(stats=gauges(stratamq_core_dumps=0.0)), {}),
    (examined(stats=row(disk_free_bytes=15, disk_bytes=100)), {"disks": WARN}),
    (examined(stats=row(disk_free_bytes=9, disk_bytes=100)), {"disks": FAIL}),
    (examined(stats=gauges(stratamq_store_full=1.0)), {"disks": FAIL}),
    (examined(stats=row(disk_free_bytes=GIB, disk_bytes=2 * GIB), settings={"s1": FLOORS}), {}),
    (examined(stats=row(disk_free_bytes=GIB // 2 + 1, disk_bytes=GIB), settings={"s1": FLOORS}), {"disks": WARN}),
    (examined(stats=row(disk_free_bytes=25 * GIB, disk_bytes=100 * GIB), settings={"s1": FLOORS}), {"disks": WARN}),
    (examined(stats=row(disk_free_bytes=50 * GIB, disk_bytes=100 * GIB), later_s=2.0,
              later=row(disk_free_bytes=49 * GIB, disk_bytes=100 * GIB)), {"disks": WARN}),
    (examined(stats=row(disk_free_bytes=50 * GIB, disk_bytes=100 * GIB), later_s=2.0,
              later=row(disk_free_bytes=50 * GIB - 1_000_000, disk_bytes=100 * GIB)), {}),
    (examined(stats=gauges(**{cluster.SYNCS: 0.03})), {"syncs": WARN}),
    (examined(stats=gauges(**{cluster.TURNS: 0.3})), {"loop lag": WARN}),
    (examined(stats=gauges(**{cluster.TURNS: 2.0})), {"loop lag": FAIL}),
    (examined(drops=[DropRow(node="e1", reason="slow", count=3, last_at_ms=NOW_MS - 1)]), {"drops": WARN}),
    (examined(drops=[DropRow(node="e1", reason="slow", count=3, last_at_ms=NOW_MS - 4_000_000)]), {}),
    (examined(stats=row(queue_oldest_s=601.0)), {"queues": WARN}),
    (examined(status={"stores_aside": 1}), {"damage": WARN}),
    (examined(status={}), {"damage": SKIPPED}),
    (examined(settings={"e1": ANYBODY}), {"anonymous listeners": WARN}),
    (examined(settings={"e1": {**ANYBODY, "edge.listeners.x.bind": "127.0.0.1"}}), {}),
]  # fmt: skip


@pytest.mark.parametrize(("cluster_state", "states"), WRONG)
def test_doctor_check_finds_its_problem_only(cluster_state: cluster.ExaminedCluster, states: dict[str, str]) -> None:
    assert found(cluster_state) == states
    assert all(finding.do for finding in cluster.judge(cluster_state) if finding.state in (WARN, FAIL))


def test_doctor_cases_cover_every_check() -> None:
    assert {check for _, states in WRONG for check in states} == {check.name for check in cluster.CHECKS}


def test_doctor_many_findings_are_truncated_and_counted() -> None:
    check = Check("c", "good", "do", lambda: [(WARN if n else FAIL, str(n), "x") for n in range(30)])
    findings = judged(check)
    assert len(findings) == 21 and findings[0].state == FAIL and "10 more" in findings[-1].found


def test_files_and_modes(tmp_path: Path) -> None:
    """A key that others can read fails; a file that everyone can change gives a warning."""
    reader = host.HostReader(tmp_path)
    (tmp_path / "node.key").write_text("x")
    (tmp_path / "node.key").chmod(0o640)
    (tmp_path / "store").write_text("x")
    (tmp_path / "store").chmod(0o666)
    states = {finding.about: finding.state for finding in host.judge(reader) if finding.check == "files"}
    assert states == {str(tmp_path / "node.key"): FAIL, str(tmp_path / "store"): WARN}
    (tmp_path / "node.key").chmod(0o600)
    (tmp_path / "store").chmod(0o600)
    assert [finding.state for finding in host.judge(reader) if finding.check == "files"] == [OK]


def of(findings: list[DoctorFinding], check: str) -> list[tuple[str, str]]:
    return [(finding.state, finding.found) for finding in findings if finding.check == check]


def test_doctor_configuration_mistakes_are_lines(tmp_path: Path) -> None:
    def wrong() -> None:
        raise UserError("edge.x: no such setting\nedge.y: too large")

    findings = host.judge(host.HostReader(tmp_path, check_config=wrong))
    assert of(findings, "configuration") == [(FAIL, "edge.x: no such setting"), (FAIL, "edge.y: too large")]
    assert of(host.judge(host.HostReader(tmp_path)), "configuration")[0][0] == SKIPPED


@pytest.mark.parametrize(("days", "state"), [(31, OK), (29, WARN), (6, FAIL), (-1, FAIL)])
def test_doctor_local_certificate_expiry(tmp_path: Path, days: int, state: str) -> None:
    made = DevelopmentAuthority(tmp_path, "c", datetime.datetime.now(datetime.UTC))
    end = x509.load_pem_x509_certificate(made.certificate.read_bytes()).not_valid_after_utc
    for path in tmp_path.glob("*.pem"):
        if path != made.certificate:
            path.unlink()
    reader = host.HostReader(tmp_path, now=end.timestamp() - days * DAY_S)
    assert [finding.state for finding in host.judge(reader) if finding.check == "certificates"] == [state]


def test_doctor_low_file_limit_is_warned(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        ((state, text),) = of(host.judge(host.HostReader(tmp_path)), "file limit")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert state == WARN and "may open 1024 files" in text


def test_doctor_host_problems_are_found(tmp_path: Path) -> None:
    """Another ``conf`` on the path, huge pages, swap, a full container, an old key, a damaged certificate."""
    (tmp_path / "site" / "conf").mkdir(parents=True)
    (tmp_path / "site" / "conf" / "__init__.py").touch()
    pages = tmp_path / "sys/kernel/mm/transparent_hugepage"
    pages.mkdir(parents=True)
    (pages / "enabled").write_text("[always] madvise never\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("95\n")
    (group / "memory.max").write_text("100\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "swaps").write_text("Filename\n/swapfile file 1 0 -2\n")
    keys = tmp_path / "gossip.keys"
    keys.write_text("key")
    (tmp_path / "bad.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    reader = host.HostReader(
        tmp_path, path=[str(tmp_path / "site")], proc=tmp_path / "proc", sys=tmp_path / "sys",
        now=keys.stat().st_mtime + 100 * DAY_S, settings={"e1": {"membership.key_file": str(keys)}},
    )  # fmt: skip
    findings = host.judge(reader)
    assert [finding.about for finding in findings if finding.check == "packages"] == ["conf"]
    about = {finding.about for finding in findings if finding.check == "kernel" and finding.state == WARN}
    assert about >= {"transparent huge pages", "swap", "memory"}
    assert of(findings, "gossip keys") == [(WARN, "was written 100 days ago")]
    assert of(findings, "certificates") == [(WARN, "holds no readable certificate")]


def test_doctor_disk_growth_states_measured_time() -> None:
    """A rate per hour from two seconds looked like a measurement of an hour."""
    before, after = row(disk_free_bytes=50 * GIB, disk_bytes=100 * GIB), row(disk_free_bytes=49 * GIB)
    (finding,) = [
        one for one in cluster.judge(examined(stats=before, later=after, later_s=2.0)) if one.check == "disks"
    ]
    assert "lost 1024 MiB in 2 s" in finding.found and "--over 60" in finding.found


def test_doctor_local_finds_gossip_keys(tmp_path: Path) -> None:
    """`doctor --local` skipped the age of the key in its own folder."""
    (tmp_path / "tls").mkdir()
    keys = tmp_path / "tls" / "gossip.key"
    keys.write_text("x")
    now = keys.stat().st_mtime + 100 * DAY_S
    findings = host.judge(host.HostReader(tmp_path, now=now))
    assert of(findings, "gossip keys") == [(WARN, "was written 100 days ago")]
