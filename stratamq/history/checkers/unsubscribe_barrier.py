"""R5: after UNSUBACK no later message is queued for that subscription.

A receive is a finding if no matching subscription of the client was possible between the PUBLISH and the receive. This
covers messages after an UNSUBACK, after a clean start, and to clients without subscriptions, for any QoS and outcome of
the PUBLISH.
"""

from __future__ import annotations

from collections import defaultdict

from stratamq.history.history import ClientOperation, RunHistory
from stratamq.history.operations import Kind
from stratamq.history.subscriptions import (
    HistoryTopicIndex,
    SubscriptionInterval,
    subscriptions_by_client,
    topic_matches,
)
from stratamq.history.verdict import Report

__all__ = ["check"]


def check(history: RunHistory) -> Report:
    """Report receives that no subscription of the client explains, for example after UNSUBACK (R5)."""
    report = Report("unsubscribe_barrier", "R5")
    subscriptions = subscriptions_by_client(history)
    topics = HistoryTopicIndex({publish.invoke.topic for publish in history.publishes.values()})
    for client_id, messages in sorted(history.received_by.items()):
        by_topic: dict[str, list[SubscriptionInterval]] = defaultdict(list)
        for subscription in subscriptions.get(client_id, []):
            for topic in topics.matching(subscription.topic_filter):
                by_topic[topic].append(subscription)
        for payload, receives in messages.items():
            publish = history.publishes.get(payload)
            if publish is None:
                continue
            matching = by_topic.get(publish.invoke.topic, [])
            for record in receives:
                report.checked += 1
                start_ns = publish.started_ns
                if record.retain and not record.dup:
                    start_ns = record.time_ns  # a retained value is older than the subscription that fetched it
                if not any(s.possible_within(start_ns, record.time_ns) for s in matching):
                    report.add(
                        f"{client_id} received {payload}, sent when it was not subscribed to {publish.invoke.topic}",
                        *_unsubscribes(history, client_id, publish),
                        publish,
                        record,
                    )
                    break
    return report


def _unsubscribes(history: RunHistory, client_id: str, publish: ClientOperation) -> list[ClientOperation]:
    """Return the UNSUBSCRIBEs that were answered before the message was sent."""
    return [
        operation
        for operation in history.of_kind(Kind.UNSUBSCRIBE)
        if operation.invoke.client_id == client_id
        and operation.ended_ns <= publish.started_ns
        and topic_matches(operation.invoke.topic_filter, publish.invoke.topic)
    ]
