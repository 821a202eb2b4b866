"""The state of a node's files after a loss of power: all synced data, and any part of the rest.

Reads the journal of the preloaded shim (shim/fault_shim.c): before each write the old content, after each sync
the covered writes. Per page of 4 KiB with unsynced writes, one of them is chosen as the last that reached the disk,
or none. Names and truncations are durable at once: real file systems may lose those too.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
RECORD = struct.Struct("=IIQQQQ")  # kind, old_bytes, inode, at, length, old_size; the old bytes follow
WROTE, SYNCED, FORGET = 1, 2, 3

__all__ = ["Write", "lose_power", "read_journal"]


@dataclass(frozen=True, slots=True)
class Write:
    """One write that no sync covers."""

    inode: int
    at: int
    length: int
    old_size: int
    old: bytes


def read_journal(data: bytes) -> list[Write]:
    """Return the unsynced writes, oldest first. A record that is cut off at the end belongs to no write."""
    found: list[tuple[int, Write]] = []
    at = 0
    while at + RECORD.size <= len(data):
        kind, old_bytes, inode, offset, length, old_size = RECORD.unpack_from(data, at)
        behind = at + RECORD.size + old_bytes
        if behind > len(data):
            break
        if kind == WROTE:
            found.append((at, Write(inode, offset, length, old_size, data[at + RECORD.size : behind])))
        elif kind == SYNCED:
            found = [(place, write) for place, write in found if write.inode != inode or place >= offset]
        elif kind == FORGET:
            found = [(place, write) for place, write in found if write.inode != inode]
        at = behind
    return [write for _, write in found]


def lose_power(folder: Path, journal: Path, rng: random.Random) -> list[str]:
    """Undo unsynced writes below a folder without running processes; return the undone writes.

    With an even chance all of them, otherwise a part.
    """
    if not journal.exists():
        return []
    writes: dict[int, list[Write]] = defaultdict(list)
    for write in read_journal(journal.read_bytes()):
        writes[write.inode].append(write)
    everything = rng.random() < 0.5
    undone = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (unsynced := writes.get(path.stat().st_ino)):
            taken = _take_back(path, unsynced, rng, everything)
            undone.append(f"{path.relative_to(folder)}: {taken} of {len(unsynced)} writes")
    journal.write_bytes(b"")
    return undone


def _take_back(path: Path, writes: list[Write], rng: random.Random, everything: bool) -> int:
    """Undo on one file; return how many writes lost a part."""
    per_page: dict[int, list[int]] = defaultdict(list)  # page -> writes that touch it, oldest first
    for number, write in enumerate(writes):
        for page in range(write.at // PAGE_BYTES, (write.at + write.length - 1) // PAGE_BYTES + 1):
            per_page[page].append(number)
    lost: dict[int, set[int]] = {}
    for page, numbers in sorted(per_page.items()):
        kept = 0 if everything else rng.randint(0, len(numbers))
        lost[page] = set(numbers[kept:])
    size = min(writes[0].old_size, path.stat().st_size)
    data = bytearray(path.read_bytes())
    for page, numbers in per_page.items():
        if any(number not in lost[page] for number in numbers):  # a write that reached the disk extended the file
            end = max(writes[n].at + writes[n].length for n in numbers if n not in lost[page])
            size = max(size, min(end, (page + 1) * PAGE_BYTES))
    for number in range(len(writes) - 1, -1, -1):
        write = writes[number]
        for page in range(write.at // PAGE_BYTES, (write.at + write.length - 1) // PAGE_BYTES + 1):
            if number in lost[page]:
                start = max(write.at, page * PAGE_BYTES)
                end = min(write.at + write.length, (page + 1) * PAGE_BYTES)
                old = write.old[start - write.at : end - write.at]
                data[start:end] = old + bytes(end - start - len(old))
    path.write_bytes(data[:size])
    return len(set().union(*lost.values()))
