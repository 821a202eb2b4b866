"""R7 and R8: a QoS 2 message is delivered once.

Outbound: a client with stored state ignores a packet identifier that it has not released. Each QoS 2 message is
therefore delivered once per session, across reconnects. A PUBLISH that the broker repeats after PUBREC is also found:
the client has released the identifier and takes it as a new message. Inbound: a QoS 2 PUBLISH that was resent before
PUBCOMP enters each queue once. If the subscription has QoS 1, two deliveries on one connection without DUP are two
queue entries.

Overlapping subscriptions may each deliver a copy (MQTT 5.0 section 3.3.4). The scope ends with a clean start; a session
that the broker lost is no excuse.
"""

from __future__ import annotations

from collections import defaultdict

from stratamq.history.history import RunHistory
from stratamq.history.operations import HistoryRecord
from stratamq.history.subscriptions import SubscriptionInterval, subscriptions_by_client, topic_matches
from stratamq.history.verdict import Report

__all__ = ["check"]


def check(history: RunHistory) -> Report:
    """Report QoS 2 messages that one session received more than once (R7, R8)."""
    report = Report("duplicate", "R7, R8")
    subscriptions = subscriptions_by_client(history)
    for client_id, messages in sorted(history.received_by.items()):
        own = subscriptions.get(client_id, [])
        for payload, receives in messages.items():
            publish = history.publishes.get(payload)
            if publish is None or publish.invoke.qos != 2:
                continue
            report.checked += 1
            live = [r for r in receives if not r.retain]
            if len(live) < 2:
                continue
            copies = max(1, _filters_that_match(own, publish.invoke.topic))
            _check_handed_over(history, report, client_id, [r for r in live if r.qos == 2], copies)
            _check_entered_once(report, client_id, [r for r in live if r.qos == 1 and not r.dup], copies)
    return report


def _check_handed_over(
    history: RunHistory, report: Report, client_id: str, receives: list[HistoryRecord], copies: int
) -> None:
    by_session: dict[int, list[HistoryRecord]] = defaultdict(list)
    for record in receives:
        by_session[_clean_starts_before(history, client_id, record)].append(record)
    for records in by_session.values():
        if len(records) > copies:
            publish = history.publishes[records[0].payload or ""]
            report.add(
                f"{records[0].payload} was delivered to {client_id} {len(records)} times at QoS 2", publish, *records
            )


def _check_entered_once(report: Report, client_id: str, receives: list[HistoryRecord], copies: int) -> None:
    by_connection: dict[int, list[HistoryRecord]] = defaultdict(list)
    for record in receives:
        by_connection[record.connection].append(record)
    for records in by_connection.values():
        if len(records) > copies:
            report.add(
                f"{records[0].payload}, published at QoS 2, was queued for {client_id} {len(records)} times",
                *records,
            )


def _clean_starts_before(history: RunHistory, client_id: str, record: HistoryRecord) -> int:
    """Return the number of clean starts of a client up to the connection of the record."""
    return sum(
        connection.connect.invoke.clean_start
        for connection in history.connections_of.get(client_id, ())
        if connection.number <= record.connection
    )


def _filters_that_match(subscriptions: list[SubscriptionInterval], topic: str) -> int:
    return len({s.subscribe.invoke.topic_filter for s in subscriptions if topic_matches(s.topic_filter, topic)})
