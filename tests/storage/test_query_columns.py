"""Columns of queries at a storage node: retained messages, subscriptions, groups, sessions."""

from typing import Any

import pytest

from mqtt.properties import PropertyId, encode_properties
from tests.storage.storage_cluster import Cluster, with_edge
from wire.messages.batches import PublishMessage
from wire.messages.queries import Query, QueryResult
from wire.messages.query_kinds import rows_of
from wire.messages.sessions import SessionSubscription
from wire.queries.pace import QueryBounds
from wire.queries.query_server import QueryServer
from wire.queries.source import RowScan

SHARE = b"g/a"
UTC_MS = 1_000_000


def shown(cluster: Cluster, what: str) -> list[dict[str, Any]]:
    """Return the rows of one kind at the primary of partition 0."""
    core = cluster.primary(0).core
    core.placements.journal.utc_ms = lambda: UTC_MS
    source = core.operators.query_server.kinds()[what]
    ask = RowScan({}, "", frozenset(source.columns), "admin", 100, 0.0)
    return [{name: read(thing) for name, read in source.columns.items()} for _, thing in source.walk(ask) if thing]


def test_retained_row_has_age_and_content_type() -> None:
    cluster, edge = with_edge(partitions=1)
    typed = encode_properties({PropertyId.CONTENT_TYPE: "text/plain"})[1:]
    edge.publish(PublishMessage(0, b"typed", b"x", 1, True, typed), 0)
    cluster.run(3.0)
    edge.publish(PublishMessage(0, b"plain", b"x", 1, True), 0)
    cluster.settle()
    plain, typed_row = sorted(shown(cluster, "retained"), key=lambda row: row["topic"])
    assert (typed_row["content_type"], plain["content_type"]) == ("text/plain", None)
    assert typed_row["age_s"] == pytest.approx(3.0, abs=0.5) and plain["age_s"] < 1.0


def test_subscription_row_has_its_age() -> None:
    """That of the last SUBSCRIBE."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    edge.subscribe(alice, SessionSubscription("a/#", 1))
    cluster.run(5.0)
    edge.subscribe(alice, SessionSubscription("b/#", 1))
    cluster.settle()
    ages = {row["filter"]: (UTC_MS - row["since_ms"]) / 1000 for row in shown(cluster, "subscriptions")}
    assert ages["a/#"] == pytest.approx(5.0, abs=0.5) and ages["b/#"] < 1.0


def test_share_row_counts_copies_and_shows_skew() -> None:
    """Two members alternate; one acknowledges no message, ends, and leaves its copies to the other."""
    cluster, edge = with_edge(partitions=1)
    members = [edge.open(name) for name in ("alice", "bob")]
    for member in members:
        edge.subscribe(member, SessionSubscription("$share/g/a", 1))
    for number in range(4):
        edge.publish(PublishMessage(0, b"a", str(number).encode(), 1, share=SHARE), 0)
    cluster.settle()
    (row,) = shown(cluster, "shares")
    assert (row["delivered"], row["redispatched"], row["queued"], row["skew"]) == (4, 0, 4, 1.0)
    for push in members[1].received:
        edge.acknowledge(push, 4)
    cluster.settle()
    (row,) = shown(cluster, "shares")
    assert (row["queued"], row["queued_most"], row["skew"]) == (2, 2, 2.0)
    edge.close(members[0], expiry_s=0)
    cluster.settle()
    (row,) = shown(cluster, "shares")
    assert (row["members"], row["delivered"], row["redispatched"], row["skew"]) == (1, 4, 2, None)


HEAD = {"payload": "head"}
OF_QUEUE, OF_RETAINED = {"client_id": "alice"}, {"topic": "a/b"}


@pytest.mark.parametrize(
    ("what", "where", "columns", "role", "shown", "error"),
    [
        ("queue", OF_QUEUE, [], "viewer", None, ""),
        ("queue", OF_QUEUE, [], "admin", None, ""),
        ("queue", OF_QUEUE | HEAD, [], "operator", b"secret", ""),
        ("queue", OF_QUEUE | HEAD, [], "viewer", None, "payloads want the role operator"),
        ("queue", OF_QUEUE | HEAD, ["seq"], "operator", None, ""),
        ("queue", OF_QUEUE | HEAD, ["payload"], "operator", b"secret", ""),
        ("queue", OF_QUEUE, ["payload"], "viewer", None, "the column payload wants the condition payload"),
        ("queue", OF_QUEUE, ["payload"], "operator", None, "the column payload wants the condition payload"),
        ("retained", {}, [], "viewer", None, ""),
        ("retained", OF_RETAINED, [], "admin", None, ""),
        ("retained", OF_RETAINED | HEAD, [], "operator", b"secret", ""),
        ("retained", OF_RETAINED | HEAD, ["payload"], "viewer", None, "payloads want the role operator"),
        ("retained", HEAD, [], "operator", None, "payloads are shown of one topic at a time"),
        ("retained", {}, ["payload"], "viewer", None, "the column payload wants the condition payload"),
    ],
)
def test_payload_is_shown_only_to_authorized_operators(
    what: str, where: dict[str, str], columns: list[str], role: str, shown: bytes | None, error: str
) -> None:
    """Neither a list nor an explicit column shows payloads to a viewer."""
    cluster, edge = with_edge(partitions=1)
    edge.subscribe(edge.open("alice"), SessionSubscription("a/#", 1))
    edge.publish(PublishMessage(0, b"a/b", b"secret", 1, True), 0)
    cluster.settle()
    answers: list[QueryResult] = []
    sources = cluster.primary(0).core.operators.query_server.kinds()
    bounds = QueryBounds(500, 1.0, 32 * 1024)
    desk = QueryServer("s", "storage", bounds, sources, lambda _, seen: answers.append(seen), lambda: 1)
    desk.ask(0.0, "asker", role, Query(1, what, where=where, columns=columns, role=role))
    desk.turn(0.0)
    (answer,) = answers
    assert (error in answer.error) and (bool(error) == bool(answer.error))
    if not error:
        (row,) = rows_of(what, answer)
        assert row.payload == shown


def test_slow_session_row_has_its_start_time() -> None:
    """Disconnected: since then; window full: since the first queued message; else since the oldest entry."""
    cluster, edge = with_edge(partitions=1)
    started = cluster.now
    gone, full, open_ = edge.open("gone", "a"), edge.open("full", "a", receive_maximum=1), edge.open("open", "a")
    edge.close(gone, expiry_s=600)
    went = cluster.now
    sent = []
    for text in (b"1", b"2"):
        cluster.run(5.0)
        edge.publish(PublishMessage(0, b"a", text, 1), 0)
        cluster.settle()
        sent.append(cluster.now)
    cluster.run(5.0)
    assert full.received and open_.received
    wanted = {"gone": went, "full": sent[1], "open": sent[0]}
    now = cluster.now
    found = {row["client_id"]: now - (UTC_MS - row["since_ms"]) / 1000 for row in shown(cluster, "slow")}
    assert found == {name: pytest.approx(at, abs=0.6) for name, at in wanted.items()}, started
