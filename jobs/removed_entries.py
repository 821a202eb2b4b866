"""Expired queue entries that compactions removed: ranges of session_seq, by session.

A manifest lists them with the run, so that the proof from ledgers distinguishes them from lost entries: no primary
recorded their expiry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["Range", "RemovedEntries", "merge_ranges"]

Range = tuple[int, int, int]  # session, first and last session_seq


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same entries in the fewest ranges, sorted."""
    merged: list[Range] = []
    for session, first, last in sorted(ranges):
        if merged and merged[-1][0] == session and first <= merged[-1][2] + 1:
            merged[-1] = session, merged[-1][1], max(last, merged[-1][2])
        else:
            merged.append((session, first, last))
    return merged


class RemovedEntries:
    """Ranges of all partitions."""

    def __init__(self, by_partition: Mapping[int, Iterable[Range]] | None = None) -> None:
        self._ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for partition, ranges in (by_partition or {}).items():
            for session, first, last in ranges:
                self._ranges.setdefault((partition, session), []).append((first, last))

    def has(self, partition: int, session: int, seq: int) -> bool:
        """Return whether an entry was removed because it, or its session, had expired."""
        return any(first <= seq <= last for first, last in self._ranges.get((partition, session), ()))
