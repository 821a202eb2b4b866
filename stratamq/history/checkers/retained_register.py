"""R12: a retained message is a linearizable register per topic, and never goes backwards for a reader.

Writes are retained PUBLISHes (an empty payload clears); reads are new subscriptions that received the retained value.
Topics are searched separately (linearizability is local, Herlihy and Wing 1990), with the algorithm of Wing and Gong
(1993) and the state cache of Lowe (2017). Unread writes of unknown outcome may not have happened and are omitted; a
read one happened before its first read ended. A resent QoS 1 write may happen once more per repeat (at least once,
section 4.3.2).

In addition, no client receives a retained value older than one that it received live on the topic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stratamq.history.history import FOREVER_NS, ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord, Kind
from stratamq.history.verdict import Report

__all__ = ["check"]

STATES_MAX = 300_000  # limit per topic before the result is undecided; a correct history needs few states

CLEARED = ""


@dataclass(frozen=True, slots=True)
class _Step:
    """A read or write of one register between two times."""

    operation: ClientOperation
    write: bool
    value: str
    started_ns: int
    ended_ns: int
    optional: bool = False  # may be skipped, and must not be applied after its end


def check(history: RunHistory) -> Report:
    """Report reads of retained messages that no order of the writes explains (R12)."""
    report = Report("retained_register", "R12")
    writes: dict[str, list[ClientOperation]] = defaultdict(list)
    reads: dict[str, list[ClientOperation]] = defaultdict(list)
    for publish in history.of_kind(Kind.PUBLISH):
        if publish.invoke.retain and publish.may_have_happened:
            writes[publish.invoke.topic].append(publish)
    for read in history.of_kind(Kind.READ):
        if read.ok:
            reads[read.invoke.topic].append(read)
    for topic in sorted(writes.keys() | reads.keys()):
        report.checked += len(reads[topic])
        _check_topic(report, topic, _steps(writes[topic], reads[topic]))
    _check_regress(history, report)
    return report


def _steps(writes: list[ClientOperation], reads: list[ClientOperation]) -> list[_Step]:
    steps = [_Step(r, False, _value(r.completion), r.started_ns, r.ended_ns) for r in reads]
    read_by: dict[str, int] = {}
    for step in steps:
        read_by[step.value] = min(read_by.get(step.value, FOREVER_NS), step.ended_ns)
    for write in writes:
        value, ended_ns = _value(write.invoke), write.ended_ns
        if not write.ok or write.invoke.qos == 0:  # may take effect at any time, or never
            if value not in read_by:
                continue
            ended_ns = read_by[value] if value != CLEARED else FOREVER_NS
            if ended_ns < write.started_ns:
                ended_ns = FOREVER_NS  # read before it was sent: the search rejects it
        steps.append(_Step(write, True, value, write.started_ns, ended_ns))
        if write.invoke.qos == 1 and value in read_by:
            again = [_Step(write, True, value, resend.time_ns, ended_ns, optional=True) for resend in write.resends]
            steps.extend(again)
    return sorted(steps, key=lambda step: (step.started_ns, step.ended_ns))


def _value(record: HistoryRecord | None) -> str:
    return (record.payload if record is not None else None) or CLEARED


def _check_topic(report: Report, topic: str, steps: list[_Step]) -> None:
    outcome, stuck = _search(steps)
    if outcome is None:
        report.notes.append(f"{topic}: undecided after {STATES_MAX} states")
    elif stuck is not None:
        around = [step for step in steps if step.write and step.started_ns <= stuck.ended_ns][-3:]
        what = f"read {stuck.value or 'no value'}" if not stuck.write else f"write {stuck.value or 'clear'}"
        report.add(
            f"{topic} is not linearizable: no order of the operations explains the {what}",
            *(step.operation for step in around if step is not stuck),
            stuck.operation,
        )


def _search(steps: list[_Step]) -> tuple[bool | None, _Step | None]:
    """Search for an order; return whether one exists (None: undecided) and the step where the search failed.

    Steps are bits. A state is the set of applied steps and the value. A step is a candidate if it started before the
    end of every step not yet applied. Steps without an end are optional.
    """
    must = sum(1 << i for i, step in enumerate(steps) if step.ended_ns != FOREVER_NS and not step.optional)
    if not steps or not must:
        return True, None
    seen: set[tuple[int, str]] = set()
    stack: list[tuple[int, int, str]] = [(0, 0, CLEARED)]  # applied steps, first step not applied, value
    best_done, stuck = -1, steps[0]
    while stack:
        done, first, value = stack.pop()
        if done & must == must:
            return True, None
        if (done, value) in seen:
            continue
        seen.add((done, value))
        if len(seen) > STATES_MAX:
            return None, None
        while done >> first & 1:
            first += 1
        candidates, blocker = _candidates(steps, done, first)
        if done.bit_count() > best_done:
            best_done, stuck = done.bit_count(), blocker
        # A read that matches now can always be applied, because it does not change the value.
        reads = [p for p in candidates if not steps[p].write and steps[p].value == value]
        for position in reads[:1] or candidates:
            step = steps[position]
            if step.write or step.value == value:
                stack.append((done | 1 << position, first, step.value))
    return False, stuck


def _candidates(steps: list[_Step], done: int, first: int) -> tuple[list[int], _Step]:
    """Return the candidates, the most urgent last because it is tried first, and the step with the earliest end."""
    due_ns, blocker = FOREVER_NS + 1, steps[first]
    open_steps: list[int] = []
    for position in range(first, len(steps)):
        if steps[position].started_ns > due_ns:
            break
        if done >> position & 1:
            continue
        open_steps.append(position)
        if steps[position].ended_ns < due_ns and not steps[position].optional:
            due_ns, blocker = steps[position].ended_ns, steps[position]
    begun_ns = steps[done.bit_length() - 1].started_ns if done else 0  # start of the last applied step
    candidates = [
        p
        for p in open_steps
        if steps[p].started_ns <= due_ns and not (steps[p].optional and steps[p].ended_ns < begun_ns)
    ]
    candidates.sort(key=lambda p: -steps[p].ended_ns)
    return candidates, blocker


def _check_regress(history: RunHistory, report: Report) -> None:
    """Report retained values that were certainly replaced before a value that the client received live."""
    live: dict[tuple[str, str], list[tuple[ClientOperation, HistoryRecord]]] = defaultdict(list)
    for record in history.receives:
        publish = history.publishes.get(record.payload or "")
        if publish is None or not publish.invoke.retain or record.dup:
            continue  # a redelivery repeats an earlier message in its earlier order
        key = record.client_id, record.topic
        if not record.retain:
            live[key].append((publish, record))
            continue
        for newer, received in live[key]:
            older = publish.ended_ns < newer.started_ns or (
                publish.invoke.process == newer.invoke.process
                and publish.invoke.connection == newer.invoke.connection
                and publish.invoke.operation < newer.invoke.operation
            )
            if older:
                report.add(
                    f"{record.client_id} received retained {record.payload} after it had received the newer "
                    f"{received.payload} live",
                    publish,
                    newer,
                    received,
                    record,
                )
                break
