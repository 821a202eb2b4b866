"""R6: first deliveries arrive in the order in which one client sent on one topic at one QoS.

Checked per subscriber outside shared groups and per QoS of delivery, as QoS 0 copies do not wait for queued QoS 1
messages. Retained replay is not a first delivery. A message with unknown outcome may arrive late after its publisher
reconnects, so it is compared only with messages first sent on the same connection; so is a QoS 0 message. A message
that was sent before a SUBSCRIBE, and resent after it, may arrive after messages in between, because only its repeat
found a subscription. If several programs use one client identifier, arrival times on different connections do not show
the delivery order, so each connection is checked separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from stratamq.history.history import ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord, Kind
from stratamq.history.subscriptions import SubscriptionInterval, subscriptions_by_client, topic_matches
from stratamq.history.verdict import Report

__all__ = ["check"]

Arrival = tuple[ClientOperation, HistoryRecord]


@dataclass(slots=True)
class _Stream:
    """Latest-sent message received from one publisher, topic and QoS, overall and per publishing connection."""

    latest: Arrival | None = None
    latest_by_connection: dict[int, Arrival] = field(default_factory=dict)

    def overtaken_by(self, arrival: Arrival) -> Arrival | None:
        """Return a later-sent message that arrived earlier; store this one."""
        publish = arrival[0]
        sent_on = publish.invoke.connection
        rivals = [self.latest_by_connection.get(sent_on)]
        if publish.ok and publish.invoke.qos:
            rivals.append(self.latest)
        self.latest = _later(self.latest, arrival)
        self.latest_by_connection[sent_on] = _later(self.latest_by_connection.get(sent_on), arrival)
        number = publish.invoke.operation
        return next((r for r in rivals if r is not None and r[0].invoke.operation > number), None)


def check(history: RunHistory) -> Report:
    """Report messages of one publisher, topic and QoS out of order (R6), except in shared groups."""
    report = Report("order", "R6")
    sharing = {
        client_id
        for client_id, subscriptions in subscriptions_by_client(history).items()
        if any(s.share_name for s in subscriptions)
    }
    for client_id in sorted(history.received_by.keys() - sharing):
        subscriptions = subscriptions_by_client(history).get(client_id, [])
        for arrivals in _deliveries(history, client_id):
            _check_arrivals(report, client_id, arrivals, subscriptions)
    return report


def _check_arrivals(
    report: Report, client_id: str, arrivals: list[Arrival], subscriptions: list[SubscriptionInterval]
) -> None:
    streams: dict[tuple[str, str, int, int], _Stream] = defaultdict(_Stream)
    for publish, record in arrivals:
        report.checked += 1
        invoke = publish.invoke
        stream = streams[invoke.process, invoke.topic, invoke.qos, record.qos]
        earlier = stream.overtaken_by((publish, record))
        if earlier is not None and not _may_be_repeat_only(publish, record, subscriptions):
            report.add(
                f"{client_id} received {invoke.payload} after {earlier[0].invoke.payload}, which was sent later",
                publish,
                earlier[0],
                earlier[1],
                record,
            )


def _may_be_repeat_only(
    publish: ClientOperation, record: HistoryRecord, subscriptions: list[SubscriptionInterval]
) -> bool:
    """Return whether this may be a repeat whose first copy found no subscription."""
    if not any(again.time_ns <= record.time_ns for again in publish.resends):
        return False
    return not any(
        subscription.held(publish.started_ns, record.time_ns)
        and topic_matches(subscription.topic_filter, publish.invoke.topic)
        for subscription in subscriptions
    )


def _deliveries(history: RunHistory, client_id: str) -> Iterator[list[Arrival]]:
    """Yield the first deliveries of one client, in one list per connection if connections may overlap."""
    processes = {c.connect.invoke.process for c in history.connections_of.get(client_id, ())}
    firsts = []
    for payload, receives in history.received_by[client_id].items():
        publish = history.publishes.get(payload)
        live = [r for r in receives if not r.retain]
        if publish is None or publish.invoke.kind is not Kind.PUBLISH or not live:
            continue
        if len(processes) > 1 and len({r.connection for r in live}) > 1:
            continue
        firsts.append((publish, live[0]))
    firsts.sort(key=lambda arrival: (arrival[1].time_ns, arrival[1].line))
    if len(processes) <= 1:
        yield firsts
        return
    by_connection: dict[int, list[Arrival]] = defaultdict(list)
    for arrival in firsts:
        by_connection[arrival[1].connection].append(arrival)
    yield from by_connection.values()


def _later(current: Arrival | None, arrival: Arrival) -> Arrival:
    if current is None or arrival[0].invoke.operation > current[0].invoke.operation:
        return arrival
    return current
