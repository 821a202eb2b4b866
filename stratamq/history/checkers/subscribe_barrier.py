"""R4: after SUBACK was read, every accepted PUBLISH sent through any edge reaches that session.

Applies while the connection exists. A message is proven missing if the connection of an ephemeral session was still
open at the end of the quiet phase (``lost`` checks durable ones), or if the connection received a later message of the
same client, topic and QoS, because messages of a publisher are ordered (R6). A PUBLISH that overlaps the SUBSCRIBE may
or may not arrive. Clients with counted drops are not checked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from stratamq.history.checkers.lost import accepted_publishes
from stratamq.history.history import FOREVER_NS, ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord, Kind
from stratamq.history.subscriptions import HistoryTopicIndex, SubscriptionInterval, subscriptions_by_client
from stratamq.history.verdict import Report

__all__ = ["check"]

Stream = tuple[str, str, int]  # process, topic, QoS


def check(history: RunHistory) -> Report:
    """Report messages that were published after SUBACK and not delivered (R4)."""
    report = Report("subscribe_barrier", "R4")
    by_topic: dict[str, list[ClientOperation]] = defaultdict(list)
    for publish in accepted_publishes(history):
        by_topic[publish.invoke.topic].append(publish)
    topics = HistoryTopicIndex(by_topic)
    dropped = {mark.client_id for mark in history.marks if mark.kind is Kind.DROPPED and mark.count}
    for client_id, subscriptions in sorted(subscriptions_by_client(history).items()):
        if client_id in dropped:
            continue
        for subscription in subscriptions:
            if subscription.granted_qos and not subscription.share_name and subscription.subscribe.ok:
                for topic in topics.matching(subscription.topic_filter):
                    _check_subscription(history, report, client_id, subscription, by_topic[topic])
    return report


def _check_subscription(
    history: RunHistory,
    report: Report,
    client_id: str,
    subscription: SubscriptionInterval,
    publishes: list[ClientOperation],
) -> None:
    connection = history.connections.get(subscription.subscribe.invoke.connection)
    if connection is None:
        return
    received = history.received_by.get(client_id, {})
    until_ns = min(subscription.sure_until_ns, connection.ended_ns, _first_rival_ns(history, subscription))
    first = bisect_left(publishes, subscription.sure_from_ns, key=_started_ns)
    publishes = publishes[first : bisect_right(publishes, until_ns, key=_started_ns)]
    drained_ns = history.drained_ns
    stayed = drained_ns is not None and drained_ns <= until_ns and not subscription.durable
    latest = _latest_received(publishes, received, connection.number, until_ns)
    for publish in publishes:
        report.checked += 1
        if publish.invoke.payload in received:
            continue
        overtaker = latest.get(_stream(publish))
        if stayed:
            report.add(
                f"{publish.invoke.payload} was sent after SUBACK and accepted but never reached {client_id}",
                subscription.subscribe,
                publish,
            )
        elif overtaker is not None and _proves_a_gap(publish, *overtaker):
            report.add(
                f"{client_id} received {overtaker[0].invoke.payload} but not {publish.invoke.payload}, sent before "
                "it and after SUBACK",
                subscription.subscribe,
                publish,
                overtaker[0],
                overtaker[1],
            )


def _proves_a_gap(publish: ClientOperation, overtaker: ClientOperation, received: HistoryRecord) -> bool:
    """Return whether a message was sent before the received one, and accepted before its arrival."""
    sent_before = publish.invoke.operation < overtaker.invoke.operation
    return sent_before and publish.ended_ns <= received.time_ns


def _latest_received(
    publishes: list[ClientOperation], received: dict[str, list[HistoryRecord]], connection: int, until_ns: int
) -> dict[Stream, tuple[ClientOperation, HistoryRecord]]:
    """Return, per stream, the latest-sent message that this connection received live by then.

    After an UNSUBSCRIBE another subscription may deliver it, so it proves no gap.
    """
    latest: dict[Stream, tuple[ClientOperation, HistoryRecord]] = {}
    for publish in publishes:  # in order of sending
        records = received.get(publish.invoke.payload or "", ())
        live = (r for r in records if r.connection == connection and not r.retain)
        record = next((r for r in live if r.time_ns <= until_ns), None)
        if record is not None:
            latest[_stream(publish)] = (publish, record)
    return latest


def _first_rival_ns(history: RunHistory, subscription: SubscriptionInterval) -> int:
    """Return the earliest time at which another CONNECT may have taken over the session."""
    own = subscription.subscribe.invoke.connection
    return min(
        (
            c.connect.started_ns
            for c in history.connections_of.get(subscription.client_id, ())
            if c.number != own and c.connect.ended_ns > subscription.maybe_from_ns
        ),
        default=FOREVER_NS,
    )


def _stream(publish: ClientOperation) -> Stream:
    return publish.invoke.process, publish.invoke.topic, publish.invoke.qos


def _started_ns(publish: ClientOperation) -> int:
    return publish.started_ns
