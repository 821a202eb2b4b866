"""R9: after a new CONNECT is acknowledged, older connections of that client identifier have no effect.

A connection is older if its CONNACK was read before the other's CONNECT was sent; overlapping CONNECTs are not
compared. After the newer CONNACK, operations of the older connection must not succeed, and messages that it publishes
must not be delivered. Messages sent from then on must not be delivered to it (older ones may still be in transit).
"""

from __future__ import annotations

from collections import defaultdict

from stratamq.history.history import ClientConnection, ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord, Kind
from stratamq.history.verdict import Report

__all__ = ["check"]

EFFECTS = (Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE)


def check(history: RunHistory) -> Report:
    """Report effects of a connection after a takeover of its client identifier (R9)."""
    report = Report("single_owner", "R9")
    fences = _fences(history)
    if not fences:
        return report
    deliveries = _deliveries(history)
    for operation in history.operations.values():
        fence = fences.get(operation.invoke.connection)
        if fence is None or operation.invoke.kind not in EFFECTS:
            continue
        report.checked += 1
        if operation.started_ns >= fence.connect.ended_ns and not operation.resends:
            _check_effect(report, operation, fence, deliveries)
    for record in history.receives:
        fence = fences.get(record.connection)
        publish = history.publishes.get(record.payload or "")
        if fence is None or publish is None:
            continue
        report.checked += 1
        if publish.started_ns >= fence.connect.ended_ns:
            report.add(
                f"{record.payload} was delivered to connection {record.connection} of {record.client_id}, though it "
                f"was sent after CONNACK of connection {fence.number}",
                fence.connect,
                publish,
                record,
            )
    return report


def _check_effect(
    report: Report, operation: ClientOperation, fence: ClientConnection, deliveries: dict[str, list[HistoryRecord]]
) -> None:
    invoke = operation.invoke
    delivered = deliveries.get(invoke.payload or "", []) if invoke.kind is Kind.PUBLISH else []
    answered = operation.ok and not (invoke.kind is Kind.PUBLISH and invoke.qos == 0)
    if answered or delivered:
        how = "answered" if answered else "delivered"
        report.add(
            f"{invoke.kind} on connection {invoke.connection} of {invoke.client_id} was {how} after CONNACK of "
            f"connection {fence.number}",
            fence.connect,
            operation,
            *delivered[:1],
        )


def _fences(history: RunHistory) -> dict[int, ClientConnection]:
    """Return the newer connection that was acknowledged first, by connect number."""
    fences: dict[int, ClientConnection] = {}
    for connections in history.connections_of.values():
        acknowledged = sorted((c for c in connections if c.connect.ok), key=lambda c: (c.connect.ended_ns, c.number))
        for older in acknowledged:
            newer = next((c for c in acknowledged if c.connect.started_ns > older.connect.ended_ns), None)
            if newer is not None:
                fences[older.number] = newer
    return fences


def _deliveries(history: RunHistory) -> dict[str, list[HistoryRecord]]:
    deliveries: dict[str, list[HistoryRecord]] = defaultdict(list)
    for record in history.receives:
        deliveries[record.payload or ""].append(record)
    return deliveries
