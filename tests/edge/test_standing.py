"""Users of the cluster with changed roles, groups or limits: their clients stay, with the current ones (P9)."""

import pytest

from access.limits.bans import Ban
from access.policy import commands as c
from access.policy.records import RuleRecord
from mqtt.properties import PropertyId
from router.policy.policy_stream import PolicyStream
from tests.edge.test_cluster_policy import ANN, BOB, CLOSED, DEVICE, HASH, Cluster, codes
from wire.messages.sessions import SubscribeSession, UnsubscribeSession

OTHERS = c.PutRole("others", (RuleRecord(True, 31, "b/#"),))
PLANT = c.PutGroup("plant", ("device",))


@pytest.mark.parametrize(
    "taking",
    [
        c.ChangeUser("ann", None, ()),
        c.ChangeUser("ann", ("others",), ()),
        c.PutGroup("plant", ()),
        c.PutGroup("plant", ("others",)),
    ],
    ids=["out of the group", "another role", "group without roles", "group with another"],
)
def test_changed_roles_apply_to_connected_user(taking: c.SimpleCommand) -> None:
    """P9 without a disconnect: subscription, publish and delivery follow, then the epoch is acknowledged."""
    cluster = Cluster(DEVICE, OTHERS, PLANT, c.AddUser("ann", HASH, groups=("plant",)), BOB, roles=True)
    ann, bob = cluster.come(), cluster.come("bob")
    ann.subscribe("a/b")
    assert [list(packet.reason_codes) for packet in ann.read() if hasattr(packet, "reason_codes")] == [[2]]
    before = cluster.in_force
    cluster.order(taking)
    assert cluster.in_force == before, "received is not in force"
    cluster.run()
    assert cluster.in_force == cluster.machine.epoch
    assert not ann.closed and not bob.closed and not ann.client.subscriptions
    ann.read()
    ann.publish("a/b", qos=1, identifier=5)
    assert codes(ann) == [0x87]
    ann.publish("b/c", qos=1, identifier=6)
    has_others = "others" in repr(taking)
    assert codes(ann) == [0x10 if has_others else 0x87]
    cluster.order(PLANT if isinstance(taking, c.PutGroup) else c.ChangeUser("ann", (), ("plant",)))
    cluster.run()
    ann.publish("a/b", qos=1, identifier=7)
    assert codes(ann) == [0x10] and cluster.core.counts.get("logins_ended", 0) == 0


def test_role_granted_twice_is_removed_with_the_second_grant() -> None:
    """Of its own, and of its group."""
    cluster = Cluster(DEVICE, PLANT, c.AddUser("ann", HASH, roles=("device",), groups=("plant",)), roles=True)
    ann = cluster.come()
    for taking, code in ((c.ChangeUser("ann", ()), 0x10), (c.PutGroup("plant", ()), 0x87)):
        cluster.order(taking)
        cluster.run()
        ann.read()
        ann.publish("a/b", qos=1, identifier=5)
        assert codes(ann) == [code]


def test_consecutive_steps_apply_the_last_one() -> None:
    cluster = Cluster(DEVICE, OTHERS, c.AddUser("ann", HASH, roles=("device",)), roles=True)
    ann = cluster.come()
    cluster.order(c.ChangeUser("ann", ("others",)), c.ChangeUser("ann", ("device",)), c.ChangeUser("ann", ()))
    cluster.run()
    ann.read()
    ann.publish("a/b", qos=1, identifier=5)
    assert codes(ann) == [0x87] and not ann.closed


def test_changed_user_limit_applies_at_once() -> None:
    cluster = Cluster(DEVICE, c.AddUser("ann", HASH, roles=("device",)), roles=True)
    ann = cluster.come()
    cluster.order(c.ChangeUser("ann", None, None, {"filters_max": 1}))
    cluster.run()
    ann.read()
    ann.subscribe("a/b", "a/c")
    assert [list(packet.reason_codes) for packet in ann.read()] == [[2, 0x97]] and not ann.closed


def test_earlier_output_is_awaited_after_role_removal() -> None:
    """Schedule A2, for one client: a client that does not read for a second is closed, and the verb continues."""
    cluster = Cluster(DEVICE, c.AddUser("ann", HASH, roles=("device",)), roles=True)
    ann = cluster.come()
    ann.subscribe("a/b")
    ann.read()
    ann.publish("a/b", b"old")
    cluster.edge.turn()
    before = cluster.in_force
    cluster.order(c.ChangeUser("ann", ()))
    for _ in range(5):
        cluster.edge.turn(0.1)
    assert cluster.in_force == before and not ann.closed
    cluster.edge.turn(0.6)
    cluster.run()
    assert ann.closed and cluster.in_force == cluster.machine.epoch
    assert not [packet for packet in ann.read() if hasattr(packet, "payload")]


def test_pending_subscribe_is_authorized_at_suback() -> None:
    """Schedule A3, without a disconnect: its partition responds after the role was removed."""
    cluster = Cluster(DEVICE, c.AddUser("ann", HASH, roles=("device",)), roles=True)
    session = cluster.edge.accept(CLOSED)
    session.connect("c", username="ann", password=b"good", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 60})
    cluster.run()
    session.read()
    cluster.edge.held.add(SubscribeSession)
    session.subscribe("a/b")
    (asked,) = cluster.edge.take(SubscribeSession)
    cluster.order(c.ChangeUser("ann", ()))
    cluster.run()
    cluster.edge.held.discard(SubscribeSession)
    cluster.edge.storage(cluster.edge.reply(asked))  # type: ignore[arg-type]
    cluster.run()
    assert [list(packet.reason_codes) for packet in session.read() if hasattr(packet, "reason_codes")] == [[0x87]]
    assert [message for message in cluster.edge.seen if isinstance(message, UnsubscribeSession)]


def test_whole_view_gives_each_user_its_current_rights() -> None:
    """The step is lost; routers return the user, and unaffected clients stay."""
    cluster = Cluster(DEVICE, c.AddUser("ann", HASH, roles=("device",)), roles=True)
    ann = cluster.come()
    cluster.machine.apply(c.ChangeUser("ann", ()))
    for number in range(3_000):  # beyond the steps that a router keeps
        cluster.machine.apply(c.AddBan(Ban("user", f"u{number}")))
    cluster.stream = PolicyStream(256 * 1024)
    cluster.core.policy.router_down("r0")
    cluster.core.policy.router_up("r0")
    cluster.core.node.wake()
    cluster.run(1.0)
    ann.read()
    ann.publish("a/b", qos=1, identifier=5)
    assert codes(ann) == [0x87] and not ann.closed and cluster.in_force == cluster.machine.epoch


def test_whole_view_ends_user_disabled_and_enabled_meanwhile() -> None:
    """Schedule D1: an intruder may still hold the connection."""
    cluster = Cluster(ANN, BOB)
    ann, bob = cluster.come(), cluster.come("bob")
    cluster.machine.apply(c.SetDisabled("ann", True))
    cluster.machine.apply(c.SetDisabled("ann", False))
    for number in range(3_000):
        cluster.machine.apply(c.AddBan(Ban("user", f"u{number}")))
    cluster.stream = PolicyStream(256 * 1024)
    cluster.core.policy.router_down("r0")
    cluster.core.policy.router_up("r0")
    cluster.core.node.wake()
    cluster.run(1.0)
    assert ann.closed and not bob.closed
