"""The files of a store, and their quarantine if they lack acknowledged data or are damaged."""

import fcntl
import os
from pathlib import Path

from conf.synced_folder import sync_folder
from storage.store.errors import StoreBusy, StoreUnavailable
from storage.store.page_sums import SUMS_SUFFIX

__all__ = ["QUARANTINED_MAX", "quarantine", "quarantined", "store_files"]

QUARANTINED_MAX = 8
_SUFFIXES = ("-log", SUMS_SUFFIX, "-ahead", "-acked", "-lock")


def store_files(path: Path) -> list[Path]:
    """Return the files of a store: data, its log, page sums, write-ahead log, marker, lock."""
    return [path, *(path.with_name(path.name + suffix) for suffix in _SUFFIXES)]


def _targets(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}.quarantined-{number}") for number in range(1, QUARANTINED_MAX + 1)]


def quarantined(path: Path) -> list[Path]:
    """Return the data files of the quarantined stores beside a store."""
    return [target for target in _targets(path) if target.exists()]


def quarantine(path: Path) -> Path:
    """Rename an unverified store, so that an empty one can replace it; return the new path of its data file.

    Raises:
        StoreBusy: It is open.
        StoreUnavailable: ``QUARANTINED_MAX`` stores are quarantined already. None is ever deleted here: the oldest may
          be
            the only whole one.
    """
    lock = os.open(path.with_name(path.name + "-lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        target = next((target for target in _targets(path) if not target.exists()), None)
        if target is None:
            raise StoreUnavailable(
                f"{QUARANTINED_MAX} stores are quarantined in {path.parent} already: check the disk. "
                "List them with `stratamq store aside`, and remove those that are not needed"
            )
        for source, goal in zip(store_files(path), store_files(target), strict=True):
            # The marker is renamed last but for the lock: a store without its marker is refused at open.
            if source.exists():
                source.rename(goal)
        sync_folder(path.parent)
    except BlockingIOError as error:
        raise StoreBusy(f"store {path} is open") from error
    finally:
        os.close(lock)
    return target
