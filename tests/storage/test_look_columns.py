"""Columns of looks at a storage node: ages and types of retained messages, ages of subscriptions, copies of groups."""

from typing import Any

import pytest

from mqtt.properties import PropertyId, encode_properties
from tests.storage.storage_cluster import Cluster, with_edge
from wire.looks.source import Ask
from wire.messages.batches import PublishMessage
from wire.messages.sessions import Subscription

SHARE = b"g/a"
UTC_MS = 1_000_000


def shown(cluster: Cluster, what: str) -> list[dict[str, Any]]:
    """Return the rows of one kind at the primary of partition 0."""
    core = cluster.primary(0).core
    core.placements.journal.utc_ms = lambda: UTC_MS
    source = core.operators.desk.kinds()[what]
    ask = Ask({}, "", frozenset(source.columns), "admin", 100, 0.0)
    return [{name: read(thing) for name, read in source.columns.items()} for _, thing in source.walk(ask) if thing]


def test_a_retained_message_has_its_age_and_its_content_type() -> None:
    cluster, edge = with_edge(partitions=1)
    typed = encode_properties({PropertyId.CONTENT_TYPE: "text/plain"})[1:]
    edge.publish(PublishMessage(0, b"typed", b"x", 1, True, typed), 0)
    cluster.run(3.0)
    edge.publish(PublishMessage(0, b"plain", b"x", 1, True), 0)
    cluster.settle()
    plain, typed_row = sorted(shown(cluster, "retained"), key=lambda row: row["topic"])
    assert (typed_row["content_type"], plain["content_type"]) == ("text/plain", None)
    assert typed_row["age_s"] == pytest.approx(3.0, abs=0.5) and plain["age_s"] < 1.0


def test_a_subscription_has_its_age() -> None:
    """That of the last SUBSCRIBE."""
    cluster, edge = with_edge(partitions=1)
    alice = edge.open("alice")
    edge.subscribe(alice, Subscription("a/#", 1))
    cluster.run(5.0)
    edge.subscribe(alice, Subscription("b/#", 1))
    cluster.settle()
    ages = {row["filter"]: (UTC_MS - row["since_ms"]) / 1000 for row in shown(cluster, "subscriptions")}
    assert ages["a/#"] == pytest.approx(5.0, abs=0.5) and ages["b/#"] < 1.0


def test_a_group_counts_its_copies_and_says_whether_one_member_is_behind() -> None:
    """Two take turns; one acknowledges nothing, ends, and leaves its copies to the other."""
    cluster, edge = with_edge(partitions=1)
    members = [edge.open(name) for name in ("alice", "bob")]
    for member in members:
        edge.subscribe(member, Subscription("$share/g/a", 1))
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
