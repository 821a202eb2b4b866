"""The table of permitted messages is complete, and messages outside it change no state at any tier."""

import subprocess
import sys
import typing

import pytest

from wire.links.allowed import (
    ANSWERS,
    CELLS,
    FRAMES,
    IDENTITY,
    TIER,
    PrimaryStatus,
    fault_of,
    link_tiers,
    may_send,
    standing,
)
from wire.messages.cluster_map import ClusterMap, NodeEntry, PartitionEntry
from wire.messages.connects import ConnectAnswer, ConnectRequest
from wire.messages.control import Control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import FollowMap, Heartbeat, Moved, RegisterRequest
from wire.messages.operators import Admin
from wire.messages.routes import AddRoutes, RemoveRoutes, ReportRoutes, SenderReport

EDGE, STORAGE, ROUTER = PeerKey("e1", "edge", 5), PeerKey("s1", "storage", 6), PeerKey("r1", "router", 7)


def test_allowed_table_has_every_message_and_frame() -> None:
    """A new message without a row could not be sent by any tier."""
    assert set(CELLS) == set(
        typing.get_args(Control) + typing.get_args(ConnectRequest) + typing.get_args(ConnectAnswer)
    )
    kinds = {kind for name, kind in vars(FrameKind).items() if name.isupper()}
    assert set(FRAMES) == kinds - {FrameKind.HELLO, FrameKind.TAKEN}
    assert all(kind in CELLS for answers in ANSWERS.values() for kind in answers)


@pytest.mark.parametrize(
    ("sender", "receiver", "kind", "allowed"),
    [
        ("router", "router", FrameKind.RAFT, True),
        ("edge", "router", FrameKind.RAFT, False),
        ("storage", "storage", FrameKind.REPLICATE, True),
        ("edge", "storage", FrameKind.REPLICATE, False),
        ("edge", "storage", FrameKind.PUBLISH, True),
        ("edge", "edge", FrameKind.PUBLISH, True),
        ("storage", "edge", FrameKind.PUBLISH, False),
        ("router", "edge", FrameKind.PUSH, False),
        ("router", "edge", FrameKind.PUBLISH_ACK, False),
        ("operator", "router", FrameKind.CONTROL, True),
        ("operator", "edge", FrameKind.CONTROL, True),
        ("operator", "router", FrameKind.RAFT, False),
        ("edge", "router", FrameKind.CONTROL, True),
        ("edge", "router", 77, False),
        ("edge", "storage", FrameKind.CONTROLS, True),
        ("storage", "edge", FrameKind.CONTROLS, True),
        ("edge", "router", FrameKind.CONTROLS, True),
        ("router", "edge", FrameKind.CONTROLS, True),
        ("edge", "edge", FrameKind.CONTROLS, False),
        ("router", "storage", FrameKind.CONTROLS, False),
        ("operator", "storage", FrameKind.CONTROLS, False),
        ("edge", "storage", FrameKind.CONNECTS, True),
        ("storage", "edge", FrameKind.CONNECTS, False),
        ("router", "storage", FrameKind.CONNECTS, False),
        ("storage", "edge", FrameKind.CONNECT_ANSWERS, True),
        ("router", "edge", FrameKind.CONNECT_ANSWERS, False),
        ("edge", "edge", FrameKind.CONNECT_ANSWERS, False),
    ],
)
def test_frames_by_tier(sender: str, receiver: str, kind: int, allowed: bool) -> None:
    """An edge sends neither Raft nor replication nor PUSH (design, section 9)."""
    assert may_send(sender, receiver, kind) is allowed


def test_link_tiers_accept_operators_everywhere_and_gateways_at_routers() -> None:
    assert link_tiers("edge") == {"edge", "storage", "router", "operator"}
    assert link_tiers("storage") == {"edge", "storage", "router", "operator"}
    assert link_tiers("router") == {"edge", "storage", "router", "operator", "gateway"}


def test_gateway_may_only_follow_the_map_and_query() -> None:
    """No registration, heartbeat, route or resolution; it receives only the map and replies."""
    sent = {message.__name__ for message, cell in CELLS.items() if any(one == "gateway" for one, _ in cell.tiers)}
    received = {
        message.__name__ for message, cell in CELLS.items() if any(other == "gateway" for _, other in cell.tiers)
    }
    assert sent == {"FollowMap", "Admin"}
    assert received == {"MapPage", "MapStep", "AdminReply"}
    assert {other for cell in CELLS.values() for one, other in cell.tiers if one == "gateway"} == {"router"}
    assert not any(may_send("gateway", "router", kind) for kind in FRAMES if kind != FrameKind.CONTROL)


@pytest.mark.parametrize("receiver", ["edge", "storage", "router"])
def test_operator_may_only_query_and_send_verbs(receiver: str) -> None:
    """No registration, heartbeat, resolution, route, Raft or replication, at any tier."""
    messages = {message: cell.tiers for message, cell in CELLS.items()}
    sent = {message.__name__ for message, tiers in messages.items() if ("operator", receiver) in tiers}
    received = {message.__name__ for message, tiers in messages.items() if (receiver, "operator") in tiers}
    of_tier = {"FollowMap"} if receiver == "router" else {"StartTrace", "StopTrace"}
    assert sent == {"Query", "Admin"} | of_tier
    assert received == {"QueryResult", "AdminReply"} | ({"MapPage", "MapStep"} if receiver == "router" else set())
    assert [kind for kind in FRAMES if may_send("operator", receiver, kind)] == [FrameKind.CONTROL]


@pytest.mark.parametrize(
    ("peer", "message", "fault"),
    [
        (EDGE, RegisterRequest(1, NodeEntry("e1", "edge", 5, "h:1")), ""),
        (EDGE, RegisterRequest(1, NodeEntry("e1", "router", 5, "h:1")), IDENTITY),
        (EDGE, RegisterRequest(1, NodeEntry("e2", "edge", 5, "h:1")), IDENTITY),
        (EDGE, RegisterRequest(1, NodeEntry("e1", "edge", 6, "h:1")), IDENTITY),
        (EDGE, Heartbeat("e1", 5, 1.0, 1), ""),
        (EDGE, Heartbeat("s1", 6, 1.0, 1), IDENTITY),
        (EDGE, AddRoutes(1, 0, 1, -1, 5, 1, []), ""),
        (EDGE, AddRoutes(1, 0, 1, -1, 9, 1, []), IDENTITY),
        (EDGE, AddRoutes(1, 0, 1, 3, 5, 1, []), IDENTITY),
        (STORAGE, RemoveRoutes(0, 1, 3, 1, 1, []), ""),
        (STORAGE, RemoveRoutes(0, 1, -1, 1, 1, []), IDENTITY),
        (EDGE, ReportRoutes(0, 1, [SenderReport(-1, 5, 1, []), SenderReport(3, 5, 1, [])]), IDENTITY),
        (ROUTER, AddRoutes(1, 0, 1, -1, 5, 1, []), TIER),
        (EDGE, Admin(1, "ring show"), TIER),
        (PeerKey("op/1", "operator", 1), Admin(1, "ring show"), ""),
        (PeerKey("op/1", "operator", 1), Heartbeat("op/1", 1, 1.0, 1), TIER),
        (PeerKey("gateway/b", "gateway", 1), FollowMap(0), ""),
        (PeerKey("gateway/b", "gateway", 1), Admin(1, "ring show"), ""),
        (PeerKey("gateway/b", "gateway", 1), RegisterRequest(1, NodeEntry("b", "edge", 1, "h:1")), TIER),
        (PeerKey("gateway/b", "gateway", 1), Heartbeat("b", 1, 1.0, 1), TIER),
        (PeerKey("gateway/b", "gateway", 1), AddRoutes(1, 0, 1, -1, 1, 1, []), TIER),
        (PeerKey("c", "client", 1), Heartbeat("c", 1, 1.0, 1), TIER),
    ],
)
def test_fault_of_message_to_a_router(peer: PeerKey, message: Control, fault: str) -> None:
    """A node registers, sends heartbeats and announces routes only for itself."""
    assert fault_of(peer, "router", message) == fault


def test_moved_names_shards_from_routers_and_partitions_from_storage() -> None:
    assert fault_of(ROUTER, "edge", Moved(1, "shard", 0, 1)) == ""
    assert fault_of(STORAGE, "edge", Moved(1, "partition", 0, 1)) == ""
    assert fault_of(STORAGE, "edge", Moved(1, "shard", 0, 1)) == IDENTITY
    assert fault_of(EDGE, "storage", Moved(1, "partition", 0, 1)) == TIER


@pytest.mark.parametrize(
    ("node", "partition", "partition_epoch", "expected"),
    [
        ("s1", 0, 7, PrimaryStatus.PRIMARY),
        ("s1", 0, 5, PrimaryStatus.PRIMARY),  # only its backups changed
        ("s1", 0, 4, PrimaryStatus.OTHER),  # another one was the primary in between
        ("s1", 0, 8, PrimaryStatus.LATER),
        ("s2", 0, 7, PrimaryStatus.OTHER),
        ("s2", 0, 8, PrimaryStatus.LATER),
        ("s1", 1, 1, PrimaryStatus.OTHER),
        ("s1", -1, 1, PrimaryStatus.OTHER),
    ],
)
def test_standing_of_a_claimed_primary(
    node: str, partition: int, partition_epoch: int, expected: PrimaryStatus
) -> None:
    cluster_map = ClusterMap("c", 9, partitions=[PartitionEntry(7, "s1", ("s1", "s2"))])
    assert standing(cluster_map, node, partition, partition_epoch, since=5) is expected


def test_messages_outside_the_table_change_no_state() -> None:
    """Compares the whole state after each message type with each kind of certificate, for a core of each tier."""
    command = [sys.executable, "-m", "tests.wire.allowed_matrix"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert int(run.stdout.split()[0]) > 700
