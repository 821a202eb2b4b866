"""The filters of a session that is opened under other rules are reported to the edge, which removes ungranted ones."""

from typing import Any

import pytest

from storage.rights.filters import REPORTED_FILTER_BYTES_MAX, TOLD_MAX
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.rows import SubscriptionRow, unpack
from tests.storage.requests import message
from tests.storage.scripted_edge import Connection, Edge
from tests.storage.storage_cluster import Cluster, with_edge, with_settings
from wire.messages.ranges import SYS_FILTERS_MAX
from wire.messages.sessions import OpenSession, SessionOpened, SessionSubscribed, SessionSubscription, SubscribeSession

RULES, OTHERS = 7, (1 << 64) - 1


def connect(edge: Edge, judged: int, **changes: Any) -> tuple[Connection, SessionOpened]:
    """Open client "c" by some rules; return the connection and the answer."""
    connection = edge.connections["c"] = Connection("c", next(edge.cluster.numbers))
    asked = OpenSession(*edge.head(0), "c", connection.number, changes.pop("clean_start", False), 3600, **changes)
    asked.judged = judged
    edge.ask(asked)
    edge.cluster.settle()
    (answer,) = (one for one in edge.answers(SessionOpened) if one.request == asked.request)
    return connection, answer


def subscribe(edge: Edge, to: Connection, *names: str, judged: int, partial: tuple[int, ...] = ()) -> SessionSubscribed:
    """Subscribe by some rules; without filters all that the session has are confirmed."""
    filters = [SessionSubscription(name, 1, retain_handling=2) for name in names]
    request = SubscribeSession(*edge.head(0), to.session, to.owner_epoch, filters)
    request.judged, request.partial = judged, list(partial)
    edge.ask(request)
    edge.cluster.settle()
    (answer,) = (one for one in edge.answers(SessionSubscribed) if one.request == request.request)
    assert isinstance(answer, SessionSubscribed)
    return answer


def reported(answer: SessionOpened) -> list[str]:
    return sorted(subscription.topic_filter for subscription in answer.subscriptions)


def session_of(cluster: Cluster) -> DurableSession:
    (session,) = cluster.primary(0).core.partitions[0].partition.sessions.values()
    return session


@pytest.mark.parametrize("crash", [False, True])
def test_connect_under_other_rules_reports_filters(crash: bool) -> None:
    """At each CONNECT until the edge confirms them."""
    cluster, edge = with_edge(partitions=1)
    first, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (True, [])
    subscribe(edge, first, "a/#", "b", judged=RULES)
    if crash:
        cluster.crash_all()
    _, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (True, [])
    for _ in range(2):
        newer, answer = connect(edge, OTHERS)
        assert (answer.judged, reported(answer)) == (False, ["a/#", "b"])
    edge.unsubscribe(newer, "a/#")
    assert subscribe(edge, newer, judged=OTHERS).reason_codes == []
    if crash:
        cluster.crash_all()
    _, answer = connect(edge, OTHERS)
    assert (answer.judged, reported(answer)) == (True, [])
    _, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (False, ["b"])


def test_connect_of_an_edge_without_rules_reports_no_filters() -> None:
    """Its own SUBSCRIBE does not count as authorized for an edge with rules."""
    _, edge = with_edge(partitions=1)
    first, answer = connect(edge, 0)
    assert (answer.judged, reported(answer)) == (False, [])
    subscribe(edge, first, "a", judged=0)
    _, answer = connect(edge, 0)
    assert (answer.judged, reported(answer)) == (False, [])
    _, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (False, ["a"])


@pytest.mark.parametrize("second", [0, OTHERS])
def test_filters_granted_by_two_rules_are_authorized_by_neither(second: int) -> None:
    """An edge with older rules would trust all of them."""
    cluster, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a", judged=RULES)
    subscribe(edge, first, "b", judged=second)
    assert session_of(cluster).judged == 0
    for judged in (RULES, OTHERS):
        _, answer = connect(edge, judged)
        assert (answer.judged, reported(answer)) == (False, ["a", "b"])


def test_subscribe_does_not_confirm_reported_filters() -> None:
    """Only the request without filters does."""
    _, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a", judged=RULES)
    newer, _ = connect(edge, OTHERS)
    subscribe(edge, newer, "b", judged=OTHERS)
    _, answer = connect(edge, OTHERS)
    assert (answer.judged, reported(answer)) == (False, ["a", "b"])


def test_closed_connection_cannot_confirm_filters() -> None:
    cluster, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a", judged=RULES)
    connect(edge, OTHERS)
    subscribe(edge, first, judged=OTHERS)
    assert session_of(cluster).judged == RULES


@pytest.mark.parametrize("crash", [False, True])
def test_partially_granted_filter_is_reported_at_each_connect(crash: bool) -> None:
    """Each message is authorized until the filter is granted in full or removed."""
    cluster, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a/#", "b", judged=RULES, partial=(0, 7, 1 << 31))
    if crash:
        cluster.crash_all()
    newer, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (False, ["a/#", "b"])
    partition = cluster.primary(0).core.partitions[0].partition
    rows = {name: partition.get(keys.subscription_key(0, newer.session, name)) for name in ("a/#", "b")}
    assert {name: unpack(SubscriptionRow, value or b"").partial for name, value in rows.items()} == {
        "a/#": True, "b": False
    }  # fmt: skip
    subscribe(edge, newer, "a/#", judged=RULES)
    newer, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (True, [])
    subscribe(edge, newer, "b", judged=RULES, partial=(0,))
    edge.unsubscribe(newer, "b")
    cluster.settle()
    assert connect(edge, RULES)[1].judged


@pytest.mark.parametrize("clean_start", [False, True])
def test_session_without_filters_is_authorized(clean_start: bool) -> None:
    cluster, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    if clean_start:
        subscribe(edge, first, "a", judged=RULES)
    _, answer = connect(edge, OTHERS, clean_start=clean_start)
    assert answer.judged and session_of(cluster).judged == OTHERS


def test_ephemeral_session_reports_no_filters() -> None:
    """Only its edge has its filters."""
    _, edge = with_edge(partitions=1)
    connection = edge.open("c", expiry_s=0)
    (answer,) = edge.answers(SessionOpened)
    assert (connection.session, answer.judged, reported(answer)) == (0, False, [])


@pytest.mark.parametrize(
    ("count", "length"), [(TOLD_MAX + 1, 8), (REPORTED_FILTER_BYTES_MAX // 4 // 50_000 + 1, 50_000)]
)
def test_connect_with_too_many_filters_reports_none_and_is_unauthorized(count: int, length: int) -> None:
    """The edge then authorizes each message of the session."""
    cluster, edge = with_edge(partitions=1, settings=with_settings(filters_per_session_max=10_000))
    first, _ = connect(edge, RULES)
    subscribe(edge, first, *(f"{number:06}".ljust(length, "x") for number in range(count)), judged=RULES)
    assert connect(edge, RULES)[1].judged
    _, answer = connect(edge, OTHERS)
    assert (answer.reason_code, answer.judged, reported(answer)) == (0, False, [])
    assert cluster.nodes["s1"].core.event_counts()["filters_untold"] == 1


def queue(edge: Edge, *payloads: str) -> None:
    for payload in payloads:
        edge.publish(message(payload), 0)
    edge.cluster.settle()


def test_b3_recheck_mark_survives_failover() -> None:
    """The edge authorizes the former primary's unchecked entries at delivery."""
    cluster = Cluster(nodes=2, replicas=2, partitions=1)
    edge = cluster.edges["e1"]
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a/b", judged=RULES)
    edge.close(first)
    queue(edge, "1", "2")
    cluster.kill(cluster.primary(0).key.node)
    cluster.run(5.0)
    newer, answer = connect(edge, RULES)
    assert (answer.judged, reported(answer)) == (False, ["a/b"])
    subscribe(edge, newer, judged=RULES)
    _, answer = connect(edge, RULES)
    assert not answer.judged  # the filters are authorized, the queue is not
    for push in edge.connections["c"].received:
        edge.acknowledge(push, 4)
    cluster.settle()
    assert connect(edge, RULES)[1].judged


@pytest.mark.parametrize("crash", [False, True])
def test_entries_queued_under_other_rules_stay_unauthorized(crash: bool) -> None:
    """It may match a filter that was removed since."""
    cluster, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a/b", "a/#", judged=RULES)
    edge.close(first)
    queue(edge, "1")
    newer, _ = connect(edge, OTHERS)
    edge.unsubscribe(newer, "a/#")
    subscribe(edge, newer, judged=OTHERS)
    assert not connect(edge, OTHERS)[1].judged
    if crash:
        cluster.crash_all()
    newest, answer = connect(edge, OTHERS)
    assert (answer.judged, reported(answer)) == (False, ["a/b"])
    for push in newest.received:
        edge.acknowledge(push, 4)
    cluster.settle()
    queue(edge, "2")
    assert connect(edge, OTHERS)[1].judged


@pytest.mark.parametrize("subscribes", [False, True])
def test_queue_of_a_session_without_filters_stays_unauthorized(subscribes: bool) -> None:
    """The filter and the right that queued it may have been removed."""
    _, edge = with_edge(partitions=1)
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a/b", judged=RULES)
    edge.close(first)
    queue(edge, "1")
    newer, _ = connect(edge, RULES)
    edge.unsubscribe(newer, "a/b")
    newer, answer = connect(edge, OTHERS)
    assert (answer.judged, reported(answer)) == (False, [])
    if subscribes:
        subscribe(edge, newer, "b", judged=OTHERS)
    assert not connect(edge, OTHERS)[1].judged


def test_sys_filters_are_reported_at_each_connect_up_to_the_bound() -> None:
    """An edge adds these filters to its own table, whatever rules granted them."""
    _, edge = with_edge()
    first, _ = connect(edge, RULES)
    subscribe(edge, first, "a/#", "$SYS/#", "$SYS/broker/uptime", judged=RULES)
    _, answer = connect(edge, RULES)
    assert sorted(one.topic_filter for one in answer.sys_filters) == ["$SYS/#", "$SYS/broker/uptime"]
    again, _ = connect(edge, RULES)
    subscribe(edge, again, *[f"$SYS/{number}" for number in range(SYS_FILTERS_MAX)], judged=RULES)
    assert len(connect(edge, RULES)[1].sys_filters) == SYS_FILTERS_MAX
    assert connect(edge, RULES, clean_start=True)[1].sys_filters == []
