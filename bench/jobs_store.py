"""A store of any size for the benchmark of the jobs: 16 partitions in 4 generations, about 150 bytes a row.

Queues, sessions that finish entries, tombstones, superseded versions, entries that expired. Built by two processes.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from wire.sstable.manifest import Manifest, RingEntry, publish_manifest
from wire.sstable.schema import EntryState, Row, RowKind, make_row
from wire.sstable.writer import RunWriter

__all__ = ["NOW_MS", "PARTITIONS", "generate"]

PARTITIONS = 16
GENERATIONS = 4
SESSIONS = 400  # per partition
NOW_MS = 1_750_000_000_000
_VALUE_BYTES = 110


def generate(directory: Path, rows: int) -> Manifest:
    """Write a store of about that many rows and return its manifest."""
    directory.mkdir(parents=True)
    per_session = max(8, rows // (PARTITIONS * GENERATIONS * SESSIONS))
    (directory / "runs").mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(_partition, directory, p, per_session) for p in range(PARTITIONS)]
        files = [entry for job in jobs for entry in job.result()]
    manifest = Manifest(manifest_no=1, ring=RingEntry(partitions=PARTITIONS), created_ms=NOW_MS, files=files)
    publish_manifest(directory, manifest)
    return manifest


def _partition(directory: Path, partition: int, per_session: int) -> list[Any]:
    """Four generations of one partition: entries queued, some sent, the oldest finished."""
    blob = os.urandom(32 << 20)
    offsets = memoryview(os.urandom(8 << 20)).cast("I")
    head = partition.to_bytes(2, "big")
    entries, op_index, drawn = [], 0, 0
    queues = [(1, 1) for _ in range(SESSIONS)]  # oldest, next session_seq
    for generation in range(1, GENERATIONS + 1):
        rows: list[Row] = []
        for number in range(SESSIONS):
            session_id = number * PARTITIONS + partition + 1
            wide = session_id.to_bytes(8, "big")
            oldest, following = queues[number]
            finish = per_session // 4 if generation > 1 else 0
            send = per_session // 4 if generation > 1 else 0
            begin = op_index

            def put(kind: RowKind, key: bytes, value: bytes | None, rows: list[Row] = rows, **typed: Any) -> None:
                nonlocal op_index
                op_index += 1
                rows.append(make_row(partition, kind, head + bytes((kind,)) + key, op_index, value, epoch=1, **typed))

            put(RowKind.SESSION, wide, b"", session_id=session_id, acked_up_to=oldest + finish - 1)
            for seq in range(oldest, oldest + finish, 2):  # the other half is left to the session row
                put(RowKind.QUEUED, wide + seq.to_bytes(8, "big"), None, tombstone=True, session_id=session_id,
                    session_seq=seq)  # fmt: skip
            oldest += finish
            for seq in [*range(oldest, oldest + send), *range(following, following + per_session - finish // 2 - send)]:
                at = offsets[drawn % len(offsets)] % (len(blob) - _VALUE_BYTES)
                drawn += 1
                sent = seq < following
                put(RowKind.QUEUED, wide + seq.to_bytes(8, "big"), blob[at : at + _VALUE_BYTES],
                    session_id=session_id, session_seq=seq, packet_identifier=seq % 65_535 + 1 if sent else None,
                    state=EntryState.SENT if sent else EntryState.QUEUED, origin=f"e{seq % 7}/1/{begin + seq}",
                    expiry_ms=NOW_MS - 1 if seq % 50 == 7 else 0)  # fmt: skip
            queues[number] = (oldest, following + per_session - finish // 2 - send)
        rows.sort(key=lambda row: row[3])
        path = directory / "runs" / f"p{partition:05d}-g{generation:06d}.parquet"
        with RunWriter(path, partition, generation=generation, full=generation == 1, now_ms=NOW_MS,
                       root=directory) as run:  # fmt: skip
            run.write(rows)
        entries.append(run.entry)
    return entries
