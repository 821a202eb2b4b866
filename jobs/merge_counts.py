"""The fate of each row in a compaction: exactly one, and all are counted.

Unless rows in equal rows out plus removed rows, the result is not published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ACKNOWLEDGED", "EXPIRED", "FATES", "KEPT", "SUPERSEDED", "TOMBSTONE", "MergeCounts"]

FATES = ("kept", "superseded", "tombstone", "expired", "acknowledged")  # index = number in the fate column
KEPT, SUPERSEDED, TOMBSTONE, EXPIRED, ACKNOWLEDGED = range(5)


@dataclass(slots=True)
class MergeCounts:
    """Counts of the merge, observed during the write."""

    rows_in: int = 0
    crc_in: int = 0  # sum of crc, comparable with the input files' digests
    partition_sum: int = 0  # sum of the partition column, likewise: a misfiled row changes it
    partition_squares: int = 0
    bad: int = 0
    hash_out: int = 0  # xor of row_hash over the kept rows
    by_fate: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Rows that the merge kept."""
        return self.by_fate.get("kept", 0)
