"""R13: in a shared group each accepted message goes to one member; to another only if that one was lost.

Delivered at least once: if a durable member was certainly subscribed from before the PUBLISH to the end, and a member
is online at the end. Delivered to two members: at QoS 1 only if a connection of one of them ended (or a member
unsubscribed) in between, at QoS 2 only if a session ended in between (after a disconnect the message waits for the same
client, [MQTT-4.8.2-4]). A resent QoS 1 PUBLISH may be queued again.
"""

from __future__ import annotations

from collections import defaultdict

from stratamq.history.checkers.lost import accepted_publishes
from stratamq.history.history import FOREVER_NS, ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord
from stratamq.history.subscriptions import SubscriptionInterval, subscriptions_by_client, topic_matches
from stratamq.history.verdict import Report

__all__ = ["check"]

Group = tuple[str, str]  # share name, topic filter


def check(history: RunHistory) -> Report:
    """Report messages that no member or several members of a group received (R13)."""
    report = Report("shared_group", "R13")
    groups: dict[Group, list[SubscriptionInterval]] = defaultdict(list)
    for subscriptions in subscriptions_by_client(history).values():
        for subscription in subscriptions:
            if subscription.share_name:
                groups[subscription.share_name, subscription.topic_filter].append(subscription)
    for group, members in sorted(groups.items()):
        _check_delivered(history, report, group, members)
        _check_once(history, report, group, members)
    return report


def _check_delivered(history: RunHistory, report: Report, group: Group, members: list[SubscriptionInterval]) -> None:
    drained_ns = history.drained_ns
    if drained_ns is None:
        report.notes.append("no quiet phase at the end: loss was not checked")
        return
    clients = {member.client_id for member in members}
    # An offline member may hold messages, so loss requires that all members are online at the end.
    if absent := sorted(c for c in clients if not history.online_at_end(c) and _is_durable(members, c)):
        report.notes.append(f"{group[0]}: {', '.join(absent)} not online at the end: loss was not checked")
        return
    for publish in accepted_publishes(history):
        if not topic_matches(group[1], publish.invoke.topic):
            continue
        anchor = next(
            (m for m in members if m.durable and m.granted_qos and m.held(publish.started_ns, drained_ns)), None
        )
        if anchor is None:
            continue
        report.checked += 1
        payload = publish.invoke.payload or ""
        if not any(payload in history.received_by.get(client_id, {}) for client_id in clients):
            report.add(f"{payload} was accepted but reached no member of {group[0]}", anchor.subscribe, publish)


def _check_once(history: RunHistory, report: Report, group: Group, members: list[SubscriptionInterval]) -> None:
    clients = sorted({member.client_id for member in members})
    arrivals: dict[str, list[HistoryRecord]] = defaultdict(list)
    for client_id in clients:
        for payload, records in history.received_by.get(client_id, {}).items():
            publish = history.publishes.get(payload)
            if publish is not None and topic_matches(group[1], publish.invoke.topic):
                arrivals[payload].append(records[0])
    for payload, records in arrivals.items():
        publish = history.publishes[payload]
        if len(records) < 2:
            continue
        report.checked += 1
        records.sort(key=lambda record: (record.time_ns, record.line))
        if publish.invoke.qos == 1 and publish.resends:
            continue
        if not _excused(history, publish, records, members):
            names = " and ".join(record.client_id for record in records)
            report.add(f"{payload} went to {names} of {group[0]}", publish, *records)


def _excused(
    history: RunHistory, publish: ClientOperation, records: list[HistoryRecord], members: list[SubscriptionInterval]
) -> bool:
    """Return whether a receiving member was lost between the PUBLISH and the last copy."""
    start_ns, end_ns = publish.started_ns, records[-1].time_ns
    exactly_once = publish.invoke.qos == 2 and any(record.qos == 2 for record in records)
    for record in records:
        if not exactly_once:
            connections = history.connections_of.get(record.client_id, ())
            if any(start_ns <= c.ended_ns <= end_ns for c in connections):
                return True
        for member in members:
            if member.client_id == record.client_id and _ended_within(member, start_ns, end_ns):
                return True
    return False


def _ended_within(member: SubscriptionInterval, start_ns: int, end_ns: int) -> bool:
    """Return whether a member's subscription may have ended in an interval."""
    return member.sure_until_ns != FOREVER_NS and member.sure_until_ns <= end_ns and member.maybe_until_ns >= start_ns


def _is_durable(members: list[SubscriptionInterval], client_id: str) -> bool:
    return any(m.durable for m in members if m.client_id == client_id)
