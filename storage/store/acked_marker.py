"""The "acknowledged up to" marker: a small file beside the store with the number of the last acknowledged commit.

A flipped bit in the write-ahead log ends recovery early without an error; a zeroed header opens as an empty store. The
marker is written before an acknowledgement leaves, so a store that recovers fewer commits is incomplete.

The file has three slots in different pages, each with a CRC. One is durable, one may be in a running sync, one is
being rewritten, so a valid one survives every power loss. A write without a sync survives the death of the process.
Syncs are grouped, so after a power loss the marker may be one group behind. It is never ahead, because it is written
after the log's sync.
"""

import os
import struct
from pathlib import Path
from zlib import crc32

from storage.store.errors import StoreDamaged

__all__ = ["AckedMarker"]

_SLOT = struct.Struct(">8s16sQ")  # magic, store id, acknowledged up to; a CRC-32 of these follows
_SLOT_BYTES = _SLOT.size + 4
_MAGIC = b"SMQacked"
_SLOT_OFFSETS = (0, 4096, 8192)  # different pages, so that one torn write spoils one slot
_FILE_BYTES = 12288


class AckedMarker:
    """One open marker file; its descriptor may be synced on another thread, one sync at a time."""

    def __init__(self, path: Path, store_id: bytes, acked_up_to: int, slot: int) -> None:
        self.path = path
        self.store_id = store_id
        self.acked_up_to = acked_up_to
        self._slot = slot  # rewritten until the next sync starts
        self.damaged_slots = 0  # found at open; the rest is a lower bound then
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    @classmethod
    def create(cls, path: Path, store_id: bytes) -> "AckedMarker":
        """Write a new marker at 0 and sync it; the caller syncs the folder.

        Args:
            path: Replaced if it exists: the caller has checked that no store belongs to it.
            store_id: 16 random bytes that tie marker and store together.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, bytes(_FILE_BYTES), 0)
            for offset in _SLOT_OFFSETS:
                os.pwrite(descriptor, _encode(store_id, 0), offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return cls(path, store_id, 0, 0)

    @classmethod
    def open(cls, path: Path) -> "AckedMarker":
        """Read the newest valid slot.

        Raises:
            StoreDamaged: No slot is valid.
            FileNotFoundError: There is no marker.
        """
        data = path.read_bytes()
        slots = [_decode(data[offset : offset + _SLOT_BYTES]) for offset in _SLOT_OFFSETS]
        whole = [(slot[1], index, slot[0]) for index, slot in enumerate(slots) if slot is not None]
        if not whole or len({store_id for _, _, store_id in whole}) > 1:
            raise StoreDamaged(path, "no slot of the acknowledged-up-to marker is whole")
        acked_up_to, index, store_id = max(whole)
        marker = cls(path, store_id, acked_up_to, (index + 1) % len(_SLOT_OFFSETS))
        marker.damaged_slots = len(slots) - len(whole)
        return marker

    def write(self, acked_up_to: int) -> None:
        """Raise the marker; it survives the process from here on, and a power loss after the next sync."""
        if acked_up_to > self.acked_up_to:
            self.acked_up_to = acked_up_to
            os.pwrite(self._descriptor, _encode(self.store_id, acked_up_to), _SLOT_OFFSETS[self._slot])

    def begin_sync(self) -> int:
        """Return the descriptor to sync; writes from now on go to the next slot."""
        self._slot = (self._slot + 1) % len(_SLOT_OFFSETS)
        return self._descriptor

    def sync(self) -> None:
        """Make the marker durable. Raises OSError."""
        os.fdatasync(self.begin_sync())

    def close(self) -> None:
        """Close the file without a sync."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _encode(store_id: bytes, acked_up_to: int) -> bytes:
    body = _SLOT.pack(_MAGIC, store_id, acked_up_to)
    return body + crc32(body).to_bytes(4, "big")


def _decode(data: bytes) -> tuple[bytes, int] | None:
    body = data[: _SLOT.size]
    if len(data) < _SLOT_BYTES or crc32(body) != int.from_bytes(data[_SLOT.size :], "big"):
        return None
    magic, store_id, acked_up_to = _SLOT.unpack(body)
    return (store_id, acked_up_to) if magic == _MAGIC else None
