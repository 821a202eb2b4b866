"""Users who are not here: their wills and their retained messages go by what they may do now."""

from typing import Any

import pytest

from access.limits.bans import Ban
from access.policy import commands as c
from access.policy.records import RuleRecord
from edge.node.limits import EdgeLimits
from edge.rights.sources import Sources
from router.policy.user_answers import answers_to
from tests.edge.edge_harness import Edge
from tests.edge.rights.ruled import Vouched, acl, book, ruled, somebody
from tests.edge.session_answers import publishes
from tests.edge.test_cluster_policy import HASH, Cluster
from wire.messages.policy import FetchUsers
from wire.messages.retained import RetainedMessage
from wire.messages.wills import FireWill, SessionWill, WillFired

MAY = c.PutRole("device", (RuleRecord(True, 0x1F, "up/%u/#"),))


def fired(
    edge: Edge, owner: str, made: int = 0, *, topic: str = "up/ann/gone", client_id: str = "c", **place: Any
) -> bool:
    """Order a will to be fired; returns whether it went out, after the edge has asked whom it must."""
    edge.held |= {WillFired}
    before = edge.core.counts.get("refused_will_fired", 0)
    edge.storage(FireWill(3, 1, 1, 17, SessionWill(topic, b"bye", 1, **place), client_id, owner, made))
    edge.turn()
    return edge.core.counts.get("refused_will_fired", 0) == before


def with_user(*more: c.SimpleCommand) -> Cluster:
    return Cluster(MAY, c.AddUser("ann", HASH, roles=("device",)), *more, roles=True)


def made_of(cluster: Cluster) -> int:
    user = cluster.machine.tables.users.get("ann")
    assert user is not None
    return user.made


def test_the_will_of_a_user_with_a_role_of_the_cluster_goes_out() -> None:
    """Its roles are not at this edge: a router is asked for them, once until the policy moves."""
    cluster = with_user()
    made = made_of(cluster)
    assert fired(cluster.edge, "ann", made)
    (asked,) = cluster.edge.take(FetchUsers)
    assert asked.names == ["ann"] and not cluster.edge.take(WillFired)
    for answer in answers_to(asked, cluster.machine):
        cluster.edge.router(answer)
    cluster.edge.turn()
    assert cluster.edge.take(WillFired) and "refused_will_fired" not in cluster.core.counts
    assert fired(cluster.edge, "ann", made) and not cluster.edge.take(FetchUsers)
    assert not fired(cluster.edge, "ann", made, topic="up/bob/gone")


@pytest.mark.parametrize(
    "taken",
    [
        c.SetDisabled("ann", True),
        c.DeleteUser("ann"),
        c.PutRole("device", (RuleRecord(True, 0x1F, "down/#"),)),
        c.AddBan(Ban("user", "ann")),
        c.AddBan(Ban("client_id", "c")),
    ],
)
def test_the_will_of_a_user_that_lost_its_right_does_not(taken: c.SimpleCommand) -> None:
    """P9: what it left behind is not sent by the old right, nor kept for ever by its partition."""
    cluster = with_user()
    made = made_of(cluster)
    cluster.order(taken)
    cluster.run()
    cluster.edge.held |= {WillFired}
    cluster.edge.storage(FireWill(3, 1, 1, 17, SessionWill("up/ann/gone", b"bye", 1), "c", "ann", made))
    cluster.run(0.1)
    assert cluster.core.counts["refused_will_fired"] == 1 and len(cluster.edge.take(WillFired)) == 1


PLACE = {"address": "192.0.2.1", "fingerprint": "ab" * 32}
HERE, THERE = {"address": "2001:db8::1%eth0"}, {"address": "::ffff:192.0.2.1"}


@pytest.mark.parametrize(
    ("taken", "place", "fires"),
    [
        (Ban("address", "192.0.2.1"), PLACE, False),
        (Ban("address", "192.0.2.1"), THERE, False),
        (Ban("address", "192.0.2.2"), PLACE, True),
        (Ban("network", "192.0.2.0/24"), PLACE, False),
        (Ban("network", "2001:db8::/32"), HERE, False),
        (Ban("network", "198.51.100.0/24"), PLACE, True),
        (Ban("certificate", "ab" * 32), PLACE, False),
        (Ban("certificate", "cd" * 32), PLACE, True),
        (Ban("address", "192.0.2.1", until_utc=1.0), PLACE, True),
        (Ban("address", "192.0.2.1"), {}, True),  # of a row of an older version
    ],
)
@pytest.mark.parametrize("owner", ["ann", ""])
def test_a_will_goes_by_the_bans_of_the_address_and_the_certificate_that_left_it(
    taken: Ban, place: dict[str, str], fires: bool, owner: str
) -> None:
    """NIST: respond. Its client and its edge may be gone for long; one that nobody with a name left, too."""
    cluster = with_user(c.PutRole("device", (RuleRecord(True, 0x1F, "up/#"),)), c.AddBan(taken))
    cluster.edge.core.replace_rules(book(Sources(of_cluster=True, anonymous=("device",))))
    made = made_of(cluster) if owner else 0
    fired(cluster.edge, owner, made, **place)
    cluster.run(0.1)
    assert cluster.core.counts.get("refused_will_fired", 0) == (not fires)


def test_a_name_that_is_given_again_leaves_nothing_of_the_former_user() -> None:
    cluster = with_user()
    made = made_of(cluster)
    cluster.order(c.DeleteUser("ann"), c.AddUser("ann", HASH, roles=("device",)))
    cluster.run()
    cluster.edge.storage(FireWill(3, 1, 1, 17, SessionWill("up/ann/gone", b"bye", 1), "c", "ann", made))
    cluster.run(0.1)
    assert cluster.core.counts["refused_will_fired"] == 1


def test_without_a_router_nothing_is_said_of_a_will() -> None:
    """Its partition orders it again, of this edge or another one."""
    cluster = with_user()
    for router in list(cluster.core.lease.linked):
        cluster.core.policy.router_down(router)
    assert fired(cluster.edge, "ann", made_of(cluster))
    cluster.edge.turn(10.0)
    assert [answer.again for answer in cluster.edge.take(WillFired)] == [True]


def test_rules_that_only_a_token_brought_stand_where_no_other_decides() -> None:
    """The will was judged by them at CONNECT; a deny of the operator's takes it all the same."""
    sources = Sources(acl=acl("user ann\ntopic deny up/secret").acl, of_credentials=True)
    edge = ruled(sources)
    assert fired(edge, "ann", topic="up/any")
    assert not fired(edge, "ann", topic="up/secret")
    assert not fired(edge, "", topic="up/any")  # an anonymous client had no token
    assert not fired(Edge(rules=book(acl("user bob\ntopic write #"))), "ann", topic="up/any")


def kept(edge: Edge, *messages: RetainedMessage) -> list[str]:
    """Return the retained topics that a subscriber gets."""
    edge.retained = list(messages)
    reader = somebody(edge, "reader")
    reader.subscribe("#")
    edge.turn()
    return [publish.topic_name for publish in publishes(reader)]


def test_a_retained_message_stays_while_its_user_may_leave_it() -> None:
    """NIST: protect. With whatever client ID: which one it had is not kept."""
    edge = ruled(acl("user reader\ntopic read #\nuser ann\ntopic write a/#\npattern write c/%c/#"))
    messages = [
        RetainedMessage(topic, b"r", 0, owner=owner)
        for topic, owner in (("a/x", "ann"), ("b/x", "ann"), ("c/dev-7/x", "ann"), ("a/y", ""), ("c/dev-7/y", "eve"))
    ]
    assert kept(edge, *messages) == ["a/x", "c/dev-7/x", "c/dev-7/y"]
    assert edge.core.counts["dropped_retained_source"] == 2


def test_the_publisher_of_a_retained_message_may_be_left_unjudged() -> None:
    """NIST: protect. With ``recheck_retained_source = false`` it counts what the reader may receive, and that alone."""
    sources = acl("user reader\ntopic read a/#\nuser ann\ntopic write a/#")
    limits = EdgeLimits(sys_interval_s=0, recheck_retained_source=False)
    edge = Edge(limits, rules=book(sources), steps=[Vouched()])
    messages = [RetainedMessage(topic, b"r", 0, owner=owner) for topic, owner in (("a/x", "gone"), ("b/x", "ann"))]
    assert kept(edge, *messages) == ["a/x"]


def test_retained_messages_of_the_cluster_s_users_wait_for_a_router() -> None:
    cluster = with_user(c.PutRole("all", (RuleRecord(True, 0x1F, "#"),)), c.AddUser("bob", HASH, roles=("all",)))
    made = made_of(cluster)
    edge = cluster.edge
    edge.retained = [
        RetainedMessage("up/ann/x", b"r", 0, owner="ann", owner_made=made),
        RetainedMessage("up/bob/x", b"r", 0, owner="ann", owner_made=made),
        RetainedMessage("up/gone/x", b"r", 0, owner="gone", owner_made=1),
    ]
    session = cluster.come("bob")
    session.subscribe("up/#")
    cluster.run(0.1)
    assert [publish.topic_name for publish in publishes(session)] == ["up/ann/x"]
    assert cluster.core.counts["dropped_retained_source"] == 2
