"""Messages of nodes missing from a router's map: registrations are accepted, others wait for the map or are dropped."""

import pytest

from router.early_messages import EARLY_S, NAME_BYTES_MAX, NAME_MAX, EarlyMessages
from router.map.commands import DeclareDead
from tests.router.test_schedules_routes import Router
from wire.messages.control import Control, encode_control, join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.nodes import FollowMap, MapPage, Relay
from wire.messages.policy import AskCredentials, FetchUsers, FollowPolicy, PolicyPaged, UserRecords
from wire.messages.routes import AddRoutes, Resolve, Resolved, RouteEntry
from wire.node.events import FrameArrived

EDGE = PeerKey("e9", "edge", 7)
ASKED = [FollowPolicy(0), AskCredentials(1, "ann"), FetchUsers(2, ["ann"]), Resolve(3, 0, 1, ["t"])]


@pytest.mark.parametrize("message", ASKED, ids=lambda message: type(message).__name__)
def test_unregistered_certificate_reads_neither_users_nor_policy(message: object) -> None:
    """Regression: an edge that never registered read users' password records and the policy."""
    router = Router("e1")
    router.ready_shard(0, ["e1"])
    assert router.tell("e9", message, incarnation=7) == []  # type: ignore[arg-type]
    router.now += EARLY_S + 0.1
    router.handle()
    assert [answers for node, answers in router.sent if node == "e9"] == []
    assert router.core.counts["refused_role"] == 1


def test_unregistered_node_reads_the_map() -> None:
    """A node needs the map to register; docs/security.md documents it."""
    (page,) = Router("e1").tell("e9", FollowMap(0), incarnation=7)
    assert isinstance(page, MapPage)


def test_early_messages_run_in_order_once_the_map_has_their_sender() -> None:
    router = Router("e1")
    router.ready_shard(0, ["e1"])
    for message in (AskCredentials(1, "ann"), Resolve(3, 0, router.epoch(0), ["t"])):
        assert router.tell("e9", message, incarnation=7) == []
    router.commit(Router.register_command("e9", 7))
    router.handle()
    answers = [
        type(message) for node, message in router.sent if node == "e9" and isinstance(message, UserRecords | Resolved)
    ]
    assert answers == [UserRecords, Resolved] and "refused_role" not in router.core.counts


def test_early_messages_of_an_ended_incarnation_are_dropped() -> None:
    """Its certificate is still valid, and another incarnation of it registers."""
    router = Router("e1", "e2")
    router.commit(DeclareDead("e1", 1))
    for message in (FollowPolicy(0), AskCredentials(1, "ann"), Relay("e2", 1, b"")):
        assert router.tell("e1", message) == []
    assert router.core.counts["frames_of_dead"] == 3


def test_credentials_are_sent_for_one_login_and_counted_by_edge() -> None:
    router = Router("e1", "e2")
    for _ in range(3):
        assert router.tell("e1", AskCredentials(1, "ann"))
    assert router.tell("e2", AskCredentials(1, "ann")) and router.tell("e2", FetchUsers(2, ["ann", "bob"]))
    assert router.tell("e9", AskCredentials(1, "ann"), incarnation=7) == []
    assert router.core.policy.credentials_sent == {"e1": 3, "e2": 1}


def test_registered_edge_follows_the_policy() -> None:
    assert [type(answer) for answer in Router("e1").tell("e1", FollowPolicy(0))] == [PolicyPaged]


def test_early_messages_are_limited_per_node_across_incarnations() -> None:
    """Regression: five incarnations of one name used all places, so that registering nodes had none."""
    early = EarlyMessages()
    lives = [PeerKey("e9", "edge", life) for life in range(1, 6)]
    kept = [early.add(0.0, life, Resolve(at, 0, 1, ["t"]), 100) for life in lives for at in range(NAME_MAX // 5 + 2)]
    assert kept == [True] * NAME_MAX + [False] * 10
    other = PeerKey("e8", "edge", 1)
    assert early.add(1.0, other, FollowPolicy(0), 10)
    assert not early.add(1.0, other, FollowPolicy(0), NAME_BYTES_MAX)
    assert early.peers() == [*lives, other]
    assert len(early.take_late(EARLY_S + 0.5)) == NAME_MAX
    assert early.add(9.0, lives[0], FollowPolicy(0), 10) and early.take(lives[0]) == [FollowPolicy(0)]
    assert early.take(other) == [FollowPolicy(0)] and len(early) == 0 and early.take(other) == []


def test_early_messages_are_limited_in_bytes_per_node() -> None:
    early = EarlyMessages()
    kept = [early.add(0.0, PeerKey("e9", "edge", life), FollowPolicy(0), NAME_BYTES_MAX // 2) for life in range(3)]
    assert kept == [True, True, False]
    assert early.add(0.0, PeerKey("e8", "edge", 1), FollowPolicy(0), NAME_BYTES_MAX)


def test_messages_of_one_frame_share_its_bytes() -> None:
    """Regression: each counted as the whole frame, so that one honest frame could exceed the limit."""
    router = Router("e1")
    router.ready_shard(0, ["e1"])
    topics = [f"{number:0>1000}" for number in range(200)]
    asked: list[Control] = [Resolve(number, 0, router.epoch(0), topics) for number in range(12)]
    payload = join_controls([encode_control(message) for message in asked])
    router.handle(FrameArrived(PeerKey("e9", "edge", 7), FrameKind.CONTROLS, payload))
    assert len(payload) > NAME_BYTES_MAX // 2
    router.commit(Router.register_command("e9", 7))
    for _ in range(100):
        router.handle()
    answered = [message.request for node, message in router.sent if node == "e9" and isinstance(message, Resolved)]
    assert answered == list(range(12)) and "refused_role" not in router.core.counts


def test_routes_of_an_unregistered_node_change_no_shard() -> None:
    router = Router("e1")
    router.ready_shard(0, ["e1"])
    router.tell("e9", AddRoutes(1, 0, router.epoch(0), -1, 7, 1, [RouteEntry("t")]), incarnation=7)
    assert router.core.shards[0].routes == 0
