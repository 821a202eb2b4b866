"""``ring export`` is complete: an independent script of ten lines computes the results of ``ring explain``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from router.core import RouterCore
from router.events import Applied, RoleChanged
from router.map.commands import Bootstrap, Command, Delegate, RegisterNode, encode_command
from router.settings import RouterLimits
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_OPERATOR, PeerKey
from wire.messages.nodes import Heartbeat
from wire.messages.operators import Admin, AdminReply
from wire.node.events import FrameArrived

VECTORS = Path(__file__).parent / "vectors" / "ring.json"
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "ring_explain.py"
OPERATOR = PeerKey("admin:ann/cli", TIER_OPERATOR, 1)
NAMES = ("client-1", "devices/7/temperature", "plant-7/line-1/x", "plant-7/line-2", "größe/ü", "a", "$SYS/broker")


class Cluster:
    """One leading router, two storage nodes, delegations."""

    def __init__(self) -> None:
        self.core = RouterCore(NodeEntry("r1", "router", 1, "h:1"), RouterLimits())
        commands: list[Command] = [
            Bootstrap("c", 16, 8, 2, 1, 2.0),
            *(RegisterNode(NodeEntry(name, tier, 1, "h:1")) for name, tier in (("r1", "router"), ("r2", "router"))),
            *(RegisterNode(NodeEntry(name, "storage", 1, "h:1")) for name in ("s1", "s2")),
            Delegate("devices", 2),
            Delegate("plant-7/line-1", 2, "r2"),
        ]
        for command in commands:
            self.core.handle(1.0, [Applied(encode_command(command))])

    def send_command(self, verb: str, **arguments: object) -> AdminReply:
        frame = FrameArrived(OPERATOR, FrameKind.CONTROL, encode_control(Admin(1, verb, arguments)))
        ready = self.core.handle(2.0, [frame])
        (reply,) = [decode_control(payload) for node, _, payload in ready.sends if node == OPERATOR.node]
        assert isinstance(reply, AdminReply)
        return reply


def explained(cluster: Cluster, name: str) -> list[Any]:
    answer: Any = cluster.send_command("ring explain", name=name).result
    return [answer["partition"], answer["primary"], answer["shard"], answer["owner"]]


def test_placement_matches_the_vectors() -> None:
    """The hash and its modulo never change, so these placements are permanent."""
    cluster = Cluster()
    found = {name: explained(cluster, name) for name in NAMES}
    assert found == json.loads(VECTORS.read_text())


def test_independent_script_reproduces_explain(tmp_path: Path) -> None:
    """Ten lines of Python and CRC-32."""
    cluster = Cluster()
    exported = tmp_path / "ring.json"
    exported.write_text(json.dumps(cluster.send_command("ring export").result))
    for name in NAMES[1:4]:
        printed = subprocess.run([sys.executable, SCRIPT, exported, name], capture_output=True, text=True, check=True)
        assert printed.stdout.split() == [str(item) for item in explained(cluster, name)]


def test_dry_run_returns_the_changes_without_applying_them() -> None:
    """The command is applied to a copy of the map; a refusal is the same as without --dry-run."""
    cluster = Cluster()
    cluster.core.handle(1.5, [RoleChanged(True, "r1")])
    before = cluster.core.machine.snapshot()
    reply: Any = cluster.send_command("ring delegate", prefix="plant-8", depth=2, pin="r2", dry_run=True)
    assert reply.ok and reply.result["shards"] == 10 and reply.result["owners_changed"] == 1
    assert cluster.send_command("ring undelegate", prefix="devices", dry_run=True).ok
    assert "no delegation" in cluster.send_command("ring undelegate", prefix="nothing", dry_run=True).error
    assert "still holds" in cluster.send_command("ring remove", node="s1", dry_run=True).error
    assert cluster.core.machine.snapshot() == before


def test_plan_and_show_include_keys_and_bytes() -> None:
    """Nodes report sizes to the leader; another router names the leader."""
    cluster = Cluster()
    assert cluster.send_command("ring plan").exit_code == 4
    cluster.core.handle(1.5, [RoleChanged(True, "r1")])
    beat = Heartbeat("s1", 1, 1.6, 9, sizes={number: (10 + number, 1000) for number in range(16)})
    other = Heartbeat("s2", 1, 1.6, 9, sizes={number: (10 + number, 1000) for number in range(16)})
    for message in (beat, other):
        peer = PeerKey(message.node, "storage", 1)
        cluster.core.handle(1.7, [FrameArrived(peer, FrameKind.CONTROL, encode_control(message))])
    shown: Any = cluster.send_command("ring show").result
    assert [(row["keys"], row["bytes"], row["state"]) for row in shown["partitions"]][3] == (13, 1000, "ok")
    cluster.core.handle(1.8, [Applied(encode_command(RegisterNode(NodeEntry("s3", "storage", 1, "h:1"))))])
    planned: Any = cluster.send_command("ring plan").result
    moves = [move for move in planned["moves"] if move["kind"] == "partition"]
    assert moves and all(move["bytes"] == 1000 and move["keys"] == 10 + move["number"] for move in moves)
    assert planned["bytes"] == 1000 * len(moves)


def test_follower_refuses_a_change_and_names_the_leader() -> None:
    cluster = Cluster()
    reply = cluster.send_command("ring rebalance")
    assert (reply.ok, reply.exit_code) == (False, 4)
    assert "does not lead" in reply.error


def test_refusals_of_the_leader_are_one_line() -> None:
    """Unknown node, last replica, plan of another epoch, no rebalance to pause."""
    cluster = Cluster()
    cluster.core.handle(1.5, [RoleChanged(True, "r1")])
    for verb, arguments, why in (
        ("ring drain", {"node": "s9"}, "unknown node s9"),
        ("ring rebalance", {"map_epoch": 1}, "plan again"),
        ("ring pause", {}, "no rebalance"),
        ("ring remove", {"node": "s1"}, "still holds 16 partitions"),
        ("ring frobnicate", {}, "knows no"),
    ):
        reply = cluster.send_command(verb, **arguments)
        assert not reply.ok and why in reply.error and "\n" not in reply.error, reply
