"""R11: a will is published exactly once per connection that ends abnormally, never after an accepted DISCONNECT.

Checked with watchers: clients whose durable subscription to the will topic certainly existed from before the CONNECT to
the end. Every will payload is unique to its connection. A second publication is a second receive without DUP (QoS 1) or
a second delivery (QoS 2). With a will delay, a session that is resumed earlier must suppress the will; close to the
limit both are correct. Detection time is not limited by this guarantee; it starts when the broker serves a client.

Source: MQTT 5.0 sections 3.1.2.5 and 3.1.3.2.2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from functools import lru_cache
from itertools import accumulate

from stratamq.history.history import FOREVER_NS, ClientConnection, ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord, Kind
from stratamq.history.subscriptions import SubscriptionInterval, subscriptions_by_client, topic_matches
from stratamq.history.verdict import Report

NS_PER_S = 1_000_000_000
DETECTION_S = 5.0  # default time in which the broker certainly detects the end of a connection
DRAIN = "drain"  # reason of the marks at its start (a fault) and end
TAKEN_BACK_NS = 2 * NS_PER_S  # from the mark until the edge has received it
KILL_MARK_NS = 200_000_000  # tolerance between a kill and its mark

__all__ = ["check"]


def check(history: RunHistory) -> Report:
    """Report wills that were published more than once, or contrary to the end of their connection (R11)."""
    report = Report("will_once", "R11")
    receives: dict[str, list[HistoryRecord]] = defaultdict(list)
    for record in history.receives:
        if record.payload and record.handed_over and not record.retain:
            receives[record.payload].append(record)
    watchers = _watchers(history)
    for connection in history.connections.values():
        will = connection.connect.invoke.will_payload
        if will:
            report.checked += 1
            _check_will(history, report, connection, receives[will], watchers)
    return report


def _check_will(
    history: RunHistory,
    report: Report,
    connection: ClientConnection,
    receives: list[HistoryRecord],
    watchers: list[SubscriptionInterval],
) -> None:
    will = connection.connect.invoke.will_payload
    proof = [connection.connect, *([connection.disconnect] if connection.disconnect else [])]
    ends = [connection.close] if connection.close is not None else []
    least, most = _expected(history, connection)
    if receives and most == 0:
        report.add(f"will {will} was published, though it must not be", *proof, *ends, *receives[:1])
    for (client_id, _), records in _by_watcher(receives).items():
        if len(records) > 1:
            report.add(f"will {will} reached {client_id} {len(records)} times", *proof, *ends, *records)
    if least == 0:
        return
    heard = {record.client_id for record in receives}
    for client_id in _obliged_watchers(connection, watchers):
        if client_id not in heard:
            report.add(f"will {will} was never published to {client_id}", *proof, *ends)


def _by_watcher(receives: list[HistoryRecord]) -> dict[tuple[str, int], list[HistoryRecord]]:
    """Group publications, without redeliveries, by watcher and connection (QoS 2: any connection)."""
    grouped: dict[tuple[str, int], list[HistoryRecord]] = defaultdict(list)
    for record in receives:
        if record.qos == 2:
            grouped[record.client_id, 0].append(record)
        elif not record.dup:
            grouped[record.client_id, record.connection].append(record)
    return grouped


def _expected(history: RunHistory, connection: ClientConnection) -> tuple[int, int]:
    """Return the minimum and maximum number of publications of the will."""
    if not connection.connect.may_have_happened:
        return 0, 0
    if not connection.connect.ok:
        return 0, 1
    disconnect = connection.disconnect
    if disconnect is not None and not disconnect.invoke.reason_code:  # 0x00 discards the will [MQTT-3.1.2-10]
        surely = disconnect.ok and not _killed_during(history, disconnect) and not _drained_during(history, connection)
        return (0, 0) if surely else (0, 1)
    if connection.ended_ns == FOREVER_NS:
        return 0, 0
    drained_ns = history.drained_ns
    if drained_ns is not None and connection.ended_ns >= drained_ns:
        return 0, 1
    return _after_delay(history, connection)


def _killed_during(history: RunHistory, disconnect: ClientOperation) -> bool:
    """Return whether a kill may have closed the connection, because its end equals that of a processed DISCONNECT."""
    start_ns, end_ns = disconnect.started_ns - KILL_MARK_NS, disconnect.ended_ns + KILL_MARK_NS
    return any(mark.kind is Kind.KILL and start_ns <= mark.time_ns <= end_ns for mark in history.marks)


def _drained_during(history: RunHistory, connection: ClientConnection) -> bool:
    """Return whether a drain of its edge may have closed the connection before the DISCONNECT was read."""
    edge = connection.connect.invoke.target.rpartition(":")[0]
    drains = [mark for mark in history.marks if mark.target == edge and mark.reason == DRAIN]
    before = [mark for mark in drains if mark.time_ns <= connection.ended_ns]
    return bool(before) and (before[-1].kind is Kind.FAULT or connection.ended_ns <= before[-1].time_ns + TAKEN_BACK_NS)


def _after_delay(history: RunHistory, connection: ClientConnection) -> tuple[int, int]:
    """Return the expected publications after an abnormal end, from the will delay and the next CONNECTs."""
    asked = connection.connect.invoke
    delay_ns = min(asked.will_delay_interval_s, asked.session_expiry_interval_s) * NS_PER_S
    detection_ns = int(history.setting("detection_s", DETECTION_S) * NS_PER_S)
    fires_by_ns = _served_ns(history, connection.ended_ns) + delay_ns + detection_ns
    if delay_ns:
        for other in history.connections_of[connection.client_id]:
            if other is connection or not other.connect.may_have_happened:
                continue
            if other.connect.started_ns > fires_by_ns:
                continue
            if _carried_out_by_ns(history, other, detection_ns) <= connection.connect.started_ns:
                continue
            follows = other.connect.started_ns >= connection.connect.ended_ns
            resumed = follows and other.connect.ok and not other.connect.invoke.clean_start
            in_time = other.connect.ended_ns < max(connection.last_seen_ns, connection.connect.ended_ns) + delay_ns
            return (0, 0) if resumed and in_time else (0, 1)
    end_ns = history.drained_ns
    return (0, 1) if end_ns is None or fires_by_ns > end_ns else (1, 1)


def _carried_out_by_ns(history: RunHistory, connection: ClientConnection, detection_ns: int) -> int:
    """Return the time by which a CONNECT had its effect, if any; an abandoned one may still be in transit."""
    connect = connection.connect
    if connect.ok or connect.completion is None:
        return connect.ended_ns
    return _served_ns(history, connect.completion.time_ns) + detection_ns


def _served_ns(history: RunHistory, ended_ns: int) -> int:
    """Return when the broker certainly served a client again; earlier it need not detect connection ends."""
    started, answered = _answers(history)
    after = bisect_left(started, ended_ns)
    return answered[after] if after < len(answered) else ended_ns


@lru_cache(maxsize=1)
def _answers(history: RunHistory) -> tuple[list[int], list[int]]:
    """Return the invoke times of answered operations in order, and the first answer to each or any later one."""
    served = sorted(
        (operation.started_ns, operation.ended_ns)
        for kind in (Kind.CONNECT, Kind.SUBSCRIBE, Kind.PUBLISH)
        for operation in history.of_kind(kind)
        if operation.ok and (kind is not Kind.PUBLISH or operation.invoke.qos)  # QoS 0 is "ok" unanswered
    )
    first = list(accumulate((ended_ns for _, ended_ns in reversed(served)), min))
    return [started_ns for started_ns, _ in served], first[::-1]


def _watchers(history: RunHistory) -> list[SubscriptionInterval]:
    """Return durable subscriptions that existed to the end of the quiet phase, of clients online then."""
    drained_ns = history.drained_ns
    if drained_ns is None:
        return []
    return [
        subscription
        for client_id, subscriptions in sorted(subscriptions_by_client(history).items())
        if history.online_at_end(client_id)
        for subscription in subscriptions
        if subscription.durable
        and subscription.granted_qos > 0
        and not subscription.share_name
        and subscription.sure_until_ns >= drained_ns
    ]


def _obliged_watchers(connection: ClientConnection, watchers: list[SubscriptionInterval]) -> list[str]:
    """Return the clients that must have received the will of a connection."""
    asked = connection.connect.invoke
    heard_by = {
        w.client_id
        for w in watchers
        if w.sure_from_ns <= connection.connect.started_ns and topic_matches(w.topic_filter, asked.will_topic)
    }
    return sorted(heard_by) if asked.will_qos > 0 else []
