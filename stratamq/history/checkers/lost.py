"""R1: an accepted QoS 1 or 2 message reaches every durable session that was subscribed when it was sent.

Also R2 and R3, depending on the faults of the run. A message is lost under these conditions: its PUBLISH was accepted,
a durable session was certainly subscribed from before the PUBLISH to the end, the client was online at the end of the
quiet phase, and it never received the message. Drops that the broker counted (``dropped`` events) are subtracted. A
session that the broker lost is no excuse. ``shared_group`` checks shared subscriptions.
"""

from __future__ import annotations

from collections import defaultdict

from stratamq.history.history import ClientOperation, RunHistory
from stratamq.history.operations import Kind
from stratamq.history.subscriptions import HistoryTopicIndex, SubscriptionInterval, subscriptions_by_client
from stratamq.history.verdict import Report

__all__ = ["accepted_publishes", "check"]


def check(history: RunHistory) -> Report:
    """Report accepted messages that a subscriber never received; none without a quiet phase (R1)."""
    report = Report("lost", "R1")
    drained_ns = history.drained_ns
    if drained_ns is None:
        report.notes.append("no quiet phase at the end: loss was not checked")
        return report
    accepted: dict[str, list[ClientOperation]] = defaultdict(list)
    for publish in accepted_publishes(history):
        accepted[publish.invoke.topic].append(publish)
    topics = HistoryTopicIndex(accepted)
    drops = _counted_drops(history)
    for client_id, subscriptions in sorted(subscriptions_by_client(history).items()):
        durable = [s for s in subscriptions if s.durable and s.granted_qos > 0 and not s.share_name]
        if not durable:
            continue
        if not history.online_at_end(client_id):
            report.notes.append(f"{client_id} was not online at the end: its queue was not checked")
            continue
        missing = _missing(history, report, durable, accepted, topics, drained_ns)
        if excused := min(drops[client_id], len(missing)):
            report.notes.append(f"{client_id}: {excused} missing messages are explained by counted drops")
        for publish, subscription in missing[drops[client_id] :]:
            report.add(
                f"{publish.invoke.payload} was accepted but never reached {client_id}",
                subscription.subscribe,
                publish,
            )
    return report


def accepted_publishes(history: RunHistory) -> list[ClientOperation]:
    """Return accepted QoS 1 and 2 publishes with a payload and without expiry, which must be delivered."""
    return [
        publish
        for publish in history.publishes.values()
        if publish.ok and publish.invoke.qos > 0 and publish.invoke.message_expiry_interval_s is None
    ]


def _missing(
    history: RunHistory,
    report: Report,
    subscriptions: list[SubscriptionInterval],
    accepted: dict[str, list[ClientOperation]],
    topics: HistoryTopicIndex,
    drained_ns: int,
) -> list[tuple[ClientOperation, SubscriptionInterval]]:
    received = history.received_by.get(subscriptions[0].client_id, {})
    owed: dict[str, tuple[ClientOperation, SubscriptionInterval]] = {}
    for subscription in subscriptions:
        if subscription.sure_until_ns < drained_ns:
            continue
        for topic in topics.matching(subscription.topic_filter):
            for publish in accepted[topic]:
                if subscription.held(publish.started_ns, drained_ns):
                    owed.setdefault(publish.invoke.payload or "", (publish, subscription))
    report.checked += len(owed)
    return [owing for payload, owing in owed.items() if payload not in received]


def _counted_drops(history: RunHistory) -> defaultdict[str, int]:
    drops: defaultdict[str, int] = defaultdict(int)
    for mark in history.marks:
        if mark.kind is Kind.DROPPED:
            drops[mark.client_id] += mark.count
    return drops
