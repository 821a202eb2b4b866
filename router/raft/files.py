"""Small durable files: replaced whole, or a marker in two slots; each with a CRC-32.

Defines the steps that make a file durable (write, sync, rename, sync the folder) and detects damaged files.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

import msgspec

from conf.synced_folder import sync_folder
from router.raft.storage import LogDamaged
from wire.decoding import decoding_fault

__all__ = ["SyncedMarker", "read_checked", "read_marker", "replace_file", "write_marker"]

T = TypeVar("T")

_SLOT_BYTES = 4096  # a page for each slot: a torn write damages one
_MARKER = struct.Struct("<QQQQ")


class SyncedMarker(NamedTuple):
    """The log is synced up to ``offset`` of ``segment``."""

    storage_id: int
    generation: int
    segment: int
    offset: int


def replace_file(path: Path, payload: bytes) -> None:
    """Replace the file with CRC and payload; a crash leaves the old or the new content."""
    building = path.with_name("new-" + path.name)
    with building.open("wb") as file:
        file.write(crc32(payload).to_bytes(4, "little"))
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    building.rename(path)
    sync_folder(path.parent)


def read_checked(path: Path, struct_type: type[T]) -> T:
    """Return the content that ``replace_file`` wrote.

    Raises:
        LogDamaged: The file is missing, its CRC is wrong, or it does not decode.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LogDamaged(f"{path}: missing") from None
    payload = data[4:]
    if len(data) < 4 or crc32(payload) != int.from_bytes(data[:4], "little"):
        raise LogDamaged(f"{path}: CRC is wrong")
    try:
        return msgspec.msgpack.decode(payload, type=struct_type)
    except Exception as error:  # RecursionError and UnicodeDecodeError among others: the bytes cause it
        raise LogDamaged(f"{path}: {decoding_fault(error)}") from None


def write_marker(descriptor: int, marker: SyncedMarker) -> None:
    """Write the marker into the slot of its generation and sync it."""
    packed = _MARKER.pack(*marker)
    os.pwrite(descriptor, packed + crc32(packed).to_bytes(4, "little"), marker.generation % 2 * _SLOT_BYTES)
    os.fdatasync(descriptor)


def read_marker(descriptor: int) -> SyncedMarker | None:
    """Return the newer of the readable slots, None if neither is."""
    found: list[SyncedMarker] = []
    for slot in (0, 1):
        data = os.pread(descriptor, _MARKER.size + 4, slot * _SLOT_BYTES)
        packed = data[: _MARKER.size]
        if len(data) == _MARKER.size + 4 and crc32(packed) == int.from_bytes(data[_MARKER.size :], "little"):
            found.append(SyncedMarker(*_MARKER.unpack(packed)))
    return max(found, key=lambda marker: marker.generation, default=None)
