"""A store of dictionaries with the contract of ``storage.store.protocol``, and a disk that loses unsynced writes.

``ModelDisk`` outlives the process, ``ModelStore`` is one process's handle. Faults are set on the disk: power loss, a
sync that fails or lies, a full disk, a flipped bit, an exception during a batch. The simulation adds delay: it runs a
sync ticket later. The contract tests run on this and on lsm-db.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Callable
from pathlib import Path

from storage.store.errors import (
    BatchUnknown,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreFull,
    StoreIncomplete,
    StoreMismatch,
    SyncFailed,
    ValueTooLarge,
)
from storage.store.protocol import Batch, Row, SyncTicket
from storage.store.record import RESERVED_PREFIX, decode_record, encode_record
from storage.store.settings import StoreSettings

__all__ = ["ModelDisk", "ModelStore", "ModelSync"]

_Records = list[tuple[bytes, bytes | None]]
_PATH = Path("model")


class ModelDisk:
    """Content of one node's disk, and its pending faults."""

    def __init__(self, trace: Callable[[str, bytes], None] = lambda _what, _data: None) -> None:
        self.trace = trace  # called with each written batch, and each sync
        self.identity: tuple[str, str] | None = None
        self.records: dict[bytes, bytes] = {}  # visible: page cache included
        self.durable: dict[bytes, bytes] = {}
        self.transaction_no = 0
        self.durable_transaction_no = 0
        self.unsynced: list[tuple[int, _Records]] = []
        self.acked_up_to = 0
        self.admitted = False  # the map has recorded that it started empty
        self.flipped: dict[bytes, tuple[bytes, bytes]] = {}  # key -> current record, original record
        self.held = False  # a process has it open
        self.incarnation = 0  # of the handle: an earlier store is dead
        self.full = False
        self.fail_sync = False  # the next sync fails with EIO
        self.lie_about_syncs = False  # syncs return without making data durable
        self.poison: str | None = None  # the next write raises: "before" or "after" its commit
        self.syncs = 0
        self.commits = 0

    def sync(self, transaction_no: int) -> None:
        """Make commits up to this one durable, unless the disk lies about syncs."""
        self.syncs += 1
        self.trace(f"sync {transaction_no}", b"")
        if self.lie_about_syncs:
            return
        while self.unsynced and self.unsynced[0][0] <= transaction_no:
            self.durable_transaction_no, records = self.unsynced.pop(0)
            _apply(self.durable, records)

    def kill(self) -> None:
        """Kill -9: the process ends, the page cache stays."""
        self.held = False
        self.incarnation += 1

    def power_loss(self, rng: random.Random) -> int:
        """Lose a random tail of unsynced transactions; return the number of lost commits."""
        self.kill()
        kept = rng.randint(0, len(self.unsynced))
        for transaction_no, records in self.unsynced[:kept]:
            _apply(self.durable, records)
            self.durable_transaction_no = transaction_no
        lost = len(self.unsynced) - kept
        self.unsynced.clear()
        self.records = dict(self.durable)
        self.transaction_no = self.durable_transaction_no
        return lost

    def flip_bit(self, key: bytes, bit: int) -> None:
        """Flip one bit of a stored record; a read detects it."""
        for records in (self.records, self.durable):
            if key in records:
                healthy, damaged = records[key], bytearray(records[key])
                damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
                former = self.flipped.get(key, (b"", b""))
                records[key] = bytes(damaged)
                self.flipped[key] = (records[key], former[1] if healthy == former[0] else healthy)

    def unflip(self) -> None:
        """Undo flipped bits in records that were not rewritten."""
        for key, (damaged, healthy) in self.flipped.items():
            for records in (self.records, self.durable):
                if records.get(key) == damaged:
                    records[key] = healthy
        self.flipped.clear()

    def wipe(self) -> None:
        """Become a new, empty disk."""
        incarnation = self.incarnation + 1
        self.__init__(self.trace)  # type: ignore[misc]
        self.incarnation = incarnation


class ModelSync:
    """A sync that ends when ``run`` is called; otherwise it was interrupted."""

    def __init__(self, disk: ModelDisk, transaction_no: int) -> None:
        self.transaction_no = transaction_no
        self._disk = disk
        self._incarnation = disk.incarnation

    def run(self) -> None:
        """Make the commits before the ticket durable; those after it are not."""
        if self._disk.incarnation != self._incarnation:
            return  # the requesting process is dead
        if self._disk.fail_sync:
            self._disk.fail_sync = False
            raise SyncFailed("fdatasync: EIO")
        self._disk.sync(self.transaction_no)


class ModelStore:
    """One process's handle of a ModelDisk."""

    crowded = held = makes_room = False

    def __init__(self, disk: ModelDisk, settings: StoreSettings) -> None:
        self.settings = settings
        self._disk: ModelDisk | None = disk
        self._incarnation = disk.incarnation
        self._keys = sorted(disk.records)

    @classmethod
    def open(cls, disk: ModelDisk, cluster_id: str, node_id: str, settings: StoreSettings) -> "ModelStore":
        """Open, or create; refuses the same as ``Store.open``."""
        if disk.held:
            raise StoreBusy("model store is open")
        if disk.identity is None:
            disk.identity = (cluster_id, node_id)
            disk.transaction_no = disk.durable_transaction_no = disk.acked_up_to = 1
        if disk.identity != (cluster_id, node_id):
            raise StoreMismatch(f"model store has identity {disk.identity}")
        if disk.transaction_no < disk.acked_up_to:
            raise StoreIncomplete(_PATH, disk.transaction_no, disk.acked_up_to)
        disk.sync(disk.transaction_no)
        disk.held = True
        return cls(disk, settings)

    @property
    def transaction_no(self) -> int:
        """Number of the newest commit."""
        return self._open_disk().transaction_no

    @property
    def acked_up_to(self) -> int:
        """Number of the last commit that was acknowledged to others."""
        return self._open_disk().acked_up_to

    def write(self, batch: Batch, *, reclaiming: bool = False) -> int:
        """Commit a batch; visible at once, durable after a sync."""
        disk = self._open_disk()
        records = [(key, self._record(key, value)) for key, value in batch]
        self.require_room(reclaiming=reclaiming)
        poison, disk.poison = disk.poison, None
        if poison == "before":
            raise BatchUnknown(disk.transaction_no + 1, "injected")
        disk.transaction_no += 1
        disk.commits += 1
        disk.unsynced.append((disk.transaction_no, records))
        disk.trace(f"commit {disk.transaction_no}", _bytes_of(records))
        _apply(disk.records, records)
        self._index(records)
        if poison == "after":
            raise BatchUnknown(disk.transaction_no, "injected")
        return disk.transaction_no

    def get(self, key: bytes) -> bytes | None:
        """Return the value, checked."""
        self._check_key(key)
        record = self._open_disk().records.get(key)
        return None if record is None else self._verified(key, record)

    def scan(self, start: bytes, stop: bytes | None, limit: int) -> list[Row]:
        """Return rows in ascending order."""
        records = self._open_disk().records
        first, last = self._bounds(start, stop)
        return [(key, self._verified(key, records[key])) for key in self._keys[first : min(last, first + limit)]]

    def begin_sync(self, *, marker: bool = False) -> ModelSync:  # noqa: ARG002
        """Return a sync ticket for all commits so far; the model's marker is always durable."""
        disk = self._open_disk()
        return ModelSync(disk, disk.transaction_no)

    def make_room(self) -> None:
        """Do nothing: no commit is held."""

    def checkpoint(self, synced: SyncTicket | None = None) -> None:
        """Do nothing: the model has one copy of its data."""

    def acked(self, transaction_no: int) -> None:
        """Raise the marker."""
        disk = self._open_disk()
        if transaction_no > disk.transaction_no:
            raise ValueError(f"commit {transaction_no} is not written, the newest is {disk.transaction_no}")
        disk.acked_up_to = max(disk.acked_up_to, transaction_no)

    def require_room(self, *, reclaiming: bool = False) -> None:
        """Raise StoreFull if the disk was made full."""
        if self._open_disk().full and not reclaiming:
            raise StoreFull(0, self.settings.free_space_floor_bytes)

    def close(self) -> None:
        """Sync and release the disk."""
        disk = self._disk
        self._disk = None
        if disk is not None and disk.incarnation == self._incarnation:
            ModelSync(disk, disk.transaction_no).run()
            disk.acked_up_to = disk.transaction_no
            disk.held = False

    def _open_disk(self) -> ModelDisk:
        if self._disk is None or self._disk.incarnation != self._incarnation:
            raise StoreClosed("model store is closed")
        return self._disk

    def _bounds(self, start: bytes, stop: bytes | None) -> tuple[int, int]:
        first = bisect_left(self._keys, start)
        return first, len(self._keys) if stop is None else max(first, bisect_left(self._keys, stop))

    def _index(self, records: _Records) -> None:
        for key, record in records:
            at = bisect_left(self._keys, key)
            known = at < len(self._keys) and self._keys[at] == key
            if record is None and known:
                del self._keys[at]
            elif record is not None and not known:
                insort(self._keys, key)

    def _record(self, key: bytes, value: bytes | None) -> bytes | None:
        self._check_key(key)
        if value is None:
            return None
        if len(value) > self.settings.value_bytes_max:
            raise ValueTooLarge(f"value of {len(value)} bytes")
        return encode_record(key, value)

    def _check_key(self, key: bytes) -> None:
        if not key or key.startswith(RESERVED_PREFIX):
            raise ValueError("key is empty or reserved for the store itself")
        if len(key) > self.settings.key_bytes_max:
            raise ValueTooLarge(f"key of {len(key)} bytes")

    def _verified(self, key: bytes, record: bytes) -> bytes:
        value = decode_record(key, record)
        if value is None:
            raise StoreDamaged(_PATH, "checksum of the record", key)
        return value


def _bytes_of(records: _Records) -> bytes:
    parts: list[bytes] = []
    for key, record in records:
        parts += (b"%d %d " % (len(key), -1 if record is None else len(record)), key, record or b"")
    return b"".join(parts)


def _apply(records: dict[bytes, bytes], changes: _Records) -> None:
    for key, record in changes:
        if record is None:
            records.pop(key, None)
        else:
            records[key] = record
