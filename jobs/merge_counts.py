"""The fate of each row of a compaction: exactly one, and all of them are counted.

Rows in equal rows out plus rows removed, or nothing is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ACKNOWLEDGED", "EXPIRED", "FATES", "KEPT", "SUPERSEDED", "TOMBSTONE", "MergeCounts"]

FATES = ("kept", "superseded", "tombstone", "expired", "acknowledged")  # position = number in the fate column
KEPT, SUPERSEDED, TOMBSTONE, EXPIRED, ACKNOWLEDGED = range(5)


@dataclass(slots=True)
class MergeCounts:
    """Counts of the merge, observed while it wrote."""

    rows_in: int = 0
    crc_in: int = 0  # sum of crc, comparable with the digests of the input files
    partition_sum: int = 0  # sum of the partition column, likewise: a misfiled row changes it
    partition_squares: int = 0
    bad: int = 0
    hash_out: int = 0  # xor of row_hash over the kept rows
    by_fate: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Rows that the merge kept."""
        return self.by_fate.get("kept", 0)
