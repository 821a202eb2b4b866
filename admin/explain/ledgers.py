"""Records of one message in acknowledgement ledgers: who acknowledged it, whose queues took it, and how it left them.

Reads files of ``edge.ledger`` and ``storage.ledger`` line by line, twice: for the message, then for the entries that it
became. A line is decoded only if the numbers that are looked for stand in it. What a later primary found not to be
committed is left out. Format: docs/jobs.md.
"""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from admin.explain.explanation import ExplanationStep
from admin.explain.texts import clock, count
from admin.scatter_gather import MissingRows
from wire.queries.origins import parse_origin, session_text
from wire.sstable.ledger import LEDGER_SUFFIXES, origin_text

__all__ = ["LedgerRecord", "NoLedger", "read_ledgers"]

Entry = tuple[int, int]  # session, session_seq
NOT_READ = (KeyError, IndexError, TypeError, ValueError, AttributeError, zlib.error)  # of JSON that is no record


class NoLedger(Exception):
    """A file has lines that are no records, or the origin is none: one line that names it."""


class LedgerRecord(NamedTuple):
    """Steps with their place in the way of a message, and which files there were."""

    steps: list[tuple[str, ExplanationStep]]  # stage
    had: str
    lacked: tuple[MissingRows, ...] = ()


class _Taken(NamedTuple):
    """An operation of a partition that took the message."""

    node: str
    partition: int
    operation: int
    epoch: int
    entries: tuple[Entry, ...]


class _Found:
    """Findings of the first pass."""

    def __init__(self) -> None:
        self.acked: list[tuple[str, list[Any]]] = []
        self.taken: dict[tuple[int, int, int], _Taken] = {}
        self.never: list[tuple[str, dict[str, Any]]] = []  # not queued for a session
        self.began: dict[int, list[tuple[int, int]]] = {}  # partition -> (epoch, op_index it goes on from)

    def holds(self, partition: int, epoch: int, operation: int) -> bool:
        """Return whether an operation was committed, as far as later epochs say."""
        return all(operation <= end for later, end in self.began.get(partition, ()) if later > epoch)


def read_ledgers(folder: Path, origin: str) -> LedgerRecord:
    """Return what the ledgers below a folder have of a message.

    Raises:
        OSError: A file cannot be read.
        NoLedger: One is no ledger, or ``origin`` is none.
    """
    files = sorted(path for path in folder.rglob("*") if path.name.endswith(LEDGER_SUFFIXES))
    if not files:
        return LedgerRecord([], "", (MissingRows("ledgers", f"no ledger is in {folder}"),))
    try:
        numbers = parse_origin(origin)
    except ValueError:
        raise NoLedger(f"{folder}: {origin[:64]!r} is no origin, such as edge-0/17/42") from None
    found = _Found()
    for path in files:
        with _named(path):
            _look(path, numbers, found)
    taken = [one for one in found.taken.values() if found.holds(one.partition, one.epoch, one.operation)]
    steps = [*_acknowledged(found), *_queued(taken), *_never(found)]
    entries = {entry for one in taken for entry in one.entries}
    for path in files if entries else ():
        with _named(path):
            steps += _left(path, entries, found)
    unique = list(dict.fromkeys((stage, step.node, step.why) for stage, step in steps))
    first = {(stage, step.node, step.why): (stage, step) for stage, step in reversed(steps)}
    return LedgerRecord([first[key] for key in unique], f"{count(len(files), 'ledger file')} in {folder}")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except NOT_READ as error:
        raise NoLedger(f"{path}: a line is no record of a ledger ({type(error).__name__}: {error})") from None


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            yield from file
        except EOFError:
            return  # a compression that was killed: its lines so far


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}  # the torn end of a file that is being written
    return found if isinstance(found, dict) else {}


def _look(path: Path, origin: tuple[int, int, int], found: _Found) -> None:
    numbers, text = b"[%d,%d,%d," % origin, b'"%s' % origin_text(*origin).encode()
    node = path.parent.name
    for line in _lines(path):
        if b'"began"' in line:
            row = _decoded(line)
            found.began.setdefault(row.get("p", -1), []).append((row.get("pe", 0), row.get("op", 0)))
        elif numbers in line or text in line:
            _take(_decoded(line), node, origin, found)


def _take(row: dict[str, Any], node: str, origin: tuple[int, int, int], found: _Found) -> None:
    event = row.get("e")
    if event == "acks":
        found.acked += [(str(row.get("o", node)), one) for one in row.get("k", ()) if tuple(one[:3]) == origin]
    elif event == "operations":
        for operation in row.get("b", ()):
            for one in operation.get("m", ()):
                if tuple(one[:3]) == origin:
                    place = operation["p"], operation["op"], operation["pe"]
                    entries = tuple(zip(one[5::2], one[6::2], strict=False))
                    found.taken.setdefault(place, _Taken(node, *place, entries))
    elif event == "dropped" and _is_of(str(row.get("o", "")), origin):
        found.never.append((node, row))


def _is_of(text: str, origin: tuple[int, int, int]) -> bool:
    whole = origin_text(*origin)
    return text == whole or text.startswith((f"{whole}@", f"{whole}$"))


def _acknowledged(found: _Found) -> Iterator[tuple[str, ExplanationStep]]:
    for edge, row in found.acked:
        qos, at_ms, partitions = row[3], row[4], row[6:]
        where = f" for partitions {', '.join(map(str, sorted(partitions)))}" if partitions else " for no partition"
        why = f"its ledger: received at {clock(at_ms)} with QoS {qos}, and acknowledged to its publisher{where}"
        yield (
            "acknowledged",
            ExplanationStep(edge, "acknowledged", why, at_ms, {"qos": qos, "partitions": list(partitions)}),
        )


def _queued(taken: list[_Taken]) -> Iterator[tuple[str, ExplanationStep]]:
    for node, partition, operation, _, entries in taken:
        into = ", ".join(f"{session_text(session)} as entry {seq}" for session, seq in entries) or "no session"
        why = f"its ledger: committed in partition {partition} as operation {operation}, queued for {into}"
        facts = {"partition": partition, "operation": operation}
        yield "committed", ExplanationStep(node, "committed", why, facts=facts)


def _never(found: _Found) -> Iterator[tuple[str, ExplanationStep]]:
    for node, row in found.never:
        if found.holds(row.get("p", -1), row.get("pe", 0), row.get("op", 0)):
            why = f"its ledger: not queued for {session_text(row.get('s', 0))}: {row.get('r', '')}"
            yield "dropped", ExplanationStep(node, "dropped", why, row.get("t"))


def _left(path: Path, entries: set[Entry], found: _Found) -> Iterator[tuple[str, ExplanationStep]]:
    """Yield how entries left their queues."""
    node = path.parent.name
    sessions = {session for session, _ in entries}
    marks = [mark for session in sessions for mark in (b"[%d," % session, b'"s":%d' % session)]
    for line in _lines(path):
        if not any(mark in line for mark in marks):
            continue
        row = _decoded(line)
        if row.get("e") == "operations":
            for operation in row.get("b", ()):
                if found.holds(operation["p"], operation["pe"], operation["op"]):
                    yield from _delivered(node, operation, entries, row.get("t"))
        elif found.holds(row.get("p", -1), row.get("pe", 0), row.get("op", 0)):
            yield from _gone(node, row, entries, sessions)


def _delivered(
    node: str, operation: dict[str, Any], entries: set[Entry], at_ms: int | None
) -> Iterator[tuple[str, ExplanationStep]]:
    for session, first, last in operation.get("d", ()):
        for of, seq in sorted(entries):
            if of == session and first <= seq <= last:
                why = f"its ledger: the client of {session_text(session)} acknowledged entry {seq}"
                yield "acked", ExplanationStep(node, "acked", f"{why} (operation {operation['op']})", at_ms)


def _gone(
    node: str, row: dict[str, Any], entries: set[Entry], sessions: set[int]
) -> Iterator[tuple[str, ExplanationStep]]:
    event, session, seq = row.get("e"), row.get("s", 0), row.get("n", 0)
    if event in ("dropped", "expired") and (session, seq) in entries:
        why = f"its ledger: entry {seq} of {session_text(session)} was {event}: {row.get('r', '')}"
        yield str(event), ExplanationStep(node, str(event), why, row.get("t"))
    elif event == "ended" and session in sessions:
        why = f"its ledger: {session_text(session)} ended: {row.get('r', '')}"
        yield "dropped", ExplanationStep(node, "ended", why, row.get("t"))
