"""Facts of one SSTable: counts, bounds, order and digests, for a manifest entry.

``jobs/spark_facts.py`` and ``jobs/local_rows.py`` measure them.
"""

from __future__ import annotations

from typing import NamedTuple

from wire.sstable.manifest import FileEntry
from wire.sstable.schema import digest_of

__all__ = ["MeasuredFacts", "entry_differences", "fill_entry"]


class MeasuredFacts(NamedTuple):
    """Content of one file."""

    rows: int
    bad_rows: int
    disorder: int  # rows whose key is not above the previous one
    repeats: int  # of these, rows with the previous row's key
    partition_min: int
    partition_max: int
    key_min_hex: str
    key_max_hex: str
    seq_min: int
    seq_max: int
    epoch_min: int
    epoch_max: int
    tombstones: int
    expired: int  # 0 < expiry_ms <= written_ms
    min_expiry_ms: int
    live_bytes: int
    crc_sum: int
    seq_xor: int
    hash_xor: int
    tombstone_seq_min: int | None
    kinds: dict[int, int]

    @property
    def digest(self) -> str:
        """Digest of the rows, independent of their order."""
        return digest_of(self.crc_sum, self.seq_xor)


def fill_entry(entry: FileEntry, found: MeasuredFacts) -> FileEntry:
    """Write the measured facts into a manifest entry and return it."""
    for name in ("rows", "bad_rows", "key_min_hex", "key_max_hex", "seq_min", "seq_max", "epoch_min", "epoch_max"):
        setattr(entry, name, getattr(found, name))
    entry.tombstones = found.tombstones
    entry.expired_at_write = found.expired
    entry.min_expiry_ms = found.min_expiry_ms
    entry.live_bytes = found.live_bytes
    entry.digest = found.digest
    entry.kinds = {str(kind): count for kind, count in sorted(found.kinds.items())}
    return entry


def entry_differences(entry: FileEntry, found: MeasuredFacts) -> dict[str, str]:
    """Return the fields in which a file differs from its manifest entry, as ``found, manifest says``."""
    pairs = {
        "rows": found.rows,
        "tombstones": found.tombstones,
        "key_min_hex": found.key_min_hex,
        "key_max_hex": found.key_max_hex,
        "seq_min": found.seq_min,
        "seq_max": found.seq_max,
        "expired_at_write": found.expired,
        "digest": found.digest,
    }
    return {
        name: f"{value}, manifest says {getattr(entry, name)}"
        for name, value in pairs.items()
        if value != getattr(entry, name)
    }
