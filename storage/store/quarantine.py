"""The files of a store, and how they are put aside when they do not prove what was acknowledged."""

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
    """Return the data files of the stores that were put aside beside a store."""
    return [target for target in _targets(path) if target.exists()]


def quarantine(path: Path) -> Path:
    """Put an unproven store aside, so that an empty one can take its place; return where its data file went.

    Raises:
        StoreBusy: It is open.
        StoreUnavailable: ``QUARANTINED_MAX`` of its name stand there already. None is ever deleted here: the oldest of
            them may be the only whole one.
    """
    lock = os.open(path.with_name(path.name + "-lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        target = next((target for target in _targets(path) if not target.exists()), None)
        if target is None:
            raise StoreUnavailable(
                f"{QUARANTINED_MAX} stores were put aside in {path.parent} before it: is the disk sound? "
                "Look at them with `stratamq store aside`, and remove what is of no use"
            )
        for source, goal in zip(store_files(path), store_files(target), strict=True):
            # The marker is moved last but for the lock: without it, what is left is refused, not taken for a store.
            if source.exists():
                source.rename(goal)
        sync_folder(path.parent)
    except BlockingIOError as error:
        raise StoreBusy(f"store {path} is open") from error
    finally:
        os.close(lock)
    return target
