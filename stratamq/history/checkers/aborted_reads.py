"""R14: an error answer is true, and what arrives is what was sent.

A message answered with a failure code must reach nobody. An identifier that nobody sent, a wrong checksum, a wrong
topic, or a receive before the PUBLISH are worse: the broker made it up or altered it (R3). A publish that went out
twice before its refusal is unknown, since its first copy may have been accepted; so is one never answered.
"""

from __future__ import annotations

from stratamq.history.history import RunHistory
from stratamq.history.verdict import Report

__all__ = ["check"]


def check(history: RunHistory) -> Report:
    """Report receives of what nobody published so, or whose publisher was told that it failed (R3, R14)."""
    report = Report("aborted_reads", "R14, R3")
    wills = {
        c.connect.invoke.will_payload: c.connect for c in history.connections.values() if c.connect.invoke.will_payload
    }
    for record in history.receives:
        if record.payload == "":
            continue  # the empty payload clears a retained message and belongs to nobody
        report.checked += 1
        sent = history.publishes.get(record.payload or "") or wills.get(record.payload or "")
        if record.damaged:
            report.add(f"{record.client_id} received altered bytes", record)
        elif sent is None:
            report.add(f"{record.client_id} received {record.payload}, which nobody sent", record)
        elif record.topic != (sent.invoke.will_topic or sent.invoke.topic):
            report.add(f"{record.client_id} received {record.payload} on {record.topic}", sent, record)
        elif record.time_ns < sent.started_ns:
            report.add(f"{record.client_id} received {record.payload} before it was sent", sent, record)
        elif not sent.may_have_happened:
            report.add(f"{record.client_id} received {record.payload}, which was refused", sent, record)
    return report
