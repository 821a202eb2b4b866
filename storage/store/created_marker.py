"""Marker file beside a store that began empty, until the map records that.

A new store has none of the operations that its node ever acknowledged, and the node reports that when it registers. If
that incarnation ends first, the next one finds an ordinary store. Without this file it would count as whole and could
become primary while the other copies are down; these would then be rebuilt from an empty store.
"""

from pathlib import Path

from conf.synced_folder import sync_folder

__all__ = ["CreatedMarker"]


class CreatedMarker:
    """The file of one node.

    Args:
        folder: The store's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store-created"

    @property
    def stands(self) -> bool:
        """Whether the map has not recorded the store's creation yet."""
        return self._path.exists()

    def write(self) -> None:
        """Write the file durably before the store is created."""
        self._path.touch()
        sync_folder(self._path.parent)

    def remove(self) -> None:
        """Remove the file: the map lists an incarnation that began with this store, and no role of an earlier one."""
        self._path.unlink()
        sync_folder(self._path.parent)
