"""Lists and removes the stores that a node quarantined because they were damaged or incomplete.

``storage/store/store.py`` quarantines at most ``QUARANTINED_MAX``; none is ever deleted automatically, because the
oldest may be the only whole copy. An operator removes them by name.
"""

import logging
from datetime import UTC, datetime
from pathlib import Path

from conf.errors import ExitCode, UserError
from conf.events import say
from conf.synced_folder import sync_folder
from storage.store.quarantine import QUARANTINED_MAX, quarantined, store_files

__all__ = ["QuarantinedStores"]

logger = logging.getLogger(__name__)


class QuarantinedStores:
    """Quarantined stores beside one store file.

    Args:
        path: The node's store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        """Return the number of quarantined stores."""
        return len(quarantined(self._path))

    def listed(self) -> dict[str, object]:
        """Return each store's name, size of all its files, and time of the last write (UTC, ISO 8601)."""
        stores = []
        for path in quarantined(self._path):
            files = [file for file in store_files(path) if file.exists()]
            newest = max(file.stat().st_mtime for file in files)
            written = datetime.fromtimestamp(newest, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            stores.append({"name": path.name, "bytes": sum(file.stat().st_size for file in files), "written": written})
        return {"folder": str(self._path.parent), "bound": QUARANTINED_MAX, "stores": stores}

    def remove(self, name: str, *, dry_run: bool = False) -> dict[str, object]:
        """Delete all files of one store.

        Args:
            name: As returned by ``listed``.
            dry_run: Only return the effect.

        Raises:
            UserError: There is none of that name.
        """
        known = {path.name: path for path in quarantined(self._path)}
        path = known.get(name)
        if path is None:
            there = ", ".join(known) or "there is none"
            raise UserError(f"no store {name!r} was put aside in {self._path.parent}: {there}", ExitCode.USAGE)
        files = [file for file in store_files(path) if file.exists()]
        size = sum(file.stat().st_size for file in files)
        if not dry_run:
            for file in files:
                file.unlink()
            sync_folder(self._path.parent)
            say(logger, "store.aside_removed", store=name, octets=size)
        return {"removed": name, "bytes": size, "dry_run": dry_run}
