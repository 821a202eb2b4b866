"""The result of one schedule, stored as a line of JSON, and the tables of many such lines."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from stratamq.history.checkers.unavailability import gaps_after_faults
from stratamq.history.history import RunHistory
from stratamq.history.operations import HistoryRecord, Kind, OperationPhase
from stratamq.history.verdict import HistoryVerdict, Violation
from tests.chaos.schedule import Schedule, tier_of

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "chaos.jsonl"
LEASE_S = 2.5  # an edge's lease and a margin: until then an older connection may still act at an unresponsive edge
MEASURED = (Kind.CONNECT, Kind.PUBLISH, Kind.SUBSCRIBE)

__all__ = [
    "RESULTS",
    "Result",
    "Wait",
    "fault_table",
    "is_outside",
    "points_line",
    "read_results",
    "result_of",
    "wait_table",
]


class Wait(msgspec.Struct, frozen=True):
    """The longest wait of any client for one kind of answer after one fault."""

    tier: str
    fault: str
    kind: str
    seconds: float


class Result(msgspec.Struct, frozen=True):
    """One schedule.

    Attributes:
        shape: Routers/storages/edges.
        slow: Faults without complete recovery in time.
        ended: Processes that ended unexpectedly.
        accepted: QoS 1 and 2 publishes with a success answer.
        points: Crash points that were armed (F02), and how often they were reached.
        known: Findings that no promise excludes (``is_outside``); not among ``found``.
    """

    date: str
    row: str
    seed: int
    workload: str
    shape: str
    faults: tuple[str, ...]
    accepted: int
    checked: dict[str, int]
    found: dict[str, int]
    waits: tuple[Wait, ...]
    slow: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    complete: bool = True
    known: dict[str, int] = {}
    points: dict[str, int] = {}

    @property
    def clean(self) -> bool:
        """Whether no promise was seen broken and no process ended by itself."""
        return self.complete and not any(self.found.values()) and not self.ended


def within_lease(finding: Violation, lease_s: float) -> bool:
    """Return whether an older connection acted only while its edge could hold its lease, as promise R9 allows.

    The promise is about the older connection: messages that it sent in that time may wait, at its edge and in queues,
    and arrive long after. Its replies and deliveries must be in time.
    """
    if finding.checker != "single_owner" or not finding.proof:
        return False
    fence = finding.proof[0]  # the newer CONNECT

    def tells_when(record: HistoryRecord) -> bool:
        if record.kind is Kind.RECEIVE:
            return record.client_id == fence.client_id and record.connection < fence.connection
        return record.phase is not OperationPhase.UNKNOWN

    times = [record.time_ns for record in finding.proof if tells_when(record)]
    return max(times) - min(times) <= lease_s * 1e9


def is_outside(finding: Violation, history: RunHistory) -> bool:
    """Return whether docs/guarantees.md does not exclude a finding.

    Such findings are a QoS 2 repeat at a subscriber without a durable session, and an effect of an older connection
    within its edge's lease: the checkers are stricter, because they check other brokers too.
    """
    if within_lease(finding, LEASE_S):
        return True
    if finding.checker != "duplicate":
        return False
    connects = {
        connection.connect.invoke.connection: connection.connect.invoke
        for connections in history.connections_of.values()
        for connection in connections
    }
    invokes = [connects[record.connection] for record in finding.proof if record.connection in connects]
    return bool(invokes) and all(
        invoke.clean_start if invoke.protocol_version == 4 else not invoke.session_expiry_interval_s
        for invoke in invokes
    )


def result_of(
    schedule: Schedule,
    shape: str,
    workload: str,
    history: RunHistory,
    verdict: HistoryVerdict,
    slow: list[str],
    ended: list[str],
) -> Result:
    """Return the result of one run."""
    verbs = [str(fault.verb) for fault in schedule.faults]
    tiers = ["+".join(sorted({tier_of(node) for node in fault.nodes})) for fault in schedule.faults]
    marks = [mark for mark in history.marks if mark.kind in (Kind.KILL, Kind.FAULT)]
    places = {mark.time_ns: number for number, mark in enumerate(marks)}
    waits = [
        Wait(tiers[number], verbs[number], str(gap.kind), round(gap.length_s, 3))
        for gap in gaps_after_faults(history)
        if gap.kind in MEASURED and (number := places[gap.fault.time_ns]) < len(verbs)
    ]
    known = Counter(finding.checker for finding in verdict.findings if is_outside(finding, history))
    found = {name: report.found - known[name] for name, report in verdict.reports.items()}
    return Result(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        row=schedule.row,
        seed=schedule.seed,
        workload=workload,
        shape=shape,
        faults=tuple(str(fault) for fault in schedule.faults),
        accepted=sum(op.ok and op.invoke.qos > 0 for op in history.of_kind(Kind.PUBLISH)),
        checked={name: report.checked for name, report in verdict.reports.items()},
        found={name: count for name, count in found.items() if count},
        known=dict(known),
        waits=tuple(waits),
        slow=tuple(slow),
        ended=tuple(ended),
        complete=verdict.complete,
    )


def read_results(path: Path = RESULTS) -> list[Result]:
    """Return all kept results."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]


def fault_table(results: Iterable[Result]) -> str:
    """Return the Markdown table: per row and shape the runs, their number, and the findings."""
    grouped: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        grouped[result.row, result.shape].append(result)
    lines = [
        "| row | cluster | schedules | faults | accepted QoS 1, 2 | clean | findings |",
        "|---|---|---|---|---|---|---|",
    ]
    for (row, shape), runs in sorted(grouped.items()):
        found: Counter[str] = Counter()
        for run in runs:
            found.update(run.found)
            found.update({"process ended": len(run.ended), "not recovered in time": len(run.slow)})
        summary = ", ".join(f"{name} {count}" for name, count in sorted(found.items()) if count) or "none"
        faults, accepted = sum(len(run.faults) for run in runs), sum(run.accepted for run in runs)
        clean = sum(run.clean for run in runs)
        lines.append(f"| {row} | {shape} | {len(runs)} | {faults} | {accepted} | {clean} of {len(runs)} | {summary} |")
    return "\n".join(lines)


def points_line(results: Iterable[Result]) -> str:
    """Return one line: at which kinds of system call processes ended themselves (F02), and how often."""
    points: Counter[str] = Counter()
    for result in results:
        points.update(result.points)
    reached = [
        f"{name.removesuffix(', reached')} {count}" for name, count in sorted(points.items()) if "not" not in name
    ]
    return f"Crash points reached (F02): {'; '.join(reached) or 'none'}."


def wait_table(results: Iterable[Result]) -> str:
    """Return the Markdown table: how long clients waited, per tier and fault."""
    grouped: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for result in results:
        for wait in result.waits:
            grouped[wait.tier, wait.fault, wait.kind].append(wait.seconds)
    lines = ["| tier | fault | waited for | faults | median | worst |", "|---|---|---|---|---|---|"]
    for (tier, fault, kind), seconds in sorted(grouped.items()):
        lines.append(f"| {tier} | {fault} | {kind} | {len(seconds)} | {median(seconds):.2f} s | {max(seconds):.2f} s |")
    return "\n".join(lines)
