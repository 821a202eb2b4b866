"""Records of one message in acknowledgement ledgers: its acknowledgement, the queues it entered, and how it left them.

Reads the files of ``edge.ledger`` and ``storage.ledger`` twice, line by line: for the message, then for its queue
entries. Only lines that contain the searched numbers are decoded. Operations that a later primary found uncommitted are
skipped. Format: docs/jobs.md.
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
# errors of JSON that is not a record
NOT_READ = (KeyError, IndexError, TypeError, ValueError, AttributeError, zlib.error)


class NoLedger(Exception):
    """A file has invalid lines, or the origin is invalid: one line that names it."""


class LedgerRecord(NamedTuple):
    """Steps with their stage, and the files that were read."""

    steps: list[tuple[str, ExplanationStep]]  # stage
    had: str
    lacked: tuple[MissingRows, ...] = ()


class _QueueOperation(NamedTuple):
    """An operation of a partition that queued the message."""

    node: str
    partition: int
    operation: int
    epoch: int
    entries: tuple[Entry, ...]


class _Found:
    """Results of the first pass."""

    def __init__(self) -> None:
        self.acked: list[tuple[str, list[Any]]] = []
        self.operations: dict[tuple[int, int, int], _QueueOperation] = {}
        self.not_queued: list[tuple[str, dict[str, Any]]] = []  # not queued for a session
        self.began: dict[int, list[tuple[int, int]]] = {}  # partition -> (epoch, op_index at which it starts)

    def is_committed(self, partition: int, epoch: int, operation: int) -> bool:
        """Return whether an operation was committed, according to later epochs."""
        return all(operation <= end for later, end in self.began.get(partition, ()) if later > epoch)


def read_ledgers(folder: Path, origin: str) -> LedgerRecord:
    """Return the records of a message in the ledgers below a folder.

    Raises:
        OSError: A file cannot be read.
        NoLedger: A file is not a ledger, or ``origin`` is invalid.
    """
    files = sorted(path for path in folder.rglob("*") if path.name.endswith(LEDGER_SUFFIXES))
    if not files:
        return LedgerRecord([], "", (MissingRows("ledgers", f"no ledger in {folder}"),))
    try:
        numbers = parse_origin(origin)
    except ValueError:
        raise NoLedger(f"{folder}: {origin[:64]!r} is not an origin, such as edge-0/17/42") from None
    found = _Found()
    for path in files:
        with _naming_file(path):
            _scan(path, numbers, found)
    operations = [
        item for item in found.operations.values() if found.is_committed(item.partition, item.epoch, item.operation)
    ]
    steps = [*_acknowledged(found), *_queued(operations), *_find_not_queued(found)]
    entries = {entry for item in operations for entry in item.entries}
    for path in files if entries else ():
        with _naming_file(path):
            steps += _find_removals(path, entries, found)
    unique = list(dict.fromkeys((stage, step.node, step.why) for stage, step in steps))
    first = {(stage, step.node, step.why): (stage, step) for stage, step in reversed(steps)}
    return LedgerRecord([first[key] for key in unique], f"{count(len(files), 'ledger file')} in {folder}")


@contextlib.contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    try:
        yield
    except NOT_READ as error:
        raise NoLedger(f"{path}: a line is not a ledger record ({type(error).__name__}: {error})") from None


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            yield from file
        except EOFError:
            return  # an interrupted compression: use its lines so far


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}  # incomplete last line of a file that is being written
    return found if isinstance(found, dict) else {}


def _scan(path: Path, origin: tuple[int, int, int], found: _Found) -> None:
    numbers, text = b"[%d,%d,%d," % origin, b'"%s' % origin_text(*origin).encode()
    node = path.parent.name
    for line in _lines(path):
        if b'"began"' in line:
            row = _decoded(line)
            found.began.setdefault(row.get("p", -1), []).append((row.get("pe", 0), row.get("op", 0)))
        elif numbers in line or text in line:
            _add_record(_decoded(line), node, origin, found)


def _add_record(row: dict[str, Any], node: str, origin: tuple[int, int, int], found: _Found) -> None:
    event = row.get("e")
    if event == "acks":
        found.acked += [(str(row.get("o", node)), item) for item in row.get("k", ()) if tuple(item[:3]) == origin]
    elif event == "operations":
        for operation in row.get("b", ()):
            for item in operation.get("m", ()):
                if tuple(item[:3]) == origin:
                    place = operation["p"], operation["op"], operation["pe"]
                    entries = tuple(zip(item[5::2], item[6::2], strict=False))
                    found.operations.setdefault(place, _QueueOperation(node, *place, entries))
    elif event == "dropped" and _is_of(str(row.get("o", "")), origin):
        found.not_queued.append((node, row))


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


def _queued(operations: list[_QueueOperation]) -> Iterator[tuple[str, ExplanationStep]]:
    for node, partition, operation, _, entries in operations:
        into = ", ".join(f"{session_text(session)} as entry {seq}" for session, seq in entries) or "no session"
        why = f"its ledger: committed in partition {partition} as operation {operation}, queued for {into}"
        facts = {"partition": partition, "operation": operation}
        yield "committed", ExplanationStep(node, "committed", why, facts=facts)


def _find_not_queued(found: _Found) -> Iterator[tuple[str, ExplanationStep]]:
    for node, row in found.not_queued:
        if found.is_committed(row.get("p", -1), row.get("pe", 0), row.get("op", 0)):
            why = f"its ledger: not queued for {session_text(row.get('s', 0))}: {row.get('r', '')}"
            yield "dropped", ExplanationStep(node, "dropped", why, row.get("t"))


def _find_removals(path: Path, entries: set[Entry], found: _Found) -> Iterator[tuple[str, ExplanationStep]]:
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
                if found.is_committed(operation["p"], operation["pe"], operation["op"]):
                    yield from _delivered(node, operation, entries, row.get("t"))
        elif found.is_committed(row.get("p", -1), row.get("pe", 0), row.get("op", 0)):
            yield from _removal(node, row, entries, sessions)


def _delivered(
    node: str, operation: dict[str, Any], entries: set[Entry], at_ms: int | None
) -> Iterator[tuple[str, ExplanationStep]]:
    for session, first, last in operation.get("d", ()):
        for of, seq in sorted(entries):
            if of == session and first <= seq <= last:
                why = f"its ledger: the client of {session_text(session)} acknowledged entry {seq}"
                yield "acked", ExplanationStep(node, "acked", f"{why} (operation {operation['op']})", at_ms)


def _removal(
    node: str, row: dict[str, Any], entries: set[Entry], sessions: set[int]
) -> Iterator[tuple[str, ExplanationStep]]:
    event, session, seq = row.get("e"), row.get("s", 0), row.get("n", 0)
    if event in ("dropped", "expired") and (session, seq) in entries:
        why = f"its ledger: entry {seq} of {session_text(session)} was {event}: {row.get('r', '')}"
        yield str(event), ExplanationStep(node, str(event), why, row.get("t"))
    elif event == "ended" and session in sessions:
        why = f"its ledger: {session_text(session)} ended: {row.get('r', '')}"
        yield "dropped", ExplanationStep(node, "ended", why, row.get("t"))
