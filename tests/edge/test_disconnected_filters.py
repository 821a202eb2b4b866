"""Subscriptions of disconnected durable sessions: filters without permission are removed."""

import pytest
from msgspec.structs import replace

from access.limits.bans import Ban
from access.policy import commands as c
from access.policy.records import RuleRecord
from edge.disconnected_filters import ANSWER_S, DISCONNECTED_BATCH_S, FILTERS_PER_REVOKE
from edge.rights.sources import RuleBook, Sources
from mqtt.properties import PropertyId
from tests.edge.edge_harness import PARTITIONS, Session, cluster_map
from tests.edge.rights.ruled import roles
from tests.edge.test_cluster_policy import CLOSED, HASH, Cluster
from wire.messages.disconnected_sessions import (
    DisconnectedListed,
    DisconnectedRevoked,
    DisconnectedSession,
    HeldFilter,
    ListDisconnected,
    RevokeDisconnected,
)
from wire.messages.map_pages import map_pages
from wire.messages.sessions import (
    FiltersListed,
    ListFilters,
    OpenSession,
    SessionOpened,
    SessionSubscription,
    SessionUnsubscribed,
    UnsubscribeSession,
)

MAY = c.PutRole("device", (RuleRecord(True, 0x1F, "down/%u/#"), RuleRecord(True, 0x1F, "all")))
ANN = c.AddUser("ann", HASH, roles=("device",))
FEWER = c.PutRole("device", (RuleRecord(True, 0x1F, "all"),))
MINE = (0, 2)  # e0 and e1 are the edges
DURABLE: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 60}


class Away:
    """A cluster with disconnected sessions of ann."""

    def __init__(self, *names: str) -> None:
        self.cluster = Cluster(MAY, ANN, roles=True)
        self.edge = self.cluster.edge
        self.edge.seen.clear()
        user = self.cluster.machine.tables.users.get("ann")
        assert user is not None
        self.made = user.made
        filters = [HeldFilter(name, 1) for name in names or ("down/ann/x", "all", "$share/g/down/ann/y")]
        self.session = DisconnectedSession(5, 9, "c", "ann", self.made, filters)
        self.edge.held |= {ListDisconnected, RevokeDisconnected}
        self.removed: list[RevokeDisconnected] = []
        self.asked: list[ListDisconnected] = []

    def answer(self, *sessions: DisconnectedSession) -> list[ListDisconnected]:
        """Answer all requests, with these sessions in the first partition; return the requests."""
        asked: list[ListDisconnected] = []
        for _ in range(4 * PARTITIONS):
            self.cluster.run()
            lists = self.edge.take(ListDisconnected)
            for one in lists:
                asked.append(one)
                there = list(sessions) if one.partition == 0 and not one.first else []
                self.edge.storage(DisconnectedListed(one.request, there))
            orders = self.edge.take(RevokeDisconnected)
            self.removed += orders
            for order in orders:
                self.edge.storage(DisconnectedRevoked(order.request, len(order.topic_filters)))
        return asked

    def after(self, *commands: c.SimpleCommand, session: DisconnectedSession | None = None) -> list[str]:
        """Commit commands; return the removed filters."""
        self.removed = []
        self.cluster.order(*commands)
        self.asked = self.answer(session or self.session)
        return [name for order in self.removed for name in order.topic_filters]


def test_permission_removal_removes_filters_of_disconnected_sessions() -> None:
    """With the owner epoch of the ended connection, so that a newer one keeps its grants."""
    away = Away()
    assert away.after(FEWER) == ["down/ann/x", "$share/g/down/ann/y"]
    assert [(one.partition, one.away, one.owner_epoch) for one in away.removed] == [(0, 5, 9)]
    assert sorted(one.partition for one in away.asked) == list(MINE) and not any(one.users for one in away.asked)
    assert away.edge.core.counts["revoked_filters_away"] == 2


def test_role_change_of_one_user_checks_only_that_user() -> None:
    away = Away()
    assert away.after(c.ChangeUser("ann", roles=())) == ["down/ann/x", "all", "$share/g/down/ann/y"]
    assert [one.users for one in away.asked] == [["ann"]] * len(MINE)


def test_grant_checks_no_session() -> None:
    away = Away()
    assert away.after(c.AddUser("bob", HASH), c.PutRole("other", (RuleRecord(True, 0x1F, "x"),))) == []
    assert not away.asked


def test_removed_user_loses_filters_disabled_user_keeps_them() -> None:
    assert Away().after(c.SetDisabled("ann", True)) == []
    assert Away().after(c.AddBan(Ban("user", "ann", 0.0, ""))) == []
    names = ["down/ann/x", "all", "$share/g/down/ann/y"]
    assert Away().after(c.DeleteUser("ann")) == names
    assert Away().after(c.DeleteUser("ann"), ANN) == names, "another user has the name"


@pytest.mark.parametrize("owner", ["of a token", "ann"])
def test_users_of_files_and_tokens_keep_filters_while_disconnected(owner: str) -> None:
    """Routers do not know them; they are authorized at their next CONNECT (docs/adr/0133)."""
    away = Away()
    assert away.after(FEWER, session=replace(away.session, owner=owner, owner_made=0)) == []
    assert away.asked


def test_newer_policy_is_not_judged_by_an_older_view() -> None:
    """A session or user newer than this edge's view waits, and loses no filter."""
    away = Away()
    later = replace(away.session, owner_made=away.made + 99)
    assert away.after(FEWER, session=later) == []
    assert away.edge.core.counts["away_filters_asked_again"] >= 1


def test_rules_with_unknown_conditions_remove_nothing() -> None:
    """The address of a disconnected client is not stored, so such grants stay until the next CONNECT."""
    away = Away()
    there = RuleRecord(True, 0x1F, "down/%u/#", network="10.0.0.0/8")
    assert away.after(c.PutRole("device", (there,))) == []


def test_filter_granted_by_any_listener_stays() -> None:
    away = Away()
    of_file = Sources(of_cluster=True, roles=roles(wide={"subscribe": ["down/#"]}).roles, authenticated=("wide",))
    away.edge.core.replace_rules(RuleBook({"plain": Sources(of_cluster=True), "tls": of_file}))
    assert away.after(c.PutRole("device", ())) == ["all"]


def test_many_filters_are_removed_in_parts() -> None:
    away = Away(*(f"down/ann/{at}" for at in range(70)))
    assert len(away.after(FEWER)) == 70
    assert [len(order.topic_filters) for order in away.removed] == [FILTERS_PER_REVOKE, FILTERS_PER_REVOKE, 6]


def test_new_edge_of_a_partition_checks_it_whole() -> None:
    """The former edge may have died before it finished."""
    away = Away()
    away.after(FEWER)
    away.removed = []
    moved = cluster_map(2)
    del moved.nodes["e1"]
    away.edge.router(*map_pages(moved))
    asked = away.answer(replace(away.session, owner_made=away.made))
    assert sorted(one.partition for one in asked) == [0, 1, 2, 3] and not any(one.users for one in asked)
    more = cluster_map(3)
    more.nodes["e2"] = replace(more.nodes["e0"], node="e2")
    del more.nodes["e1"]
    away.edge.router(*map_pages(more))
    assert not away.answer(), "one that comes takes partitions, and died over nothing"


def test_unresponsive_partition_is_retried_last() -> None:
    """It may have no primary for hours."""
    away = Away()
    away.cluster.order(FEWER)
    asked: list[ListDisconnected] = []
    while len(asked) < 3:
        away.cluster.run()
        asked += away.edge.take(ListDisconnected)
        if asked[-1].partition == 2:
            away.edge.storage(DisconnectedListed(asked[-1].request))
        elif len(asked) == 1:
            away.cluster.run(ANSWER_S + 0.1)
    assert [one.partition for one in asked] == [0, 2, 0]
    away.edge.storage(DisconnectedListed(asked[-1].request, [away.session]))
    away.cluster.run()
    assert [order.topic_filters for order in away.edge.take(RevokeDisconnected)] == [
        ["down/ann/x", "$share/g/down/ann/y"]
    ]


def resumed(away: Away, client_id: str, *told: str) -> Session:
    """Return a resumed connection of ann; without filters there were too many."""
    session = away.edge.accept(CLOSED)
    away.edge.held |= {OpenSession, ListFilters, UnsubscribeSession}
    session.connect(client_id, properties=DURABLE, clean_start=False, username="ann", password=b"good")
    away.cluster.run()
    (asked,) = away.edge.take(OpenSession)
    filters = [SessionSubscription(name, 1) for name in told]
    number = asked.partition << 48 | 5
    away.edge.storage(SessionOpened(asked.request, asked.partition, 1, 0, 9, number, True, subscriptions=filters))
    return session


@pytest.mark.parametrize("partition", range(PARTITIONS))
@pytest.mark.parametrize("when", ["asked for", "told", "taken in pieces", "judged at once"])
def test_disconnect_before_check_is_checked_by_its_edge(when: str, partition: int) -> None:
    """While it was connected the partition's edge skipped it; its own edge checks it for any partition."""
    away = Away()
    number = next(n for n in range(99) if away.edge.core.node.map.partition_for(f"c{n}") == partition)
    tells = {"taken in pieces": [f"down/x/{at}" for at in range(40)], "judged at once": ["down/x"]}
    session = resumed(away, f"c{number}", *tells.get(when, ()))
    if when != "judged at once":
        away.cluster.run()
    asked, taken = away.edge.take(ListFilters), away.edge.take(UnsubscribeSession)
    if when == "told":
        away.edge.storage(FiltersListed(asked.pop().request, [SessionSubscription("down/x", 1)]))
    session.drop()
    for one in asked:
        away.edge.storage(FiltersListed(one.request, [SessionSubscription("down/x", 1)]))
    for one in taken:
        away.edge.storage(SessionUnsubscribed(one.request, [0] * len(one.topic_filters)))
    assert bool(asked) == (when == "asked for") and bool(taken) == (when == "taken in pieces")
    away.cluster.run()
    assert not away.edge.take(ListDisconnected), "others that leave are gathered"
    away.cluster.run(DISCONNECTED_BATCH_S)
    assert [(one.partition, one.users) for one in away.edge.take(ListDisconnected)] == [(partition, ["ann"])]


def test_disconnect_after_check_is_ignored() -> None:
    away = Away()
    session = resumed(away, "c1", "all")
    away.cluster.run()
    session.drop()
    away.cluster.run(2 * DISCONNECTED_BATCH_S)
    assert not away.edge.take(ListDisconnected)
