"""Disconnected users: their wills and retained messages are authorized by current permissions."""

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
    """Order a will; return whether it was published, after the edge's requests."""
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


def test_will_of_cluster_user_is_published_with_its_role() -> None:
    """The edge requests the user from a router once until the policy changes."""
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
def test_will_is_discarded_after_permission_removal(taken: c.SimpleCommand) -> None:
    """P9: neither published by former permissions nor kept by its partition."""
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
def test_will_is_discarded_by_ban_of_its_address_or_certificate(
    taken: Ban, place: dict[str, str], fires: bool, owner: str
) -> None:
    """Also for anonymous clients, long after the client and its edge are gone."""
    cluster = with_user(c.PutRole("device", (RuleRecord(True, 0x1F, "up/#"),)), c.AddBan(taken))
    cluster.edge.core.replace_rules(book(Sources(of_cluster=True, anonymous=("device",))))
    made = made_of(cluster) if owner else 0
    fired(cluster.edge, owner, made, **place)
    cluster.run(0.1)
    assert cluster.core.counts.get("refused_will_fired", 0) == (not fires)


def test_recreated_user_does_not_inherit_will() -> None:
    cluster = with_user()
    made = made_of(cluster)
    cluster.order(c.DeleteUser("ann"), c.AddUser("ann", HASH, roles=("device",)))
    cluster.run()
    cluster.edge.storage(FireWill(3, 1, 1, 17, SessionWill("up/ann/gone", b"bye", 1), "c", "ann", made))
    cluster.run(0.1)
    assert cluster.core.counts["refused_will_fired"] == 1


def test_will_without_router_is_undecided() -> None:
    """Its partition retries at this or another edge."""
    cluster = with_user()
    for router in list(cluster.core.lease.linked):
        cluster.core.policy.router_down(router)
    assert fired(cluster.edge, "ann", made_of(cluster))
    cluster.edge.turn(10.0)
    assert [answer.again for answer in cluster.edge.take(WillFired)] == [True]


def test_token_rules_keep_will_without_other_decision() -> None:
    """They authorized it at CONNECT; a deny of the operator discards it."""
    sources = Sources(acl=acl("user ann\ntopic deny up/secret").acl, of_credentials=True)
    edge = ruled(sources)
    assert fired(edge, "ann", topic="up/any")
    assert not fired(edge, "ann", topic="up/secret")
    assert not fired(edge, "", topic="up/any")  # an anonymous client had no token
    assert not fired(Edge(rules=book(acl("user bob\ntopic write #"))), "ann", topic="up/any")


def kept(edge: Edge, *messages: RetainedMessage) -> list[str]:
    """Return the retained topics of a subscriber."""
    edge.retained = list(messages)
    reader = somebody(edge, "reader")
    reader.subscribe("#")
    edge.turn()
    return [publish.topic_name for publish in publishes(reader)]


def test_retained_message_requires_current_permission_of_its_user() -> None:
    """With any client ID, because the original one is not stored."""
    edge = ruled(acl("user reader\ntopic read #\nuser ann\ntopic write a/#\npattern write c/%c/#"))
    messages = [
        RetainedMessage(topic, b"r", 0, owner=owner)
        for topic, owner in (("a/x", "ann"), ("b/x", "ann"), ("c/dev-7/x", "ann"), ("a/y", ""), ("c/dev-7/y", "eve"))
    ]
    assert kept(edge, *messages) == ["a/x", "c/dev-7/x", "c/dev-7/y"]
    assert edge.core.counts["dropped_retained_source"] == 2


def test_recheck_retained_source_false_checks_only_the_subscriber() -> None:
    sources = acl("user reader\ntopic read a/#\nuser ann\ntopic write a/#")
    limits = EdgeLimits(sys_interval_s=0, recheck_retained_source=False)
    edge = Edge(limits, rules=book(sources), steps=[Vouched()])
    messages = [RetainedMessage(topic, b"r", 0, owner=owner) for topic, owner in (("a/x", "gone"), ("b/x", "ann"))]
    assert kept(edge, *messages) == ["a/x"]


def test_retained_messages_of_cluster_users_wait_for_a_router() -> None:
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
