"""The partitions and files that a compaction merges."""

from typing import Any

import pytest

from jobs.selection import CompactionPolicy, select
from wire.sstable.manifest import FileEntry, Manifest


def _file(partition: int, generation: int, rows: int = 100, **more: Any) -> FileEntry:
    return FileEntry(path=f"{partition}-{generation}", partition=partition, generation=generation, rows=rows,
                     bytes=rows, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("files", "policy", "expected"),
    [
        ([_file(0, g) for g in range(4)], CompactionPolicy(), [(0, 4, True)]),
        ([_file(0, g) for g in range(3)], CompactionPolicy(), []),
        ([_file(0, 0), _file(0, 1, tombstones=40)], CompactionPolicy(), [(0, 2, True)]),
        ([_file(0, 0, tombstones=20)], CompactionPolicy(), []),
        ([_file(0, 0, expired_at_write=30)], CompactionPolicy(), [(0, 1, True)]),
        ([_file(0, 0), _file(1, 0)], CompactionPolicy(everything=True), [(0, 1, True), (1, 1, True)]),
        ([_file(0, 0), _file(1, 0)], CompactionPolicy(everything=True, partitions=frozenset({1})), [(1, 1, True)]),
        ([_file(0, 0, 9000), *(_file(0, g) for g in (1, 2, 3))], CompactionPolicy(partial=True), [(0, 3, False)]),
        ([_file(0, 0, 900), *(_file(0, g) for g in (1, 2, 3))], CompactionPolicy(partial=True), [(0, 4, True)]),
    ],
)
def test_select(files: list[FileEntry], policy: CompactionPolicy, expected: list[tuple[int, int, bool]]) -> None:
    """One row per rule: generations, garbage, everything, chosen partitions, an excluded base."""
    chosen = select(Manifest(manifest_no=1, files=files), policy, now_ms=1)
    assert [(s.partition, len(s.files), s.complete) for s in chosen] == expected


def test_invalid_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="garbage"):
        CompactionPolicy(garbage=1.5)
