"""R14: a failure code is true, and a received message equals the sent one.

A message with a failure code must reach no client. An unknown identifier, a wrong checksum, a wrong topic, or a receive
before the PUBLISH means that the broker invented or altered it (R3). A refused publish that was sent twice is unknown,
because the first copy may have been accepted; so is one without an answer.
"""

from __future__ import annotations

from stratamq.history.history import RunHistory
from stratamq.history.verdict import Report

__all__ = ["check"]


def check(history: RunHistory) -> Report:
    """Report received messages that were never sent in this form, or were refused (R3, R14)."""
    report = Report("aborted_reads", "R14, R3")
    wills = {
        c.connect.invoke.will_payload: c.connect for c in history.connections.values() if c.connect.invoke.will_payload
    }
    for record in history.receives:
        if record.payload == "":
            continue  # the empty payload clears a retained message and has no identifier
        report.checked += 1
        sent = history.publishes.get(record.payload or "") or wills.get(record.payload or "")
        if record.damaged:
            report.add(f"{record.client_id} received altered bytes", record)
        elif sent is None:
            report.add(f"{record.client_id} received {record.payload}, which no client sent", record)
        elif record.topic != (sent.invoke.will_topic or sent.invoke.topic):
            report.add(f"{record.client_id} received {record.payload} on {record.topic}", sent, record)
        elif record.time_ns < sent.started_ns:
            report.add(f"{record.client_id} received {record.payload} before it was sent", sent, record)
        elif not sent.may_have_happened:
            report.add(f"{record.client_id} received {record.payload}, which was refused", sent, record)
    return report
