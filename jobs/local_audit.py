"""The local engine of an audit: rows are checked in this process, one partition of one replica at a time.

The rules are those of ``jobs/store_rules.py``, ``jobs/replica_rules.py`` and ``jobs/report_tables.py``;
``tests/jobs/test_engines.py`` compares both engines.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from jobs.audit_engine import EXAMPLES_MAX, LedgerFolder, PresentRows, ProofInput, ProofResult, Violations
from jobs.facts import MeasuredFacts
from jobs.file_rules import ReplicaFiles
from jobs.files import FileSystem
from jobs.local_proof import StoredEntries, account, read_ledgers, summarize
from jobs.local_rows import batch_rows, crc_matches, measure_rows, read_rows
from jobs.removed_entries import RemovedEntries
from wire.sstable.schema import COLUMN_INDEX, EntryState, Row, RowKind

__all__ = ["LocalAudit"]

_AT = COLUMN_INDEX
_PARTITION, _KEY, _SEQ, _VALUE, _CRC, _KIND = (
    _AT[name] for name in ("partition", "key", "seq", "value", "crc", "kind")
)
_TOMBSTONE, _EXPIRY_MS, _CLIENT_ID, _SESSION_ID, _SESSION_SEQ = (
    _AT[name] for name in ("tombstone", "expiry_ms", "client_id", "session_id", "session_seq")
)
_PACKET_IDENTIFIER, _STATE, _BODY_ID, _ACKED_UP_TO, _ACKED_GAPS, _EPOCH = (
    _AT[name] for name in ("packet_identifier", "state", "body_id", "acked_up_to", "acked_gaps", "epoch")
)
_HOUR_MS = 3_600_000
_CACHED_ROWS_MAX = 200_000  # about 130 MB in 5 120 small files; opening one costs more than reading its rows
Example = tuple[int, str, int, str]


@dataclass(slots=True)
class _Found:
    """Violations of one rule: the number of all, and the first ones."""

    total: int = 0
    examples: list[Example] = field(default_factory=list)

    def add(self, row: Row, detail: str) -> None:
        self.total += 1
        if len(self.examples) < 10 * EXAMPLES_MAX:
            self.examples.append((row[_PARTITION], row[_KEY].hex(), row[_SEQ], detail))

    def result(self) -> Violations:
        return Violations(self.total, sorted(self.examples)[: EXAMPLES_MAX + 1])


@dataclass(slots=True)
class _Partition:
    """Live rows of one partition of one replica, and the entries that its session rows mark as finished."""

    live: list[Row]
    conflicts: list[Row]
    sessions: dict[int, tuple[int, frozenset[int]]]  # session -> acked_up_to, acked_gaps

    def is_finished(self, row: Row) -> bool:
        seq, session = row[_SESSION_SEQ], self.sessions.get(row[_SESSION_ID])
        return seq is not None and session is not None and (seq <= session[0] or seq in session[1])

    def of(self, *kinds: RowKind) -> Iterator[Row]:
        return (row for row in self.live if row[_KIND] in kinds)

    def unfinished(self) -> Iterator[Row]:
        return (row for row in self.live if not self.is_finished(row))


class LocalAudit:
    """Reads each file to measure it, and for the rules of its partition once more unless its rows are cached."""

    def __init__(self) -> None:
        self._stores: Mapping[str, FileSystem] = {}
        self._files: dict[tuple[int, int], list[PresentRows]] = defaultdict(list)  # by replica and partition
        self._misfiled: dict[tuple[int, int], list[Row]] = defaultdict(list)
        self._skip_bad = False
        self._batches: dict[tuple[int, str], list[Any]] = {}  # of measured files, up to _CACHED_ROWS_MAX
        self._cached_rows = 0
        self._values: dict[tuple[int, int], dict[bytes, int]] = {}  # replica, partition -> key -> hash of the value
        self._compared = False
        self._stored: dict[int, dict[int, StoredEntries]] = defaultdict(dict)  # replica -> partition
        self._tables: dict[int, dict[int, _PartitionTables]] = defaultdict(dict)
        self._conflicts = _Found()

    def start(self, rows: int, replicas: Sequence[ReplicaFiles], stores: Mapping[str, FileSystem]) -> None:
        """Prepare for an audit."""
        self._stores = stores
        self._compared = len(replicas) > 1

    def _path(self, present: PresentRows) -> Path:
        return Path(self._stores[present.uri].uri(present.entry.path))

    def measure(self, present: Sequence[PresentRows]) -> dict[tuple[int, str], MeasuredFacts]:
        """Return the facts of files by replica and path, without files that have no readable row."""
        found: dict[tuple[int, str], MeasuredFacts] = {}
        for each in present:
            self._files[each.replica, each.entry.partition].append(each)
            batches: list[Any] | None = None
            if not each.changed and self._cached_rows + each.entry.rows <= _CACHED_ROWS_MAX:
                self._cached_rows += each.entry.rows
                batches = self._batches[each.replica, each.entry.path] = []
            rows = read_rows(self._path(each), damaged=each.changed, batches=batches)
            facts = measure_rows(rows, each.entry.written_ms)
            if facts is None:
                continue
            found[each.replica, each.entry.path] = facts._replace(hash_xor=0)
            if (facts.partition_min, facts.partition_max) != (each.entry.partition, each.entry.partition):
                for row in read_rows(self._path(each), damaged=each.changed):
                    if row[_PARTITION] != each.entry.partition:
                        self._misfiled[each.replica, row[_PARTITION]].append(row)
        return found

    def read(self, *, skip_bad: bool) -> None:
        """Set whether rows with a wrong crc are skipped; ``check`` reads the rows."""
        self._skip_bad = skip_bad

    def check(
        self, replica: ReplicaFiles
    ) -> tuple[dict[str, Violations], dict[int, list[tuple[int, str, int, str, int]]]]:
        """Return violations by rule, and by partition the sessions with missing entries and their number."""
        found: dict[str, _Found] = defaultdict(_Found)
        gaps: dict[int, list[tuple[int, str, int, str, int]]] = {}
        numbers = {number for node, number in (*self._files, *self._misfiled) if node == replica.number}
        for number in sorted(numbers):
            partition = self._read_partition(replica.number, number)
            for row in partition.conflicts:
                self._conflicts.add(row, "two versions with the same seq")
            _check_partition(partition, replica.manifest.ring.partitions, found)
            missing = list(_session_seq_gaps(partition))
            if missing:
                gaps[number] = missing
            self._stored[replica.number][number] = _stored_entries(number, partition)
            self._tables[replica.number][number] = _PartitionTables.of(partition)
            if self._compared:
                self._values[replica.number, number] = {
                    row[_KEY]: row[_VALUE]
                    for row in partition.unfinished()
                    if row[_KIND] != RowKind.OTHER and row[_EXPIRY_MS] == 0
                }
        return {name: violations.result() for name, violations in found.items()}, gaps

    def _read_partition(self, replica: int, number: int) -> _Partition:
        """Read the newest versions of a partition. Values are replaced by their hash, which suffices for the rules."""
        rows: list[Row] = []
        for present in self._files.get((replica, number), ()):
            for row in self._rows(present):
                if row[_PARTITION] == number and not (self._skip_bad and not crc_matches(row)):
                    rows.append((*row[:_VALUE], hash(row[_VALUE]), *row[_VALUE + 1 :]))
        for row in self._misfiled.get((replica, number), ()):
            if not (self._skip_bad and not crc_matches(row)):
                rows.append((*row[:_VALUE], hash(row[_VALUE]), *row[_VALUE + 1 :]))
        rows.sort(key=lambda row: (row[_KEY], -row[_SEQ], -row[_EPOCH], -row[_CRC]))
        live, conflicts = [], []
        for _, versions in groupby(rows, key=itemgetter(_KEY)):
            before: Row | None = None
            for row in versions:
                if before is None:
                    if not row[_TOMBSTONE]:
                        live.append(row)
                elif before[_SEQ] == row[_SEQ] and (before[_CRC] != row[_CRC] or before[_TOMBSTONE] != row[_TOMBSTONE]):
                    conflicts.append(row)
                before = row
        sessions = {
            row[_SESSION_ID]: (row[_ACKED_UP_TO], frozenset(row[_ACKED_GAPS] or ()))
            for row in live
            if row[_KIND] == RowKind.SESSION and row[_ACKED_UP_TO] is not None
        }
        return _Partition(live, conflicts, sessions)

    def _rows(self, present: PresentRows) -> Iterator[Row]:
        batches = self._batches.pop((present.replica, present.entry.path), None)
        if batches is None:
            return read_rows(self._path(present), damaged=present.changed)
        return (row for batch in batches for row in batch_rows(batch))

    def conflicts(self) -> Violations:
        """Return rows with another row's key and seq but different content, of the replicas checked so far."""
        return self._conflicts.result()

    def compare(self, groups: Sequence[tuple[int, int, int, int]]) -> Violations:
        """Return keys that differ between copies; groups are (replica, partition, op_index, members)."""
        members: dict[tuple[int, int], list[int]] = defaultdict(list)
        for replica, partition, op_index, _ in groups:
            members[partition, op_index].append(replica)
        found = _Found()
        for (partition, op_index), replicas in members.items():
            copies = [self._values.get((replica, partition), {}) for replica in replicas]
            for key in sorted(set().union(*copies)):
                values = [copy[key] for copy in copies if key in copy]
                if len(values) < len(replicas) or len(set(values)) > 1:
                    detail = f"{len(values)} of {len(replicas)} replicas have the key, with {len(set(values))} values"
                    found.total += 1
                    if len(found.examples) < 10 * EXAMPLES_MAX:
                        found.examples.append((partition, key.hex(), op_index, detail))
        return found.result()

    def prove(self, given: ProofInput) -> ProofResult:
        """Account for each acknowledged message."""
        lines = read_ledgers(given.ledgers)
        store = StoredEntries()
        for partition, replica in given.newest.items():
            one = self._stored[replica].get(partition, StoredEntries())
            store.queued |= one.queued
            store.acked_up_to |= one.acked_up_to
            store.acked_gaps |= one.acked_gaps
        store.removed = RemovedEntries(given.removed)
        accounted = account([line for line in lines if line.event], store, given.exported)
        rows = [(d.partition, "", -1, f"origin {d.origin} session {d.session}", d) for d in accounted]
        lost = [row[:4] for row in rows if row[4].state == "LOST"]
        twice = [row[:4] for row in rows if row[4].duplicated]
        folders = []
        for folder in sorted({line.folder for line in lines}):
            of = [line for line in lines if line.folder == folder]
            tiers = [line.reason for line in of if line.event == "started" and line.reason is not None]
            stops = [x.reason for x in of if x.event == "stopped" and x.reason is not None and x.reason[:4] == "full"]
            broken = sum(not line.event for line in of)
            folders.append(LedgerFolder(folder, max(tiers, default=None), max(stops, default=None), broken))
        return ProofResult(
            summarize(accounted),
            folders,
            Violations(len(lost), sorted(lost)[: EXAMPLES_MAX + 1]),
            Violations(len(twice), sorted(twice)[: EXAMPLES_MAX + 1]),
        )

    def tables(self, newest: Mapping[int, int], now_ms: int) -> dict[str, list[dict[str, Any]]]:
        """Return the small tables of the report, from one replica of each partition."""
        return _collect_tables(
            [self._tables[replica][number] for number, replica in newest.items() if number in self._tables[replica]],
            now_ms,
        )

    def close(self) -> None:
        """Release what was read."""
        self._batches.clear()
        self._values.clear()
        self._stored.clear()
        self._tables.clear()


# -- rules between rows ------------------------------------------------------------------------------------------------


def _check_partition(partition: _Partition, ring_partitions: int, found: dict[str, _Found]) -> None:
    """Apply the rules of ``jobs/store_rules.py`` to one partition."""
    sessions = {row[_SESSION_ID] for row in partition.of(RowKind.SESSION)}
    clients = Counter(row[_CLIENT_ID] for row in partition.of(RowKind.SESSION))
    for row in partition.of(RowKind.SESSION, RowKind.SUBSCRIPTION, RowKind.WILL):
        if row[_CLIENT_ID] is not None:
            home = zlib.crc32(row[_CLIENT_ID].encode()) % ring_partitions
            if home != row[_PARTITION]:
                detail = f"client {row[_CLIENT_ID]} belongs to partition {home}"
                found["session_in_wrong_partition"].add(row, detail)
    for row in partition.of(RowKind.SESSION):
        if row[_CLIENT_ID] is not None and clients[row[_CLIENT_ID]] > 1:
            found["client_with_two_sessions"].add(row, f"client {row[_CLIENT_ID]} has more than one session")
    for row in partition.of(RowKind.QUEUED, RowKind.INFLIGHT_OUT, RowKind.SUBSCRIPTION):
        if row[_SESSION_ID] is not None and row[_SESSION_ID] not in sessions:
            found["orphaned_entry"].add(row, f"no session {row[_SESSION_ID]}")
    for row in partition.of(RowKind.INFLIGHT_IN):
        if row[_SESSION_ID] not in sessions:
            detail = f"packet identifier of no session {row[_SESSION_ID]}"
            found["inbound_without_session"].add(row, detail)
    _check_queues(partition, found)
    bodies = {row[_BODY_ID] for row in partition.of(RowKind.BODY)}
    for row in partition.unfinished():
        if row[_BODY_ID] is not None and row[_KIND] != RowKind.BODY and row[_BODY_ID] not in bodies:
            found["dangling_body"].add(row, f"no body {row[_BODY_ID].hex()}")


def _check_queues(partition: _Partition, found: dict[str, _Found]) -> None:
    entries = Counter((row[_SESSION_ID], row[_SESSION_SEQ]) for row in partition.of(RowKind.QUEUED))
    for row in partition.of(RowKind.QUEUED):
        if entries[row[_SESSION_ID], row[_SESSION_SEQ]] > 1:
            found["session_seq_repeated"].add(row, f"session_seq {row[_SESSION_SEQ]}")
    identified: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in partition.of(RowKind.QUEUED, RowKind.INFLIGHT_OUT):
        if partition.is_finished(row):
            continue
        if row[_PACKET_IDENTIFIER] is not None:
            identified[row[_SESSION_ID], row[_PACKET_IDENTIFIER]].append(row)
        is_sent = row[_KIND] == RowKind.INFLIGHT_OUT and row[_STATE] == EntryState.SENT
        if is_sent and (row[_SESSION_ID], row[_SESSION_SEQ]) not in entries:
            found["orphaned_inflight"].add(row, f"no queue entry {row[_SESSION_SEQ]}")
    for (session, identifier), rows in identified.items():
        if len({row[_SESSION_SEQ] for row in rows if row[_SESSION_SEQ] is not None}) > 1:
            detail = f"packet identifier {identifier} of session {session} is also that of another entry"
            for row in rows:
                found["packet_identifier_reused"].add(row, detail)
    waiting = [row for row in partition.of(RowKind.QUEUED) if row[_STATE] == EntryState.QUEUED]
    waiting.sort(key=lambda row: (row[_SESSION_ID] or -1, row[_SESSION_SEQ] or -1, row[_KEY]))
    for _, queue in groupby(waiting, key=itemgetter(_SESSION_ID)):
        before: Row | None = None
        for row in queue:
            if before is not None and row[_SEQ] < before[_SEQ]:
                found["session_seq_disorder"].add(row, f"the entry before has seq {before[_SEQ]}")
            before = row


def _session_seq_gaps(partition: _Partition) -> Iterator[tuple[int, str, int, str, int]]:
    """Yield sessions with missing queue entries, neither stored nor finished."""
    queues: dict[int, set[int]] = defaultdict(set)
    for row in partition.of(RowKind.QUEUED):
        if not partition.is_finished(row) and row[_SESSION_SEQ] is not None:
            queues[row[_SESSION_ID]].add(row[_SESSION_SEQ])
    for row in partition.of(RowKind.SESSION):
        number, up_to = row[_SESSION_ID], row[_ACKED_UP_TO]
        if up_to is None or number not in queues:
            continue
        last = max(queues[number])
        between = sum(up_to < seq < last for seq in row[_ACKED_GAPS] or ())
        missing = last - up_to - len(queues[number]) - between
        if missing > 0:
            detail = f"session {number}: {missing} entries missing up to session_seq {last}"
            yield row[_PARTITION], row[_KEY].hex(), row[_SEQ], detail, missing


def _stored_entries(number: int, partition: _Partition) -> StoredEntries:
    """Return the entries of a partition for the proof."""
    stored = StoredEntries()
    for row in partition.of(RowKind.QUEUED):
        if not partition.is_finished(row):
            stored.queued.add((number, row[_SESSION_ID], row[_SESSION_SEQ]))
    for session, (up_to, acked_gaps) in partition.sessions.items():
        stored.acked_up_to[number, session], stored.acked_gaps[number, session] = up_to, acked_gaps
    return stored


# -- tables of the report ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _PartitionTables:
    """Facts of one partition for the tables of the report."""

    kinds: Counter[int]
    depths: list[tuple[int, int, int, str | None]]  # depth, partition, session, client
    expiries_ms: list[int]
    ages: list[int]  # tenths

    @classmethod
    def of(cls, partition: _Partition) -> _PartitionTables:
        rows = list(partition.unfinished())
        queues = Counter(row[_SESSION_ID] for row in rows if row[_KIND] == RowKind.QUEUED)
        sessions = [row for row in rows if row[_KIND] == RowKind.SESSION]
        last = max((row[_SEQ] for row in rows), default=0)
        return cls(
            Counter(row[_KIND] for row in rows),
            [(queues[row[_SESSION_ID]], row[_PARTITION], row[_SESSION_ID], row[_CLIENT_ID]) for row in sessions],
            [row[_EXPIRY_MS] for row in sessions],
            [min(10 * (last - row[_SEQ]) // max(last, 1), 9) for row in sessions],
        )


def _class_of(value: int, bounds: Iterable[int]) -> int:
    return next((bound for bound in bounds if value <= bound), -1)


def _collect_tables(parts: Sequence[_PartitionTables], now_ms: int) -> dict[str, list[dict[str, Any]]]:
    from jobs.report_classes import DEPTHS, EXPIRY_HOURS, LONGEST_QUEUES

    kinds: Counter[int] = Counter()
    for part in parts:
        kinds += part.kinds
    depths = sorted((row for part in parts for row in part.depths), key=lambda row: (-row[0], row[2]))
    up_to = Counter(_class_of(row[0], DEPTHS) for row in depths)
    hours = Counter(
        -2 if expiry_ms == 0 else _class_of(expiry_ms - now_ms, [hour * _HOUR_MS for hour in EXPIRY_HOURS])
        for part in parts
        for expiry_ms in part.expiries_ms
    )
    tenths = Counter(tenth for part in parts for tenth in part.ages)
    return {
        "kinds": [{"kind": kind, "rows": count} for kind, count in sorted(kinds.items())],
        "queue_depths": [{"up_to": bound, "sessions": count} for bound, count in up_to.items()],
        "session_expiries": [
            {"hours": bound // _HOUR_MS if bound > 0 else bound, "sessions": count} for bound, count in hours.items()
        ],
        "session_ages": [{"tenth": tenth, "sessions": count} for tenth, count in tenths.items()],
        "longest_queues": [
            {"partition": partition, "session_id": session, "client_id": client, "depth": depth}
            for depth, partition, session, client in depths[:LONGEST_QUEUES]
        ],
    }
