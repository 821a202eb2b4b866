"""The compaction in plain Python: a heap merge and the rules of removal, as reference for Spark's result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wire.sstable.manifest import FileEntry, Manifest
from wire.sstable.run_reader import iter_rows, merge_rows
from wire.sstable.schema import COLUMN_INDEX, Row, RowKind

_AT = COLUMN_INDEX


def newest(directory: Path, files: list[FileEntry]) -> Iterator[Row]:
    """Yield the newest version of each key, including tombstones."""
    return merge_rows([iter_rows(directory / f.path) for f in files])


def compacted(directory: Path, manifest: Manifest, partition: int, now_ms: int) -> list[Row]:
    """Return the rows after a complete compaction of the partition."""
    rows = list(newest(directory, manifest.files_of(partition)))
    sessions = _sessions(rows, now_ms)
    return [row for row in rows if _stays(row, sessions, now_ms)]


def _sessions(rows: list[Row], now_ms: int) -> dict[int, dict[str, Any]]:
    facts: dict[int, dict[str, Any]] = {}
    for row in rows:
        number, kind = row[_AT["session_id"]], row[_AT["kind"]]
        if number is None or row[_AT["tombstone"]] or kind not in (RowKind.SESSION, RowKind.WILL):
            continue
        fact = facts.setdefault(number, {"will": False, "expired": False, "up_to": -1, "gaps": set()})
        if kind == RowKind.WILL:
            fact["will"] = True
        else:
            fact["expired"] = 0 < row[_AT["expiry_ms"]] <= now_ms
            fact["up_to"] = row[_AT["acked_up_to"]]
            fact["gaps"] = set(row[_AT["acked_gaps"]] or ())
    return facts


def _stays(row: Row, sessions: dict[int, dict[str, Any]], now_ms: int) -> bool:
    kind, seq = row[_AT["kind"]], row[_AT["session_seq"]]
    if row[_AT["tombstone"]]:
        return False
    if 0 < row[_AT["expiry_ms"]] <= now_ms and (
        kind == RowKind.RETAINED or (kind == RowKind.QUEUED and row[_AT["packet_identifier"]] is None)
    ):
        return False
    fact = sessions.get(row[_AT["session_id"]])
    if fact is None:
        return True
    if fact["expired"] and not fact["will"]:
        return False
    finished = seq is not None and (seq <= fact["up_to"] or seq in fact["gaps"])
    return not (finished and kind in (RowKind.QUEUED, RowKind.INFLIGHT_OUT))
