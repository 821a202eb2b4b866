"""Exports made after kills: compacted, audited with the proof, and imported into an empty node."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from conf.errors import ExitCode
from storage.export.export_run import export_store
from tests.clients.paho_client import PahoClient
from tests.e2e.local_cluster import LocalCluster
from tests.turn_time import TRIES
from wire.sstable.manifest import read_manifest
from wire.sstable.run_reader import verify_manifest

PHASES = 3
MESSAGES = 60  # per QoS and phase
WORK = PHASES * 2 * MESSAGES
KILL_ONE = {(0, 2): "storage-0"}  # by phase and QoS: the node killed while these messages are in flight
# No edge dies while QoS 2 is in flight: paho publishes released messages again if its first reconnect fails.
KILL_MANY = {(0, 1): "storage-0", (0, 2): "storage-0", (1, 1): "edge-1", (1, 2): "storage-0", (2, 2): "storage-0"}
SUBSCRIBERS = 8
MEMBERS = 2  # of a shared group, absent
RETAINED = 20


def connected(cluster: LocalCluster, edge: int, client_id: str, *, clean: bool = False) -> PahoClient:
    """Return a client on a plain port; durable unless clean, and it comes back by itself."""
    return PahoClient(cluster.port(edge, "plain"), client_id, expiry_s=0 if clean else 3600)


def publish_all(
    client: PahoClient, topic: str, payloads: list[str], qos: int, midway: Callable[[], None] | None = None
) -> None:
    """Publish, run a callback when half is in flight, and wait for every acknowledgement."""
    handed: list[paho.MQTTMessageInfo] = []
    for number, payload in enumerate(payloads):
        if midway is not None and number == len(payloads) // 2:
            handed[number // 2].wait_for_publish(60)
            midway()
        handed.append(client.paho.publish(topic, payload, qos))
    for message in handed:
        message.wait_for_publish(60)
        assert message.is_published()


def received(client: PahoClient) -> list[tuple[str, str]]:
    """Return topic and payload of each message that has come."""
    return [(message.topic, message.payload.decode()) for message in client.messages]


def wait_for(client: PahoClient, count: int) -> list[tuple[str, str]]:
    """Wait for so many different messages: QoS 1 may bring one again when its node died."""
    client.wait(lambda: len(set(received(client))) >= count, f"{count} different messages", 30.0)
    return received(client)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_export_and_import_after_kills(folder: Path) -> None:
    """QoS 1 and 2 to absent and present sessions, with storage kills: exported, imported, complete."""
    _round(folder, spark=False)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="java is missing: apt install openjdk-17-jre-headless")
def test_audit_proves_and_compacted_runs_restore(folder: Path) -> None:
    """The same with more kills: the audit has no finding, LOST is 0, and the import reads runs compacted by Spark."""
    pytest.importorskip("pyspark", reason="pyspark is missing: make setup-jobs")
    _round(folder, spark=True)


def test_export_continues_with_new_primaries_when_node_stops(folder: Path) -> None:
    """Symptom: `cannot reach storage`, exit code 4, and the runs of the other nodes were removed."""
    options = ("--plain-port", "0", "--storages", "3", "--edges", "1")
    cluster, runs = LocalCluster(folder / "cluster", *options), folder / "cluster" / "exports" / "runs"
    try:
        cluster.wait_ready()
        for number in range(SUBSCRIBERS):
            subscriber = connected(cluster, 0, f"absent-{number}")
            subscriber.subscribe("work/+", 2)
            subscriber.close()
        os.kill(cluster.pid("storage-1"), signal.SIGSTOP)
        exported = cluster.command("store", "export", "--output", str(runs), "--data", str(cluster.data), "--json")
        cluster.kill("storage-1")
        assert exported.returncode == 0, exported.stderr
        assert "requested again" in exported.stderr
    finally:
        cluster.stop()
    assert not verify_manifest(runs)
    manifest = read_manifest(runs)
    assert len(manifest.op_index) == manifest.ring.partitions
    assert {entry.node for entry in manifest.files} <= {"storage-0", "storage-2"}
    listed = {runs / entry.path for entry in manifest.files}
    assert set(runs.rglob("*.parquet")) == listed


def _round(folder: Path, *, spark: bool) -> None:
    ledgers, runs = folder / "ledgers", folder / "cluster" / "exports" / "runs"
    options = ["--plain-port", "0", "--set", f"edge.ledger={ledgers}", "--set", f"storage.ledger={ledgers}"]
    cluster = LocalCluster(folder / "cluster", *options)
    try:
        cluster.wait_ready()
        _workload(cluster, KILL_MANY if spark else KILL_ONE)
        for _ in range(TRIES):
            exported = cluster.command("store", "export", "--output", str(runs), "--data", str(cluster.data), "--json")
            if exported.returncode != ExitCode.NOT_READY:  # a busy machine may keep either side silent for too long
                break
        assert exported.returncode == 0, exported.stderr
        assert json.loads(exported.stdout)["full"]
        late = _change_and_export_increment(cluster, runs)
    finally:
        cluster.stop()
    assert not verify_manifest(runs)
    source = _audited_and_compacted(folder, runs, ledgers) if spark else runs
    _same_rows_offline(cluster, folder, source)
    shutil.rmtree(cluster.data / "storage-0")
    store = str(cluster.data / "storage-0" / "store")
    imported = cluster.command("store", "import", "--input", str(source), "--store", store, "--node", "storage-0")
    assert imported.returncode == 0, imported.stderr
    restarted = LocalCluster(folder / "cluster", "--plain-port", "0")
    try:
        restarted.wait_ready()
        _everything_is_there(restarted, late)
    finally:
        restarted.stop()


def _workload(cluster: LocalCluster, kills: dict[tuple[int, int], str]) -> None:
    """Absent subscribers, one that stays and acknowledges, retained messages; nodes die in the middle."""
    for number in range(SUBSCRIBERS):
        subscriber = connected(cluster, number % 2, f"absent-{number}")
        subscriber.subscribe("work/+", 2)
        subscriber.subscribe("plain", 1)
        subscriber.close()
    for number in range(MEMBERS):
        member = connected(cluster, number % 2, f"member-{number}")
        member.subscribe("$share/pool/work/2", 2)
        member.close()
    present = connected(cluster, 0, "present")
    present.subscribe("work/+", 2)
    publisher = connected(cluster, 1, "publisher")
    for phase in range(PHASES):
        for qos in (1, 2):
            payloads = [f"{phase}.{qos}.{number}" for number in range(MESSAGES)]
            victim = kills.get((phase, qos))
            former = cluster.pid(victim) if victim else 0
            publish_all(publisher, f"work/{qos}", payloads, qos, partial(cluster.kill, victim) if victim else None)
            if victim:
                cluster.wait_for(partial(_restarted, cluster, victim, former), f"{victim} again")
    publisher.publish("plain", "to the letter", 1)
    for number in range(RETAINED):
        publisher.publish(f"kept/{number}", f"r{number}" * 200, 1, retain=True)
    wait_for(present, WORK)
    for client in (publisher, present):
        client.close()


def _restarted(cluster: LocalCluster, node: str, former: int) -> bool:
    return bool(cluster.state["nodes"].get(node, {}).get("pid", former) != former)


def _change_and_export_increment(cluster: LocalCluster, runs: Path) -> int:
    """Publish again and export the difference; return its number of rows."""
    publisher = connected(cluster, 0, "publisher")
    publisher.publish("work/1", "late", 1)
    publisher.close()
    exported = cluster.command(
        *("store", "export", "--output", str(runs), "--data", str(cluster.data), "--since", str(runs), "--json")
    )
    assert exported.returncode == 0, exported.stderr
    summary = json.loads(exported.stdout)
    assert not summary["full"]
    assert summary["carried"]
    assert 0 < summary["rows"] < 200
    return 1


def _audited_and_compacted(folder: Path, runs: Path, ledgers: Path) -> Path:
    """Audit with the proof, compact, audit again; return the compacted runs."""
    compacted = folder / "compacted"
    proof = _proof(runs, ledgers, folder / "report")
    assert proof["LOST"] == proof["DUPLICATED"] == 0
    assert proof["DELIVERED"] >= WORK
    assert proof["QUEUED"] >= SUBSCRIBERS * (WORK + 1)
    done = _job("compact", "--input", str(runs), "--output", str(compacted), "--all")
    assert done.returncode == 0, done.stderr
    assert _proof(compacted, ledgers, folder / "report-compacted") == proof
    return compacted


def _proof(runs: Path, ledgers: Path, report: Path) -> dict[str, int]:
    """Audit without findings, and return the proven counts."""
    audited = _job("audit", "--input", str(runs), "--ledger", str(ledgers), "--output", str(report))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    proof: dict[str, int] = json.loads((report / "summary.json").read_text())["proof"]
    return proof


def _job(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratamq", "jobs", *words], capture_output=True, text=True, timeout=600, check=False
    )


def _same_rows_offline(cluster: LocalCluster, folder: Path, full: Path) -> None:
    """The stopped store, exported by path, has the sessions and queues of the live export."""
    export_store(cluster.data / "storage-0" / "store", folder / "offline", None, 1, lambda _: None)
    offline, live = read_manifest(folder / "offline"), read_manifest(full)
    for kind in ("2", "7"):  # subscriptions, retained: unchanged since the base
        counts = [sum(entry.kinds.get(kind, 0) for entry in found.files if entry.full) for found in (offline, live)]
        assert counts[0] == counts[1] > 0, kind


def _everything_is_there(cluster: LocalCluster, late: int) -> None:
    """Assert that each absent session gets every message once, and that every retained message exists."""
    for number in range(SUBSCRIBERS):
        subscriber = connected(cluster, number % 2, f"absent-{number}")
        got = wait_for(subscriber, WORK + 1 + late)
        assert sorted({payload for topic, payload in got if topic == "work/2"}) == sorted(
            payload for topic, payload in got if topic == "work/2"
        )
        assert {payload for _, payload in got} == _expected()
        subscriber.close()
    members = [connected(cluster, number % 2, f"member-{number}") for number in range(MEMBERS)]
    cluster.wait_for(
        lambda: sum(len(member.messages) for member in members) >= PHASES * MESSAGES, "delivered to the group"
    )
    shared = sorted(payload for member in members for _, payload in received(member))
    assert shared == sorted(payload for payload in _expected() if ".2." in payload)
    for member in members:
        member.close()
    reader = connected(cluster, 0, "reader", clean=True)
    reader.subscribe("kept/+", 0)
    assert len(wait_for(reader, RETAINED)) == RETAINED
    reader.close()


def _expected() -> set[str]:
    published = {f"{phase}.{qos}.{n}" for phase in range(PHASES) for qos in (1, 2) for n in range(MESSAGES)}
    return published | {"to the letter", "late"}
