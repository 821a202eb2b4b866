"""SSTables and manifests: rows survive a round trip, and a number is published once."""

from pathlib import Path

import pytest

from wire.sstable.manifest import (
    FileEntry,
    Manifest,
    ManifestDamaged,
    ManifestExists,
    decode_manifest,
    encode_manifest,
    manifest_name,
    newest_manifest,
    next_manifest,
    publish_manifest,
    read_manifest,
)
from wire.sstable.run_reader import RowDamaged, iter_newest, iter_rows, verify_manifest
from wire.sstable.schema import COLUMNS, RowKind, arrow_schema, make_row, row_crc
from wire.sstable.writer import RunOrderError, RunWriter

pytest.importorskip("pyarrow", reason="pyarrow is missing: make setup")


def _row(n: int, seq: int, value: bytes | None = b"v", **more: object) -> tuple[object, ...]:
    return make_row(3, RowKind.QUEUED, b"k%06d" % n, seq, value, session_id=n, **more)  # type: ignore[arg-type]


def _run(directory: Path, name: str, rows: list[tuple[object, ...]], generation: int = 1) -> FileEntry:
    (directory / "runs").mkdir(exist_ok=True)
    with RunWriter(directory / "runs" / name, 3, generation=generation, now_ms=1_000, root=directory) as run:
        run.write(rows)
    return run.entry


def test_crc_covers_key_value_and_seq() -> None:
    """The CRC is zlib's over the three joined, an absent value counting as empty."""
    import zlib

    assert row_crc(b"k", b"v", 5) == zlib.crc32(b"kv" + (5).to_bytes(8, "big"))
    assert row_crc(b"k", None, 5) == row_crc(b"k", b"", 5)


def test_schema_has_the_declared_columns() -> None:
    """Names, order and nullability of the Arrow schema are those of COLUMNS."""
    assert [(f.name, f.nullable) for f in arrow_schema()] == [(n, nullable) for n, _, nullable in COLUMNS]


def test_run_reads_back_with_exact_bounds(tmp_path: Path) -> None:
    """Every column survives; the entry has exact counts and key bounds, and the check has no findings."""
    rows = [
        _row(0, 7, acked_gaps=[4, 6], acked_up_to=2, origin="e1/1/5", body_id=b"\0\1"),
        _row(1, 9, None, tombstone=True, expiry_ms=999, state=2, packet_identifier=65_535),
        *(_row(n, n, expiry_ms=5_000) for n in range(2, 120_000)),
    ]
    entry = _run(tmp_path, "a.parquet", rows)
    assert list(iter_rows(tmp_path / "runs" / "a.parquet")) == rows
    assert (entry.rows, entry.tombstones, entry.expired_at_write, entry.min_expiry_ms) == (120_000, 1, 1, 999)
    assert (entry.key_min_hex, entry.key_max_hex) == (b"k000000".hex(), b"k119999".hex())
    assert (entry.seq_min, entry.seq_max, entry.kinds) == (2, 119_999, {"3": 120_000})
    publish_manifest(tmp_path, Manifest(manifest_no=1, files=[entry]))
    assert verify_manifest(tmp_path) == []


def test_writer_refuses_disorder_and_leaves_no_file(tmp_path: Path) -> None:
    """A run out of order, or with a duplicate key, never appears under its name."""
    for rows in ([_row(2, 1), _row(1, 2)], [_row(1, 1), _row(1, 2)]):
        with pytest.raises(RunOrderError):
            _run(tmp_path, "a.parquet", rows)
    assert list((tmp_path / "runs").iterdir()) == []
    _run(tmp_path, "a.parquet", [_row(1, 1)])
    with pytest.raises(FileExistsError):
        _run(tmp_path, "a.parquet", [_row(1, 1)])


def test_newest_version_wins_and_a_bad_row_stops_the_import(tmp_path: Path) -> None:
    """A damaged newer row never exposes an older version."""
    old = _run(tmp_path, "a.parquet", [_row(1, 1, b"old"), _row(2, 2), _row(3, 3)])
    new = _run(tmp_path, "b.parquet", [_row(1, 4, b"new"), _row(2, 5, None, tombstone=True)], generation=2)
    manifest = Manifest(manifest_no=1, files=[old, new])
    assert list(iter_newest(tmp_path, manifest, 3)) == [_row(1, 4, b"new"), _row(3, 3)]
    bad = _run(tmp_path, "c.parquet", [_row(3, 9, b"x", crc=1)], generation=3)
    manifest.files.append(bad)
    with pytest.raises(RowDamaged):
        list(iter_newest(tmp_path, manifest, 3))


def test_second_of_two_publishers_loses(tmp_path: Path) -> None:
    """The second publisher gets an error, and the directory is unchanged."""
    first = next_manifest(None)
    publish_manifest(tmp_path, first)
    a, b = next_manifest(first), next_manifest(first)
    b.cluster_id = "late"
    publish_manifest(tmp_path, a)
    with pytest.raises(ManifestExists):
        publish_manifest(tmp_path, b)
    newest = newest_manifest(tmp_path)
    assert newest is not None and newest.cluster_id == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == [manifest_name(1), manifest_name(2)]


def test_damaged_newest_manifest_is_an_error_not_a_step_back(tmp_path: Path) -> None:
    """A flipped byte in the newest manifest never makes an older state current."""
    first = next_manifest(None)
    publish_manifest(tmp_path, first)
    second = publish_manifest(tmp_path, next_manifest(first))
    data = bytearray(second.read_bytes())
    data[data.index(b'"cluster_id":""') + 14] = ord(" ")
    second.write_bytes(data)
    with pytest.raises(ManifestDamaged):
        read_manifest(tmp_path)


def test_manifest_crc_is_of_canonical_json() -> None:
    """Encoding is deterministic, and fields that a later version adds do not break the CRC check."""
    import json
    import zlib

    data = encode_manifest(Manifest(manifest_no=4, files=[FileEntry(path="runs/x", partition=1)]))
    assert data == encode_manifest(decode_manifest(data))
    plain = json.loads(data)
    plain["later"] = [1, {"b": 1, "a": "ü"}]
    crc = plain.pop("manifest_crc")
    assert crc == zlib.crc32(json.dumps({k: v for k, v in plain.items() if k != "later"}, sort_keys=True,
                                        separators=(",", ":"), ensure_ascii=False).encode())  # fmt: skip
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    plain["manifest_crc"] = zlib.crc32(text)
    assert decode_manifest(json.dumps(plain).encode()).manifest_no == 4
