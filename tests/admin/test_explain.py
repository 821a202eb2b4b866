"""Explanations: from rows to the deciding condition, with its numbers and the setting's name."""

import re
from pathlib import Path
from typing import Any

import pytest

from admin.explain.client import explain_client
from admin.explain.message import DeliveryEnd, Evidence, check_origin, explain_message, explain_unknown_message
from admin.explain.texts import since
from admin.explain.topic import explain_topic
from admin.queries import ClientView, TopicView
from admin.scatter_gather import MissingRows
from conf.edge_settings import EdgeSettings
from conf.errors import UserError
from conf.router_settings import RouterSettings
from conf.storage_settings import StorageSettings
from wire.messages.client_rows import (
    ClientDetail,
    InFlightRow,
    QueuedMessageRow,
    SessionDetail,
    SubscriptionListRow,
)
from wire.messages.cluster_map import ClusterMap, PartitionEntry
from wire.messages.node_rows import JournalRow, TraceEventRow
from wire.messages.topic_rows import MatchRow, ResolvedRouteRow, RetainedMessageRow

ROOT = Path(__file__).parents[2]
NOW = 1_700_000_060_000  # 2023-11-14 22:14:20 UTC
FILTER = SubscriptionListRow(client_id="c", filter="a/+", qos=1)


def view(session: dict[str, Any] | None, connection: dict[str, Any] | None = None, **more: Any) -> ClientView:
    edge = "edge-1" if connection is not None else ""
    of: dict[str, Any] = {
        "partition": 3,
        "primary": "storage-1",
        "edge": edge,
        "partial": (),
        "asked": ("storage-1",),
    } | more
    return ClientView(
        "c",
        session=None if session is None else SessionDetail(**{"durable": True, "online": bool(edge)} | session),
        connection=None if connection is None else ClientDetail(**connection),
        **of,
    )


OPEN: dict[str, Any] = {"inflight": 0, "window": 64, "unsent_bytes": 0, "unsent_bytes_max": 1_048_576}
OLDEST = {"oldest_packet": 17}
FULL = OPEN | OLDEST | {"inflight": 64, "window_full_since_ms": NOW - 30_000}

CASES: list[tuple[str, ClientView, list[str]]] = [
    ("unknown", view(None), ["partition 3 has no session and no connection", "(at most edge.session_expiry_max_s)"]),
    (
        "absent",
        view({"queued": 7, "expires_in_s": 604_784, "away_since_s": 135.2, "queue_max": 10_000, "oldest_s": 90.0}),
        [
            "not connected since 22:12:04 UTC, for 2 min 15 s (135 s); 7 messages of at most 10 000",
            "(storage.queue_messages_max) wait in its queue, the oldest for 90 s",
            "expires in 6 d 23 h 59 min (604 784 s), at most edge.session_expiry_max_s",
        ],
    ),
    ("absent", view({"queued": 1, "expires_in_s": -1}), ["1 message (storage.queue_messages_max) waits", "not expire"]),
    ("no_primary", view(None, primary="", asked=()), ["partition 3 has no primary", "no copy is in sync", "lease_s"]),
    ("copies", view({"acknowledges": False, "in_sync": 1}, OPEN), ["1 copy in sync (router.min_in_sync)"]),
    ("fenced", view({}, FULL | {"fenced": True, "fenced_s": 4.2}), ["edge-1 has had no lease for 4.2 s (router.lea"]),
    (
        "socket",
        view({}, FULL | {"unsent_bytes": 1_300_000, "unsent_since_ms": NOW - 12_000, "lagging": True}),
        [
            "bytes since 22:14:08 UTC, for 12 s: 1 300 000 bytes are unsent; from 1 048 576 on it counts as slow "
            "(edge.output_buffer_bytes_max), and QoS 0 messages to it are dropped (edge.lagging_after_ms)"
        ],
    ),
    (
        "window",
        view(
            {"queued": 262, "out": 256, "window": 256, "waiting_s": 30.0, "head_topic": "a/b"},
            OPEN | {"receive_maximum": 65_535} | OLDEST,
        ),
        [
            "full since 22:13:50 UTC, for 30 s: 256 of 256 messages of QoS 1 and 2 are not acknowledged",
            "(storage.outbound_window_max; its Receive Maximum is 65 535); the oldest is packet 17 of topic 'a/b'",
            "6 messages wait behind them, the first for 30 s",
        ],
    ),
    (
        "window",
        view({"durable": False}, FULL | {"queued": 6, "receive_maximum": 65_535}),
        ["64 of 64", "(edge.outbound_window_max; its Receive Maximum is 65 535)", "6 messages wait behind them"],
    ),
    (
        "receive_maximum",
        view({"queued": 3, "out": 1, "window": 1}, OPEN | {"receive_maximum": 1, "oldest_packet": 9}),
        ["1 of 1", "(its Receive Maximum; storage.outbound_window_max is no smaller)", "packet 9", "2 messages wait"],
    ),
    (
        "retained",
        view({"durable": False}, OPEN | {"retained_reads": 2, "held_messages": 4, "retained_left_s": 3.5}),
        ["2 reads of", "4 live messages wait for them, for 3.5 s more at most (edge.retained_hold_s)"],
    ),
    ("retained", view({"retained_reads": 1, "queued": 2}, OPEN), ["1 read of", "2 live messages wait", "expired"]),
    ("commit", view({"behind_commit": True}, OPEN), ["waits for the commit", "(router.min_in_sync)"]),
    ("dropped", view({"dropped": 5}, OPEN), ["its queue dropped 5 messages; the node's journal has no entries"]),
]


@pytest.mark.parametrize(("what", "of", "parts"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_explain_client_first_condition_decides(what: str, of: ClientView, parts: list[str]) -> None:
    """The first condition that holds decides; each sentence has numbers, times and the setting."""
    story = explain_client(of, NOW, [FILTER])
    assert story.cause is not None and story.cause.what == what, story.steps
    assert all(part in story.verdict for part in parts), story.verdict


def test_texts_time_outside_calendar_is_a_number() -> None:
    """A hostile node may send any number."""
    assert since(2**62, 0) == f" since {2**62} ms (outside the calendar), for 0 s"


def test_explain_client_without_problem_has_no_cause() -> None:
    """No cause is invented; a full window without queued messages blocks none."""
    assert explain_client(view({}, OPEN), NOW, [FILTER]).cause is None
    full = view({"queued": 64, "out": 64, "window": 64}, OPEN | {"inflight": 64})
    assert explain_client(full, NOW, [FILTER]).cause is None
    more = view({"queued": 100, "out": 100, "window": 256}, OPEN | {"inflight": 100})
    assert explain_client(more, NOW, [FILTER]).cause is None, "its partition bounds it, not its edge"


def test_explain_client_silent_node_is_missing_source() -> None:
    """A missing answer is listed as a missing source."""
    missing = MissingRows("storage-1", "no answer in 1 s")
    story = explain_client(view(None, partial=(missing,)), NOW, [])
    assert story.cause is None and story.lacked == (missing,)


@pytest.mark.parametrize(
    ("topic", "matches", "what", "part"),
    [
        ("a/b", [MatchRow(client_id="c", filter="a/+", why="")], None, ""),
        ("a/b", [MatchRow(client_id="c", filter="a/+", why="no_local")], "no_local", "has No Local"),
        ("a/b", [MatchRow(client_id="c", filter="a/+", why="", no_local=True)], "no_local", "its own messages"),
        ("a/b", [MatchRow(client_id="c", filter="a/+", why="access")], "access", "deny receiving"),
        ("a/b/c", [], "no_subscription", "'a/+' misses it by one level"),
        ("a", [], "no_subscription", "'a/+' misses it by one level"),
        ("x/y/z", [], "no_subscription", "its one subscription does not match"),
    ],
)
def test_explain_client_with_topic_gives_reason_of_match(
    topic: str, matches: list[MatchRow], what: str | None, part: str
) -> None:
    """Its subscriptions, and the reason of each that matches the topic."""
    story = explain_client(view({}, OPEN), NOW, [FILTER], topic=topic, matches=matches)
    assert (story.cause.what if story.cause is not None else None) == what and part in story.verdict


def test_explain_client_without_subscription() -> None:
    """Without a topic."""
    story = explain_client(view({}, OPEN), NOW, [])
    assert story.verdict == "it has no subscription"


def test_explain_client_lists_journal_drops_after_cause() -> None:
    """With reason, topic and time."""
    drop = JournalRow(event="drop", reason="queue_full", client_id="c", topic="a/b", at_ms=NOW, node="storage-1")
    story = explain_client(view({"queued": 9, "dropped": 3}), NOW, [FILTER], journal=[drop])
    assert [step.what for step in story.steps] == ["absent", "dropped", "drop"]
    because = "dropped 3 messages because of queue_full, a bound of the session's queue; the oldest entry was dropped"
    bounds = "(storage.queue_messages_max, storage.queue_bytes_max); the last one at 22:14:20 UTC"
    assert f"{because} {bounds}" in story.steps[1].why
    assert "of 'a/b' was dropped at 22:14:20 UTC: queue_full" in story.steps[2].why and "1 entry" in story.had[1]


def test_explain_client_unknown_shows_last_end() -> None:
    """Its session ended, or its CONNECT was refused, according to journals."""
    entries = [
        JournalRow(event="session_end", reason="expired", node="storage-1", at_ms=NOW - 60_000, detail="5 messages"),
        JournalRow(event="refused", reason="0x86", node="edge-1", at_ms=NOW - 1_000, detail="CONNECT"),
    ]
    story = explain_client(view(None), NOW, [], journal=entries)
    assert [step.what for step in story.steps] == ["unknown", "session_end", "refused"]
    assert story.steps[1].why == "its session ended at 22:13:20 UTC: expired (5 messages)"
    assert story.steps[2].why == "it was refused at 22:14:19 UTC: 0x86 (CONNECT)"


def test_explanations_name_existing_settings() -> None:
    """In docs/settings.md, which is generated from the models."""
    text = "".join(path.read_text() for path in (ROOT / "admin" / "explain").glob("*.py"))
    names = set(re.findall(r"\b(edge|router|storage)\.([a-z_]+)\b", text))
    settings: dict[str, Any] = {"edge": EdgeSettings, "router": RouterSettings, "storage": StorageSettings}
    assert len(names) > 15
    assert not {(room, name) for room, name in names if name not in settings[room].model_fields}


# -- topics


def topic(*matches: MatchRow, owner: str = "router-1", partitions: tuple[int, ...] = ()) -> TopicView:
    resolved = ResolvedRouteRow(topic="a/b", shard=5, route_key="a", owner=owner, state="serving", cached_at=["edge-1"])
    resolved.partitions = list(partitions)
    found = tuple(("storage-1" if match.durable else "edge-1", match) for match in matches)
    return TopicView("a/b", 5, owner, resolved if owner else None, found, ())


MAP = ClusterMap("c", partitions=[PartitionEntry(1, "storage-1"), PartitionEntry(1, "")])


def test_explain_topic_lists_receivers() -> None:
    """Owner, receivers with their options, groups with their next member, and near misses."""
    found = topic(
        MatchRow(client_id="d", filter="a/+", qos=1, durable=True, partition=7, queued=3, online=False, why=""),
        MatchRow(client_id="e", filter="a/#", qos=0, online=True, no_local=True, identifier=4, why=""),
        MatchRow(client_id="m1", filter="a/b", qos=1, share="g", turn=True, why=""),
        MatchRow(client_id="m2", filter="a/b", qos=1, share="g", turn=False, why="access"),
        MatchRow(client_id="f", filter="a/b", qos=1, why="size", detail="90 of 64 bytes"),
        MatchRow(filter="a/b/c", why="level"),
    )
    story = explain_topic(found, MAP, qos=2)
    text = "\n".join(step.why for step in story.steps)
    assert story.cause is None and story.verdict == "2 subscriptions and 1 shared group receive it"
    assert (
        "shard 5 (route key 'a') is owned by router-1: serving" in text and "edges that cache its route: edge-1" in text
    )
    assert "'d' by 'a/+' at QoS 1, lowered from 2, in partition 7, behind 3 entries, not connected: queued" in text
    assert "'e' by 'a/#' at QoS 0, lowered from 2, in its connection at edge-1 (No Local, Subscription Iden" in text
    assert "one member of group 'g' on 'a/b': 1 of 2 can receive it, the next one is 'm1' at edge-1" in text
    assert "'f' does not receive it by 'a/b': the message is larger than its Maximum Packet Size (90" in text
    assert "'a/b/c' does not match it: the filter misses the topic by one level" in text


def test_explain_topic_shared_group_at_several_places() -> None:
    """Each place has its own next member; the edge of the message alternates between the places."""
    durable: dict[str, Any] = {"filter": "a/b", "share": "g", "qos": 2, "why": "", "durable": True, "online": True}
    found = topic(
        MatchRow(client_id="m1", filter="a/b", qos=1, share="g", turn=True, why="", retain_handling=2, online=True),
        MatchRow(client_id="m2", partition=7, turn=True, **durable),
        MatchRow(client_id="m3", partition=7, turn=False, **durable),
    )
    steps = explain_topic(found, MAP).steps
    (group,) = [step for step in steps if step.what == "group"]
    assert "3 of 3 can receive it, the edge of the message alternates between the places" in group.why
    assert group.why.endswith("'m1' at edge-1, 'm2' in partition 7")
    members = [step for step in steps if step.what == "member"]
    assert [step.facts["turn"] for step in members] == [True, True, False]
    assert members[0].why.startswith("a member of group 'g', the next one there: 'm1' by 'a/b' at QoS 1, in its conn")
    assert members[0].why.endswith("(Retain Handling 2)") and "at QoS 1 of 2 granted" in members[1].why


def test_explain_topic_without_receiver_has_nearest_reason() -> None:
    """The nearest reason decides; a filter one level off is only a hint."""
    assert explain_topic(topic(), MAP).verdict == "nobody gets 'a/b': no subscription meets it"
    near = explain_topic(topic(MatchRow(filter="a/c", why="level")), MAP)
    assert near.verdict.startswith("nobody gets") and near.steps[-2].what == "level"
    own = explain_topic(topic(MatchRow(client_id="p", filter="a/b", why="no_local")), MAP, publisher="p")
    assert "No Local" in own.verdict
    assert "partition 1 has subscribers and no primary" in explain_topic(topic(partitions=(1,)), MAP).verdict
    assert "shard 5 has no owner" in explain_topic(topic(owner=""), MAP).verdict


# -- messages

ORIGIN = "edge-1/1795358845149/4711"


def test_explain_message_steps_in_causal_order() -> None:
    """In causal order, because clocks of nodes differ; then the stored copies."""
    events = [
        ("storage-1", TraceEventRow(stage="committed", at_us=5, partition=7, detail="operation 918")),
        ("edge-1", TraceEventRow(stage="received", at_us=9, client_id="p")),
        ("edge-1", TraceEventRow(stage="resolved", at_us=10)),
    ]
    queued = [("storage-1", "d", QueuedMessageRow(seq=12, state="queued", origin=ORIGIN), 64)]
    story = explain_message(ORIGIN, Evidence(events=events, queued=queued, had=["x"]))
    assert [step.what for step in story.steps] == ["received", "resolved", "committed", "queued"]
    assert story.verdict == "entry 12 in the queue of 'd': waits, behind 64 entries that are not acknowledged"


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (Evidence(), "no record of it"),
        (
            Evidence(journal=[("s", JournalRow(event="drop", reason="expired", client_id="d", at_ms=1))]),
            "drop for 'd': expired",
        ),
        (
            Evidence(published=[("e", InFlightRow(client_id="p", packet=17, state="unfinished", waits_for=["s-1"]))]),
            "packet 17 of 'p' is not answered; it waits for s-1",
        ),
        (
            Evidence(queued=[("s", "d", QueuedMessageRow(seq=3, state="sent", packet=9, expires_in_s=5.0), 0)]),
            "sent and not acknowledged as packet 9; it expires in 5 s",
        ),
        (Evidence(retained=[("s", RetainedMessageRow(topic="a/b", partition=2))]), "the retained message of 'a/b'"),
    ],
)
def test_explain_message_deciding_step(found: Evidence, part: str) -> None:
    """The step at which it is, or was lost; no step without a source."""
    assert part in explain_message(ORIGIN, found).verdict


@pytest.mark.parametrize(
    ("found", "what", "part"),
    [
        (topic(), "nobody", "no subscription meets it"),
        (topic(MatchRow(client_id="e", qos=1, why="", window=2, inflight=2)), "window", "its window is full: 2 of 2"),
        (topic(MatchRow(client_id="e", qos=1, why="", window=2, inflight=1)), "no_trace", "no record of it"),
        (topic(MatchRow(client_id="d", qos=1, why="queue_full", durable=True)), "queue_full", "its queue is full"),
        (topic(MatchRow(client_id="e", qos=1, why=""), partitions=(1,)), "no_primary", "partition 1 has subscribers"),
    ],
)
def test_explain_unknown_message_uses_topic(found: TopicView, what: str, part: str) -> None:
    """Conditions that block messages of the topic now; the first step states that the message is unknown."""
    story = explain_unknown_message(explain_message(ORIGIN, Evidence()), found, explain_topic(found, MAP))
    assert story.steps[0].what == "no_trace" and story.cause is not None
    assert story.cause.what == what and part in story.verdict


def test_explain_message_acknowledged_entry_is_not_queued() -> None:
    """It was queued before: the last step decides."""
    entry: dict[str, Any] = {"client_id": "d", "seq": 12}
    events = [
        ("s", TraceEventRow(stage="queued", at_us=5, **entry)),
        ("s", TraceEventRow(stage="acked", at_us=6, **entry)),
        ("e", TraceEventRow(stage="acknowledged", at_us=6, client_id="p")),
    ]
    assert explain_message(ORIGIN, Evidence(events=events)).verdict == "acknowledged for 'p'"
    assert explain_message(ORIGIN, Evidence(events=events[:1])).verdict == "queued for 'd' as entry 12"


def test_explain_message_drop_decides_over_queue() -> None:
    """One receiver has it, another one lost it: the loss comes first."""
    story = explain_message(
        ORIGIN,
        Evidence(
            journal=[("s", JournalRow(event="drop", reason="queue_full", client_id="d"))],
            queued=[("s", "e", QueuedMessageRow(seq=1, state="queued"), 0)],
        ),
    )
    assert story.verdict == "drop for 'd': queue_full" and len(story.steps) == 2


@pytest.mark.parametrize(
    ("found", "what", "part"),
    [
        (
            DeliveryEnd("e", "d", 12, NOW, NOW + 3_000),
            "earlier_connection",
            "an earlier connection; the current one was opened 3 s later",
        ),
        (DeliveryEnd("e", "d", 12, NOW, NOW - 3_000), "acked", "acked for 'd' as entry 12"),
        (DeliveryEnd("e", "d", 12, NOW, None), "acked", "acked for 'd' as entry 12"),
        (
            DeliveryEnd("s", "d", 12, None, NOW),
            "finished",
            "was acknowledged, or dropped; the current connection was opened at",
        ),
        (DeliveryEnd("s", "d", 12), "finished", "entry 12 of 'd' is not in its queue: it was acknowledged, or dropped"),
    ],
)
def test_explain_message_finished_entry(found: DeliveryEnd, what: str, part: str) -> None:
    """A later connection is mentioned; no statement without a source."""
    acked = TraceEventRow(stage="acked", at_us=NOW * 1000, client_id="d", seq=12)
    events = [("e", acked)] if found.acknowledged_at_ms is not None else []
    story = explain_message("entry 12 of 'd'", Evidence(events=events, finished=[found]))
    assert story.cause is not None and story.cause.what == what and part in story.verdict


def test_explain_client_takeover_without_other_cause() -> None:
    """The newest one, for a connected client; a blocking condition decides before it."""
    journal = [JournalRow(event="takeover", node="edge-2", at_ms=NOW - age) for age in (9_000, 4_000)]
    story = explain_client(view({}, OPEN), NOW, [FILTER], journal=journal)
    assert story.cause is not None and (story.cause.what, story.cause.node) == ("takeover", "edge-2")
    assert "took over at 22:14:16 UTC: messages that the earlier one acknowledged are not sent again" in story.verdict
    full = explain_client(view({"queued": 70, "out": 64, "window": 64}, FULL), NOW, [FILTER], journal=journal)
    assert full.cause is not None and full.cause.what == "window"
    assert (
        explain_client(view({"queued": 1, "expires_in_s": -1}), NOW, [FILTER], journal=journal).steps[-1].what
        == "absent"
    )


def test_check_origin_invalid_text_is_refused() -> None:
    """Before a node is queried."""
    for good in (ORIGIN, "session/252-17/9", "will/3/4"):
        assert check_origin(good) == good
    for bad in ("", "edge-1", "edge-1/x/1", "a b/1/2", "edge-1/1/2/3", "session/252-17/9\n", "x" * 70_000):
        with pytest.raises(UserError, match="is not an origin"):
            check_origin(bad)
