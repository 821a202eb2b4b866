"""Whether a store began empty and the map has not heard of that yet: a file beside it.

A store that was created just now has nothing of what its node ever acknowledged, and says so when it registers. If that
incarnation ends first, the next one finds a store like any other: without this file it would be taken for whole, made
primary while the other copies are away, and they would be made anew from nothing.
"""

from pathlib import Path

from conf.synced_folder import sync_folder

__all__ = ["CreatedMarker"]


class CreatedMarker:
    """The file of one node.

    Args:
        folder: Where the store lies.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store-created"

    @property
    def stands(self) -> bool:
        """Whether the map has not heard of the store's beginning."""
        return self._path.exists()

    def write(self) -> None:
        """A store is about to be created: on the disk before it is."""
        self._path.touch()
        sync_folder(self._path.parent)

    def remove(self) -> None:
        """The map lists an incarnation that began with this store, and no role of one that is gone."""
        self._path.unlink()
        sync_folder(self._path.parent)
