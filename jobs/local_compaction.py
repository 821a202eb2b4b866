"""The local engine of a compaction: it sorts and merges one partition at a time, in this process.

The rules are those of ``jobs/merge.py``; ``tests/jobs/test_engines.py`` compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from jobs.facts import MeasuredFacts
from jobs.files import LocalFiles
from jobs.local_rows import crc_matches, measure_rows, read_rows, row_hash
from jobs.merge_counts import ACKNOWLEDGED, EXPIRED, FATES, KEPT, SUPERSEDED, TOMBSTONE, MergeCounts
from jobs.merge_engine import DamagedRow
from jobs.removed_entries import Range, merge_ranges
from jobs.selection import SelectedPartitions
from jobs.spark import report_stage
from wire.sstable.manifest import FileEntry
from wire.sstable.schema import COLUMN_INDEX, Row, RowKind, arrow_schema
from wire.sstable.writer import RunWriter

__all__ = ["LocalMerge"]

_PARTITION, _KIND, _KEY, _SEQ, _TOMBSTONE, _EXPIRY_MS, _EPOCH, _CRC = (
    COLUMN_INDEX[name] for name in ("partition", "kind", "key", "seq", "tombstone", "expiry_ms", "epoch", "crc")
)
_SESSION_ID, _SESSION_SEQ, _PACKET_IDENTIFIER, _ACKED_UP_TO, _ACKED_GAPS = (
    COLUMN_INDEX[name] for name in ("session_id", "session_seq", "packet_identifier", "acked_up_to", "acked_gaps")
)


@dataclass(slots=True)
class _Session:
    """Facts of a session that decide which of its entries are finished."""

    has_will: bool = False
    expiry_ms: int = 0
    acked_up_to: int | None = None
    acked_gaps: frozenset[int] = field(default_factory=frozenset)


def _version_order(row: Row) -> tuple[bytes, int, int, int]:
    return row[_KEY], -row[_SEQ], -row[_EPOCH], -row[_CRC]


class LocalMerge:
    """Merges files of a local folder into files of another."""

    def __init__(self, source: LocalFiles, target: LocalFiles) -> None:
        self._source, self._target = source, target
        self._expired: dict[int, int] = {}  # by complete partition, of the last merge
        self._expired_ranges: dict[int, list[Range]] = {}

    def start(self, rows: int, partitions: int) -> None:
        """Do nothing: ``merge`` reads each partition."""

    def merge(
        self, selected: Sequence[SelectedPartitions], now_ms: int, folder: str, *, remove_by_session: bool
    ) -> MergeCounts:
        """Write one run for each partition into a folder of the target; return the counts of the rows."""
        counts = MergeCounts(by_fate=dict.fromkeys(FATES, 0))
        (self._target.root / folder).mkdir(parents=True)
        finished = 0
        self._expired, self._expired_ranges = {}, {}
        for chosen in selected:
            rows = [row for entry in chosen.files for row in read_rows(self._source.path(entry.path))]
            for row in rows:
                counts.rows_in += 1
                counts.crc_in += row[_CRC]
                counts.partition_sum += row[_PARTITION]
                counts.partition_squares += row[_PARTITION] ** 2
                counts.bad += not crc_matches(row)
            rows.sort(key=_version_order)
            sessions = _finished_sessions(rows, now_ms) if chosen.complete else {}
            if chosen.complete:
                self._note_expired(chosen.partition, rows, sessions, now_ms)
            if not remove_by_session:
                sessions = {}
            finished += len(sessions)
            kept = []
            for _, versions in groupby(rows, key=itemgetter(_KEY)):
                for rank, row in enumerate(versions):
                    fate = SUPERSEDED if rank else _fate_of(row, sessions, now_ms, complete=chosen.complete)
                    counts.by_fate[FATES[fate]] += 1
                    if fate == KEPT:
                        counts.hash_out ^= row_hash(row)
                        kept.append(row)
            if kept and not counts.bad and {row[_PARTITION] for row in kept} == {chosen.partition}:
                self._write(kept, chosen, now_ms, f"{folder}/p{chosen.partition:05d}.parquet")
        if remove_by_session and any(chosen.complete for chosen in selected):
            report_stage(f"{finished} sessions with finished entries")
        return counts

    def _write(self, rows: list[Row], chosen: SelectedPartitions, now_ms: int, name: str) -> None:
        with RunWriter(
            self._target.root / name,
            chosen.partition,
            generation=max(f.generation for f in chosen.files),
            node="",
            full=chosen.complete,
            now_ms=now_ms,
            root=self._target.root,
        ) as run:
            run.write(rows)

    def write_damaged(self, files: Sequence[FileEntry], folder: str) -> list[DamagedRow]:
        """Copy bad and misfiled rows with their file's name into a folder of the target; return them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        damaged, rows = [], []
        for entry in files:
            for row in read_rows(self._source.path(entry.path), damaged=True):
                matches = crc_matches(row)
                if not matches or row[_PARTITION] != entry.partition:
                    rows.append(row)
                    damaged.append(
                        DamagedRow(entry.path, entry.partition, row[_PARTITION], row[_KEY], row[_SEQ], matches)
                    )
        if rows:
            schema = arrow_schema()
            columns = [
                pa.array(values, column.type) for values, column in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            table = pa.table(columns, schema=schema)
            table = table.append_column("path", pa.array([row.path for row in damaged], pa.string()))
            table = table.append_column("file_partition", pa.array([row.file_partition for row in damaged], pa.int32()))
            table = table.append_column("crc_matches", pa.array([row.crc_matches for row in damaged], pa.bool_()))
            (self._target.root / folder).mkdir(parents=True)
            pq.write_table(table, self._target.root / folder / "rows.parquet", compression="zstd")
        return damaged

    def measure(self, paths: Sequence[str], now_ms: int) -> dict[str, MeasuredFacts]:
        """Return the facts of the target's files by path, without files that have no rows."""
        found = {path: measure_rows(read_rows(self._target.path(path)), now_ms) for path in paths}
        return {path: facts for path, facts in found.items() if facts is not None}

    def count_expired(self, selected: Sequence[SelectedPartitions], now_ms: int) -> dict[int, int]:
        """Return the number of expired queue entries of each complete partition, as counted by the merge."""
        return {chosen.partition: self._expired[chosen.partition] for chosen in selected if chosen.complete}

    def list_expired(self, selected: Sequence[SelectedPartitions], now_ms: int) -> dict[int, list[Range]]:
        """Return expired entries, and those of expired sessions, as ranges: session, first and last session_seq."""
        return {chosen.partition: self._expired_ranges[chosen.partition] for chosen in selected if chosen.complete}

    def _note_expired(self, partition: int, rows: list[Row], sessions: dict[int, _Session], now_ms: int) -> None:
        """Store the results of ``count_expired`` and ``list_expired``; reading the files again would cost more."""
        over = {number: one for number, one in sessions.items() if _has_expired(one, now_ms)}
        keys: set[bytes] = set()
        ranges: list[Range] = []
        for row in rows:
            if row[_KIND] == RowKind.QUEUED:
                has_expired = 0 < row[_EXPIRY_MS] <= now_ms
                if has_expired:
                    keys.add(row[_KEY])
                if has_expired or row[_SESSION_ID] in over:
                    ranges.append((row[_SESSION_ID], row[_SESSION_SEQ], row[_SESSION_SEQ]))
        for number, one in over.items():
            ranges += [(number, 0, one.acked_up_to)] if one.acked_up_to is not None else []
            ranges += [(number, seq, seq) for seq in one.acked_gaps]
        self._expired[partition] = len(keys)
        self._expired_ranges[partition] = merge_ranges(ranges)


def _finished_sessions(rows: list[Row], now_ms: int) -> dict[int, _Session]:
    """Return the sessions with removable rows, from the newest live SESSION and WILL rows.

    Args:
        rows: Sorted by key, newest version first.
    """
    found: dict[int, _Session] = {}
    few = (row for row in rows if row[_KIND] in (RowKind.SESSION, RowKind.WILL) and crc_matches(row))
    for _, versions in groupby(few, key=itemgetter(_KEY)):
        row = next(versions)
        if row[_TOMBSTONE] or row[_SESSION_ID] is None:
            continue
        session = found.setdefault(row[_SESSION_ID], _Session())
        if row[_KIND] == RowKind.WILL:
            session.has_will = True
        else:
            session.expiry_ms = max(session.expiry_ms, row[_EXPIRY_MS])
        if row[_ACKED_UP_TO] is not None:
            session.acked_up_to = max(session.acked_up_to or 0, row[_ACKED_UP_TO])
        session.acked_gaps |= frozenset(row[_ACKED_GAPS] or ())
    return {
        number: session
        for number, session in found.items()
        if _has_expired(session, now_ms) or session.acked_up_to is not None
    }


def _has_expired(session: _Session, now_ms: int) -> bool:
    """Return whether a session expired. One with a will is kept: its primary publishes the will."""
    return 0 < session.expiry_ms <= now_ms and not session.has_will


def _fate_of(row: Row, sessions: dict[int, _Session], now_ms: int, *, complete: bool) -> int:
    """Return the fate of the newest version of a key."""
    if not complete:
        return KEPT
    if row[_TOMBSTONE]:
        return TOMBSTONE
    kind = row[_KIND]
    if 0 < row[_EXPIRY_MS] <= now_ms and (
        kind == RowKind.RETAINED or (kind == RowKind.QUEUED and row[_PACKET_IDENTIFIER] is None)
    ):
        return EXPIRED
    session = sessions.get(row[_SESSION_ID])
    if session is None:
        return KEPT
    if _has_expired(session, now_ms):
        return EXPIRED
    seq = row[_SESSION_SEQ]
    if kind in (RowKind.QUEUED, RowKind.INFLIGHT_OUT) and seq is not None:
        up_to = session.acked_up_to
        if (up_to is not None and seq <= up_to) or seq in session.acked_gaps:
            return ACKNOWLEDGED
    return KEPT
