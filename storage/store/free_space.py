"""How much room a disk has for a store, looked at no more often than it can have changed much."""

import os
import time
from pathlib import Path

from storage.store.errors import StoreFull
from storage.store.settings import StoreSettings

__all__ = ["FreeSpace"]

KNOWN_S = 0.1  # after a look at the free space: a look per commit costs as much as the commit's write
FACTOR = 8  # bytes that a written byte may take of the disk, with the log, merges and page sums


class FreeSpace:
    """Room of the file system that has a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk_bytes = self._left = 0  # of the file system; of them free at least, as far as is known
        self._until = 0.0  # when that is not believed any more

    def space(self, settings: StoreSettings) -> tuple[int, int]:
        """Return the free bytes of the file system and the floor that holds on it."""
        usage = os.statvfs(self._folder)
        self._disk_bytes = usage.f_blocks * usage.f_frsize
        self._left, self._until = usage.f_bavail * usage.f_frsize, time.monotonic() + KNOWN_S
        return self._left, self._floor_bytes(settings)

    def require(self, settings: StoreSettings, *, reclaiming: bool) -> None:
        """Raise StoreFull if free space is below the floor (a quarter of it for what frees more than it writes)."""
        free_bytes, floor_bytes = self.space(settings)
        if free_bytes < (floor_bytes // 4 if reclaiming else floor_bytes):
            raise StoreFull(free_bytes, floor_bytes)

    def require_for(self, octets: int, settings: StoreSettings, *, reclaiming: bool) -> None:
        """Ask ``require``, unless it was asked just now and what was written since cannot have filled the rest."""
        self._left -= FACTOR * octets
        if self._left > self._floor_bytes(settings) and time.monotonic() < self._until:
            return
        self.require(settings, reclaiming=reclaiming)

    def _floor_bytes(self, settings: StoreSettings) -> int:
        percent_bytes = int(self._disk_bytes * settings.free_space_floor_percent / 100)
        return max(percent_bytes, settings.free_space_floor_bytes)
