"""R15: time that clients waited for a success, per kind of operation and per fault.

A gap of a client program starts at its first invoke without success and ends at its next success of that kind, over all
attempts in between; idle time does not count. Findings require a limit in the history (``unavailability_limit_s``), or
a client that could not reconnect in the quiet phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from stratamq.history.history import ClientOperation, RunHistory
from stratamq.history.operations import HistoryRecord, Kind
from stratamq.history.verdict import Report

__all__ = ["FaultGap", "Gap", "check", "gaps", "gaps_after_faults"]

NS_PER_S = 1_000_000_000
ANSWERED = (Kind.CONNECT, Kind.SUBSCRIBE, Kind.PUBLISH)


@dataclass(frozen=True, slots=True)
class Gap:
    """One wait for a success; ok is None if none came before the end of the history."""

    kind: Kind
    process: str
    start_ns: int
    end_ns: int
    first: ClientOperation
    ok: ClientOperation | None

    @property
    def length_s(self) -> float:
        """Length of the gap, s."""
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class FaultGap:
    """The longest wait of any client that overlaps the interval from one fault to the next."""

    fault: HistoryRecord
    kind: Kind
    length_s: float


def check(history: RunHistory) -> Report:
    """Report the longest gap of each kind of operation, and those above ``unavailability_limit_s`` (R15)."""
    report = Report("unavailability", "R15")
    limit_s = history.setting("unavailability_limit_s", 0.0)
    longest: dict[Kind, Gap] = {}
    for gap in gaps(history):
        report.checked += 1
        if gap.kind not in longest or gap.length_s > longest[gap.kind].length_s:
            longest[gap.kind] = gap
        if limit_s and gap.length_s > limit_s:
            last = [gap.ok] if gap.ok is not None else []
            report.add(f"{gap.process} waited {gap.length_s:.2f} s for {gap.kind}", gap.first, *last)
    for kind, gap in sorted(longest.items()):
        report.notes.append(f"longest wait for {kind}: {gap.length_s:.3f} s ({gap.process})")
    for kind in ANSWERED:
        lengths = [gap.length_s for gap in gaps_after_faults(history) if gap.kind is kind]
        if lengths:
            report.notes.append(
                f"{kind} after {len(lengths)} faults: median {median(lengths):.3f} s, worst {max(lengths):.3f} s"
            )
    _check_quiet_phase(history, report)
    return report


def gaps(history: RunHistory) -> Iterator[Gap]:
    """Yield every wait of every client program, in order of its end."""
    events: list[tuple[int, int, bool, ClientOperation]] = []
    for operation in history.operations.values():
        if operation.invoke.kind in ANSWERED and not _unanswered_by_nature(operation):
            events.append((operation.started_ns, operation.invoke.operation, False, operation))
            if operation.ok:
                events.append((operation.ended_ns, operation.invoke.operation, True, operation))
    events.sort(key=lambda event: event[:3])
    waiting: dict[tuple[Kind, str], list[ClientOperation]] = defaultdict(list)
    succeeded_ns: dict[tuple[Kind, str], int] = defaultdict(int)
    for time_ns, _, succeeded, operation in events:
        key = operation.invoke.kind, operation.invoke.process
        if not succeeded:
            waiting[key].append(operation)
            continue
        first = waiting[key][0]
        yield Gap(*key, max(first.started_ns, succeeded_ns[key]), time_ns, first, operation)
        succeeded_ns[key] = time_ns
        # Operations in flight with a later answer wait from now on; all others were abandoned before this success.
        waiting[key] = [o for o in waiting[key] if o is not operation and o.ended_ns >= time_ns and o.ok]
    for key, operations in waiting.items():
        if operations:
            start_ns = max(operations[0].started_ns, succeeded_ns[key])
            yield Gap(*key, start_ns, max(history.end_ns, start_ns), operations[0], None)


def gaps_after_faults(history: RunHistory) -> list[FaultGap]:
    """Return the longest wait before the next fault, per fault and kind of operation."""
    faults = [mark for mark in history.marks if mark.kind in (Kind.KILL, Kind.FAULT)]
    bounds = [fault.time_ns for fault in faults] + [history.end_ns]
    longest: dict[tuple[int, Kind], float] = {}
    for gap in gaps(history):
        for number in range(len(faults)):
            if gap.end_ns > bounds[number] and gap.start_ns < bounds[number + 1]:
                length_s = (gap.end_ns - max(gap.start_ns, bounds[number])) / NS_PER_S
                longest[number, gap.kind] = max(longest.get((number, gap.kind), 0.0), length_s)
    return [FaultGap(faults[number], kind, length) for (number, kind), length in sorted(longest.items())]


def _check_quiet_phase(history: RunHistory, report: Report) -> None:
    """Report clients that tried to connect in the quiet phase without success."""
    quiet_ns, drained_ns = history.quiet_ns, history.drained_ns
    if quiet_ns is None or drained_ns is None:
        return
    for client_id, connections in sorted(history.connections_of.items()):
        tried = [c for c in connections if quiet_ns <= c.connect.started_ns <= drained_ns]
        if tried and not history.online_at_end(client_id) and not any(c.connect.ok for c in tried):
            report.add(f"{client_id} could not connect in the quiet phase", tried[0].connect, tried[-1].connect)


def _unanswered_by_nature(operation: ClientOperation) -> bool:
    return operation.invoke.kind is Kind.PUBLISH and operation.invoke.qos == 0
