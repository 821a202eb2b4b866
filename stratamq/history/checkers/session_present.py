"""R10: Session Present is 1 if and only if a stored session is resumed.

A clean start always returns 0. Otherwise the flag must be 1 if a durable session certainly existed, and 0 if none can
have existed. A CONNECT without an answer, or an interval close to the session's expiry, makes both uncertain. After a
wrong 0 the broker has a new session, which is the reference for the next CONNECT.

Source: MQTT 5.0 sections 3.1.2.4, 3.1.2.11.2 and 3.2.2.1.1.
"""

from __future__ import annotations

from stratamq.history.history import FOREVER_NS, ClientConnection, RunHistory
from stratamq.history.operations import NEVER_EXPIRES_S
from stratamq.history.verdict import Report

__all__ = ["check"]

NS_PER_S = 1_000_000_000
DETECTION_S = 5.0  # default time in which the broker certainly detects the end of a connection


def check(history: RunHistory) -> Report:
    """Report CONNACKs whose Session Present flag contradicts the session's history (R10)."""
    report = Report("session_present", "R10")
    detection_ns = int(history.setting("detection_s", DETECTION_S) * NS_PER_S)
    for connections in history.connections_of.values():
        for connection in connections:
            answer = connection.connect.completion
            if connection.connect.ok and answer is not None and answer.session_present is not None:
                report.checked += 1
                _check_answer(report, connection, connections, answer.session_present, detection_ns)
    return report


def _check_answer(
    report: Report, connection: ClientConnection, connections: list[ClientConnection], present: bool, detection_ns: int
) -> None:
    client_id = connection.client_id
    if connection.connect.invoke.clean_start:
        if present:  # [MQTT-3.2.2-2]
            report.add(f"{client_id} started clean and received Session Present 1", connection.connect)
    elif present:
        candidates = reversed(connections)  # the latest is the most likely
        if not any(_may_have_left_session(c, connection, connections, detection_ns) for c in candidates):
            report.add(f"{client_id} received Session Present 1 for a session that cannot exist", connection.connect)
    elif (source := _surely_stored(connection, connections)) is not None:
        report.add(f"the stored session of {client_id} was not resumed", source.connect, connection.connect)


def _surely_stored(connection: ClientConnection, connections: list[ClientConnection]) -> ClientConnection | None:
    """Return the connection whose session must still exist when this CONNECT is processed."""
    start_ns = connection.connect.started_ns
    before = [c for c in connections if c.connect.ok and c.connect.ended_ns < start_ns and c is not connection]
    if not before:
        return None
    source = max(before, key=lambda c: c.connect.ended_ns)
    for other in connections:
        meddles = other.connect.may_have_happened and other is not connection
        overlaps = other.connect.started_ns < connection.connect.ended_ns
        if meddles and overlaps and other.connect.ended_ns >= source.connect.started_ns and not _durable(other):
            return None
    if not _durable(source) or _may_have_expired(source, connection):
        return None
    return source


def _may_have_expired(source: ClientConnection, connection: ClientConnection) -> bool:
    """Return whether the source's session may have expired before this CONNECT."""
    expiry_s = _expiry_s(source)
    if expiry_s == NEVER_EXPIRES_S:
        return False
    absent_since_ns = max(source.last_seen_ns, source.connect.started_ns)
    return connection.connect.ended_ns - absent_since_ns > expiry_s * NS_PER_S


def _may_have_left_session(
    source: ClientConnection, connection: ClientConnection, connections: list[ClientConnection], detection_ns: int
) -> bool:
    """Return whether the source's session can still exist when this CONNECT is processed."""
    start_ns = connection.connect.started_ns
    earlier = source.connect.started_ns < connection.connect.ended_ns
    if source is connection or not earlier or not source.connect.may_have_happened:
        return False
    for other in connections:  # a connection certainly in between determines the remaining session
        if (
            other is not source
            and other is not connection
            and other.connect.ok
            and source.connect.ended_ns < other.connect.started_ns
            and other.connect.ended_ns < start_ns
        ):
            return False
    if source.ended_ns == FOREVER_NS or not source.connect.ok:
        return True
    expiry_s = _expiry_s(source)
    if expiry_s == NEVER_EXPIRES_S:
        return True
    return start_ns <= source.ended_ns + expiry_s * NS_PER_S + detection_ns


def _expiry_s(connection: ClientConnection) -> int:
    """Return the session expiry interval in force; DISCONNECT may lower it to 0 (recorded as reason)."""
    disconnect = connection.disconnect
    if disconnect is not None and disconnect.invoke.reason == "end session":
        return 0
    return connection.connect.invoke.session_expiry_interval_s


def _durable(connection: ClientConnection) -> bool:
    return _expiry_s(connection) > 0
