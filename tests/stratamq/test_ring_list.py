"""`ring show` with figures of the primaries, and `--node` of the lists that routers answer."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stratamq.cli.main import main
from tests.admin.scripted_cluster import ScriptedCluster
from wire.messages.node_rows import ReplicaRow
from wire.messages.operators import AdminReply

LISTS = ("node list", "membership list", "operation list", "ring show")
ROWS: list[dict[str, Any]] = [
    {
        "partition": number,
        "epoch": 1,
        "primary": f"storage-{number}",
        "in_sync": [f"storage-{number}"],
        "joining": ["storage-1"] if number == 0 else [],
        "keys": 4,
        "bytes": 2048,
        "state": "ok",
    }
    for number in (0, 1)
]


@pytest.fixture
def cluster(tmp_path: Path) -> ScriptedCluster:
    made = ScriptedCluster(tmp_path, storages=2)
    nodes = [{"node": name, "tier": name.partition("-")[0], "state": "active"} for name in made.nodes]
    members = [{"member": name, "state": "alive"} for name in made.nodes]
    made.replies["node list"] = AdminReply(0, True, {"map_epoch": 7, "nodes": nodes})
    made.replies["membership list"] = AdminReply(0, True, {"members": members})
    made.replies["ring status"] = AdminReply(0, True, {"phase": "none"})
    made.replies["ring show"] = AdminReply(0, True, {"map_epoch": 7, "hash": "x", "partitions": ROWS, "shards": []})
    for number in (0, 1):
        row = ReplicaRow(partition=number, role="primary", op_index=70 + number, lag_ops=number, sessions=9)
        made.put(f"storage-{number}", "replicas", row)
    return made


async def test_the_ring_has_the_columns_that_operators_expect(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operations, lag and sessions stood in `store replicas` alone; programs get the router's rows."""
    async with cluster.running():
        cluster.map.nodes["storage-0"] = msgspec.structs.replace(cluster.map.nodes["storage-0"], zone="a")
        assert await cluster.command("ring", "show", "-o", "wide", "--filter", "partition=0") == 0
        heads, row = (line.split() for line in capsys.readouterr().out.splitlines()[2:])
        assert heads[:8] == ["PARTITION", "PRIMARY", "IN_SYNC", "EPOCH", "OP_INDEX", "LAG", "SESSIONS", "STATE"]
        assert heads[8:] == ["MOVES_PENDING", "ZONES", "JOINING", "KEYS", "BYTES"]
        assert row[:10] == ["0", "storage-0", "storage-0", "1", "70", "0", "9", "ok", "1", "a"]
        assert await cluster.command("ring", "show", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["partitions"] == ROWS
        cluster.silent.add("storage-1")
        assert await cluster.command("ring", "show") == 3
        said = capsys.readouterr()
    assert "storage-1: no answer" in said.err and "1          storage-1  storage-1  1      -" in said.out


@pytest.mark.parametrize("words", LISTS)
async def test_a_list_of_one_node(words: str, cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """`--node` was an option of every other list; a node that there is not is refused."""
    async with cluster.running():
        assert await cluster.command(*words.split(), "--node", "storage-1", "-o", "jsonl") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert await cluster.command(*words.split(), "--node", "storage-9") == 2
        assert "unknown node 'storage-9': use one of edge-0" in capsys.readouterr().err
    if words == "ring show":
        assert [row["partition"] for row in lines] == [0, 1]  # one of them is on its way there
    elif words != "operation list":
        assert len(lines) == 1 and "storage-1" in lines[0].values()


@pytest.mark.parametrize("words", [*LISTS, "client list", "session list", "store replicas", "trace list", "log"])
def test_each_list_has_the_same_options(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--help"]) in (0, None)
    shown = capsys.readouterr().out
    for option in ("--output", "--watch", "--limit", "--all", "--filter", "--node", "--columns"):
        assert option in shown, option
