"""Deliberate damage to a store: one kind per function, each in one partition, each with its expected finding.

``after`` kinds change a file without the manifest, as disks and people do. ``before`` kinds write a matching file and
entry, as a bug of the broker would: only the rules between rows detect them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.jobs.generator import add_generation, generate
from wire.sstable.manifest import FileEntry, Manifest, next_manifest, publish_manifest, read_manifest
from wire.sstable.run_reader import iter_rows
from wire.sstable.schema import COLUMN_INDEX, EntryState, Row, RowKind, make_row
from wire.sstable.writer import RunWriter

AT = COLUMN_INDEX
Rows = list[Row]


def changed(row: Row, **columns: Any) -> Row:
    """Return the row with other values and a matching crc (unless crc is given)."""
    values = dict(zip(AT, row, strict=True)) | columns
    if "crc" not in columns:
        values["crc"] = make_row(0, 0, values["key"], values["seq"], values["value"])[AT["crc"]]
    return tuple(values[name] for name in AT)


def write_run(directory: Path, entry: FileEntry, rows: Rows) -> FileEntry:
    """Write the rows in place of a file and return its manifest entry."""
    (directory / entry.path).unlink(missing_ok=True)
    with RunWriter(
        directory / entry.path, entry.partition, generation=entry.generation, node=entry.node, full=entry.full,
        now_ms=entry.written_ms, root=directory, unsorted=True,
    ) as run:  # fmt: skip
        run.write(rows)
    return run.entry


def find(rows: Rows, kind: RowKind, **columns: Any) -> int:
    """Return the position of the first live row of a kind with these column values."""
    for number, row in enumerate(rows):
        wanted = row[AT["kind"]] == kind and not row[AT["tombstone"]]
        if wanted and all(row[AT[name]] == value for name, value in columns.items()):
            return number
    raise LookupError(f"no {kind.name} row with {columns}")


def unfinished(rows: Rows, state: EntryState) -> list[int]:
    """Return positions of one session's unfinished queue entries in a state."""
    sessions = {r[AT["session_id"]]: r for r in rows if r[AT["kind"]] == RowKind.SESSION and not r[AT["tombstone"]]}
    by_session: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        session = sessions.get(row[AT["session_id"]])
        if row[AT["kind"]] != RowKind.QUEUED or row[AT["tombstone"]] or row[AT["state"]] != state or session is None:
            continue
        seq = row[AT["session_seq"]]
        if seq > session[AT["acked_up_to"]] and seq not in (session[AT["acked_gaps"]] or ()):
            by_session.setdefault(row[AT["session_id"]], []).append(number)
    return max(by_session.values(), key=len)


# -- after the export: the manifest does not know ------------------------------------------------------------------


def flipped_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(100, len(data) // 2)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def missing_file(path: Path, _rng: random.Random) -> None:
    path.unlink()


def truncated_file(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(50, path.stat().st_size - 50)])


def older_file_in_its_place(path: Path, _rng: random.Random) -> None:
    shutil.copy(path.with_name(path.name.replace("g000002", "g000001")), path)


def _without(path: Path, drop: Callable[[Row], bool]) -> None:
    rows = list(iter_rows(path))
    victim = next(number for number, row in enumerate(rows) if drop(row))
    del rows[victim]
    entry = FileEntry(path=path.name, partition=rows[0][AT["partition"]])
    write_run(path.parent, entry, rows)


def tombstone_dropped(path: Path, _rng: random.Random) -> None:
    _without(path, lambda row: bool(row[AT["tombstone"]]))


def row_dropped(path: Path, _rng: random.Random) -> None:
    _without(path, lambda row: row[AT["kind"]] == RowKind.RETAINED)


AFTER: dict[str, tuple[Callable[[Path, random.Random], None], str]] = {
    "flipped bit": (flipped_bit, "file_changed"),
    "missing file": (missing_file, "missing_file"),
    "truncated file": (truncated_file, "unreadable_file"),
    "older generation in place of a newer": (older_file_in_its_place, "older_generation_replayed"),
    "tombstone lost": (tombstone_dropped, "tombstone_lost"),
    "row lost": (row_dropped, "manifest_mismatch"),
}

# -- before the export: file and manifest agree --------------------------------------------------------------------


def bad_crc(rows: Rows) -> None:
    rows[3] = changed(rows[3], crc=rows[3][AT["crc"]] ^ 0x10)


def swapped_rows(rows: Rows) -> None:
    rows[5], rows[6] = rows[6], rows[5]


def repeated_key(rows: Rows) -> None:
    rows.insert(8, rows[7])


def misfiled_row(rows: Rows) -> None:
    rows[4] = changed(rows[4], partition=rows[4][AT["partition"]] + 1)


def wrong_partition(rows: Rows) -> None:
    at = find(rows, RowKind.SESSION)
    rows[at] = changed(rows[at], client_id=f"{rows[at][AT['client_id']]}-moved")


def session_lost(rows: Rows) -> None:
    del rows[find(rows, RowKind.SESSION, session_id=rows[unfinished(rows, EntryState.QUEUED)[0]][AT["session_id"]])]


def inbound_alone(rows: Rows) -> None:
    at = find(rows, RowKind.INFLIGHT_IN)
    rows[at] = changed(rows[at], session_id=999_999_999)


def inflight_alone(rows: Rows) -> None:
    del rows[unfinished(rows, EntryState.SENT)[0]]


def packet_identifier_twice(rows: Rows) -> None:
    first, second = unfinished(rows, EntryState.SENT)[:2]
    rows[second] = changed(rows[second], packet_identifier=rows[first][AT["packet_identifier"]])


def entry_lost(rows: Rows) -> None:
    del rows[unfinished(rows, EntryState.QUEUED)[1]]


def session_seq_twice(rows: Rows) -> None:
    first, second = unfinished(rows, EntryState.QUEUED)[:2]
    rows[second] = changed(rows[second], session_seq=rows[first][AT["session_seq"]])


def queue_disorder(rows: Rows) -> None:
    first, second = unfinished(rows, EntryState.QUEUED)[:2]
    seqs = rows[first][AT["seq"]], rows[second][AT["seq"]]
    rows[first], rows[second] = changed(rows[first], seq=seqs[1]), changed(rows[second], seq=seqs[0])


def body_lost(rows: Rows) -> None:
    users = [r for r in rows if r[AT["kind"]] == RowKind.QUEUED and not r[AT["tombstone"]] and r[AT["body_id"]]]
    bodies = {r[AT["body_id"]] for r in rows if r[AT["kind"]] == RowKind.BODY and not r[AT["tombstone"]]}
    body_id = next(r[AT["body_id"]] for r in users if r[AT["body_id"]] in bodies)
    del rows[find(rows, RowKind.BODY, body_id=body_id)]


def second_session(rows: Rows) -> None:
    at = find(rows, RowKind.SESSION)
    key = rows[at][AT["key"]][:-8] + (1 << 40).to_bytes(8, "big")
    rows.insert(at + 1, changed(rows[at], key=key, session_id=1 << 40))
    rows.sort(key=lambda row: row[AT["key"]])


BEFORE: dict[str, tuple[Callable[[Rows], None], str]] = {
    "bad crc": (bad_crc, "bad_crc"),
    "swapped rows": (swapped_rows, "out_of_order"),
    "repeated key": (repeated_key, "duplicate_key"),
    "row of another partition": (misfiled_row, "misfiled_row"),
    "session in the wrong partition": (wrong_partition, "session_in_wrong_partition"),
    "session row lost": (session_lost, "orphaned_entry"),
    "inbound identifier without session": (inbound_alone, "inbound_without_session"),
    "in-flight message without its entry": (inflight_alone, "orphaned_inflight"),
    "packet identifier given twice": (packet_identifier_twice, "packet_identifier_reused"),
    "queue entry lost": (entry_lost, "session_seq_gap"),
    "session_seq given twice": (session_seq_twice, "session_seq_repeated"),
    "entries out of order": (queue_disorder, "session_seq_disorder"),
    "body lost": (body_lost, "dangling_body"),
    "two sessions of one client": (second_session, "client_with_two_sessions"),
}

# -- in the manifest -------------------------------------------------------------------------------------------------


def generation_listed_again(directory: Path, manifest: Manifest, partition: int) -> None:
    entry = manifest.files_of(partition)[0]
    copy = FileEntry(**{name: getattr(entry, name) for name in entry.__struct_fields__})
    copy.path, copy.generation, copy.full = entry.path.replace("g000001", "g000009"), 9, False
    shutil.copy(directory / entry.path, directory / copy.path)
    manifest.files.append(copy)


def tombstone_kept(_directory: Path, manifest: Manifest, partition: int) -> None:
    manifest.tombstone_horizon_seq[str(partition)] = manifest.files_of(partition)[-1].seq_max


def version_rewritten(directory: Path, manifest: Manifest, partition: int) -> None:
    """Give a generation different content for a version of an older one."""
    entry = manifest.files_of(partition)[0]
    row = next(iter_rows(directory / entry.path))
    other = FileEntry(path=entry.path.replace("g000001", "g000008"), partition=partition, generation=8, node=entry.node,
                      written_ms=entry.written_ms)  # fmt: skip
    manifest.files.append(write_run(directory, other, [changed(row, value=b"other")]))


def more_than_committed(_directory: Path, manifest: Manifest, partition: int) -> None:
    manifest.op_index[str(partition)] = manifest.files_of(partition)[-1].seq_max - 3


def expired_left(_directory: Path, manifest: Manifest, partition: int) -> None:
    for entry in manifest.files_of(partition):
        entry.expired_at_write = 0


LISTED: dict[str, tuple[Callable[[Path, Manifest, int], None], str]] = {
    "older generation listed again": (generation_listed_again, "older_generation_replayed"),
    "tombstone behind the horizon": (tombstone_kept, "tombstone_behind_horizon"),
    "version rewritten": (version_rewritten, "conflicting_versions"),
    "rows beyond op_index": (more_than_committed, "beyond_op_index"),
    "expired row kept": (expired_left, "expired_present"),
}

KINDS = [*AFTER, *BEFORE, *LISTED]


def damage_all(directory: Path, seed: int, first: int = 0) -> dict[int, tuple[str, str]]:
    """Apply every kind of damage, kind n to partition first + n; return partition -> (kind, expected finding)."""
    rng = random.Random(seed)
    done: dict[int, tuple[str, str]] = {}
    draft = next_manifest(read_manifest(directory))
    for partition, kind in enumerate(KINDS, start=first):
        if kind in BEFORE:
            change, finding = BEFORE[kind]
            entry = draft.files_of(partition)[-1]
            rows = list(iter_rows(directory / entry.path))
            change(rows)
            draft.files = [f for f in draft.files if f.path != entry.path] + [write_run(directory, entry, rows)]
        elif kind in LISTED:
            alter, finding = LISTED[kind]
            alter(directory, draft, partition)
        else:
            finding = AFTER[kind][1]
        done[partition] = (kind, finding)
    publish_manifest(directory, draft)
    for partition, (kind, _) in done.items():
        if kind in AFTER:
            AFTER[kind][0](directory / draft.files_of(partition)[-1].path, rng)
    return done


def damaged_store(folder: Path, seed: int) -> dict[int, tuple[str, str]]:
    """Generate a store with each kind of damage in a partition of its own; return kind and finding by partition."""
    partitions = len(KINDS) + 2
    one_generation = {n for n, kind in enumerate(KINDS) if kind not in AFTER and kind not in LISTED}
    store = generate(folder, seed, partitions=partitions, generations=1, operations=160, clients=3)
    others = [m for m in store.models if m.partition not in one_generation]
    for model in others:
        model.work(80)
    add_generation(folder, others, 2, partitions=partitions)
    return damage_all(folder, seed)
