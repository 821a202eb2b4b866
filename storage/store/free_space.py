"""Free disk space for a store, queried at a limited rate."""

import os
import time
from pathlib import Path

from storage.store.errors import StoreFull
from storage.store.settings import StoreSettings

__all__ = ["FreeSpace"]

KNOWN_S = 0.1  # cache time of the free space: a query per commit would cost as much as the commit's write
FACTOR = 8  # disk bytes that a written byte may use, including log, merges and page sums


class FreeSpace:
    """Free space of the file system that has a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk_bytes = self._left = 0  # of the file system; lower bound of the free bytes
        self._until = 0.0  # end of the cache time

    def space(self, settings: StoreSettings) -> tuple[int, int]:
        """Return the free bytes of the file system and its floor."""
        usage = os.statvfs(self._folder)
        self._disk_bytes = usage.f_blocks * usage.f_frsize
        self._left, self._until = usage.f_bavail * usage.f_frsize, time.monotonic() + KNOWN_S
        return self._left, self._floor_bytes(settings)

    def require(self, settings: StoreSettings, *, reclaiming: bool) -> None:
        """Raise StoreFull if free space is below the floor (a quarter of it for batches that free space)."""
        free_bytes, floor_bytes = self.space(settings)
        if free_bytes < (floor_bytes // 4 if reclaiming else floor_bytes):
            raise StoreFull(free_bytes, floor_bytes)

    def require_for(self, octets: int, settings: StoreSettings, *, reclaiming: bool) -> None:
        """Call ``require``, unless the cached value is new and later writes cannot have used the rest."""
        self._left -= FACTOR * octets
        if self._left > self._floor_bytes(settings) and time.monotonic() < self._until:
            return
        self.require(settings, reclaiming=reclaiming)

    def _floor_bytes(self, settings: StoreSettings) -> int:
        percent_bytes = int(self._disk_bytes * settings.free_space_floor_percent / 100)
        return max(percent_bytes, settings.free_space_floor_bytes)
