"""`stratamq doctor` and `stratamq support bundle` against nodes that answer."""

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from admin.doctor import examine
from stratamq.cli.main import main
from tests.admin.scripted_cluster import ScriptedCluster
from wire.messages.node_rows import ConfigRow, JournalRow, LogLineRow, RaftRow, StatsRow
from wire.messages.operators import AdminReply

PASSWORD = "swordfish-77"
SHORT = ("--timeout", "0.2")
KEY = bytes(range(32, 64))


@pytest.fixture
def cluster(tmp_path: Path) -> ScriptedCluster:
    made = ScriptedCluster(tmp_path, storages=2)
    made.replies["cluster status"] = AdminReply(0, True, {"leader": "router-0", "stores_aside": 0, "nodes": []})
    made.put("router-0", "raft", RaftRow(node="router-0", leader="router-0"))
    for name in made.nodes:
        made.put(name, "stats", StatsRow(node=name, version="1", ready=True, lease_left_s=2.0))
    (tmp_path / "gossip.keys").write_text(base64.b64encode(KEY).decode())
    (tmp_path / "gossip.keys").chmod(0o600)
    (tmp_path / "passwd").write_text(f"ann:{PASSWORD}\n")
    (tmp_path / "passwd").chmod(0o600)
    return made


async def test_doctor_exit_code_follows_findings(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """0 with warnings, 1 where something fails, also where a node is silent; 2 for a wrong line."""
    async with cluster.running():
        assert await cluster.command("doctor", "--over", "0", "-o", "json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["complete"] and {row["state"] for row in told["findings"]} >= {"ok", "skipped"}
        cluster.silent.add("edge-1")
        assert await cluster.command("doctor", "--over", "0", "--timeout", "0.2") == 1
        assert "is in the map as alive and does not answer" in capsys.readouterr().out
        assert await cluster.command("doctor", "--local") == 0
        capsys.readouterr()
        assert await cluster.command("doctor", "--local", "--tier", "nonsense") == 2
        assert await cluster.command("doctor", "--local", "--set", "edge.x=1") == 2
        assert await cluster.command("doctor", "--local", "--tier", "edge", "--set", "edge.nonsense=1") == 1
        assert "nonsense" in capsys.readouterr().out


@pytest.mark.slow
async def test_a_bundle_holds_no_planted_secret(
    cluster: ScriptedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a node says: a password, a key in three forms, names under pseudonyms; a silent node is exit code 3."""
    said = f"refused {PASSWORD} and {KEY.hex()} and {base64.b64encode(b'x' + KEY).decode()} of pump-17 at 10.9.8.7"
    cluster.put("edge-0", "log", LogLineRow(node="edge-0", at_ms=10**14, message=said, fields={"client_id": "pump-17"}))
    cluster.put("edge-0", "journal", JournalRow(node="edge-0", at_ms=10**14, event="drop", topic="plant/pump-17"))
    cluster.put("edge-1", "journal", JournalRow(node="edge-1", at_ms=5, event="drop", topic="before"))
    cluster.put("edge-0", "config", ConfigRow(node="edge-0", name="edge.http_url", value=f"http://a:{PASSWORD}@h/"))
    names = ("pump-17", "10.9.8.7", "plant/")
    async with cluster.running():
        for number, flags in enumerate(([], ["--pseudonyms"])):
            path = tmp_path / f"{number}.tar.gz"
            assert await cluster.command("support", "bundle", "--over", "0", "--to", str(path), *flags) == 0
            with tarfile.open(path) as archive:
                entries = [entry for entry in archive.getmembers() if entry.isfile()]
                files = {entry.name: (archive.extractfile(entry) or pytest.fail()).read() for entry in entries}
            whole = b"\n".join(files.values()).decode()
            assert not any(text in whole for text in (PASSWORD, KEY.hex(), base64.b64encode(b"x" + KEY).decode()[4:40]))
            assert all((name in whole) is not bool(flags) for name in names)
            assert "support/log/edge-0.jsonl" in files and "support/journal/edge-1.jsonl" not in files
            assert not {look.what for _, look in cluster.queries} & {"queue", "retained", "trace"}
        capsys.readouterr()
        assert await cluster.command("support", "bundle", "--over", "0", "--to", str(path)) == 1
        assert "File exists" in capsys.readouterr().err
        cluster.silent.add("edge-1")
        after = str(tmp_path / "2.tar.gz")
        assert await cluster.command("support", "bundle", "--over", "0", "--no-logs", "--to", after, *SHORT) == 3


def test_bundle_with_unwritable_path_fails_before_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was refused after half a minute, and a folder as a file that is there."""
    there = tmp_path / "there.tar.gz"
    there.touch()
    for to, said in ((there, "already exists"), (tmp_path / "no" / "b", "does not exist")):
        assert main(["support", "bundle", "--to", str(to), "--data", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err
    assert main(["support", "bundle", "--to", str(tmp_path), "--data", str(tmp_path)]) == 2
    assert "no router is known" in capsys.readouterr().err


class Disk(list[msgspec.Struct]):
    """Figures of a node whose disk has less room at the second look, and as much as before at the third."""

    FREE = (100, 90, 100)

    def __iter__(self) -> Iterator[msgspec.Struct]:
        free = self.FREE[min(self.looks, 2)] << 30
        self.looks += 1
        yield StatsRow(node="storage-0", ready=True, lease_left_s=2.0, disk_bytes=200 << 30, disk_free_bytes=free)

    looks = 0


async def test_a_burst_is_no_growth_of_a_disk(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours until a disk is full were told from two seconds: it is looked at once more, behind a longer time."""
    monkeypatch.setattr(examine, "SURE_S", 0.2)
    cluster.rows["storage-0", "stats"] = Disk()
    async with cluster.running():
        assert await cluster.command("doctor", "--over", "0.1") == 0
    assert "its disk lost" not in capsys.readouterr().out
