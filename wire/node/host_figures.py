"""Metrics of the host as one process sees it: memory, free disk space of its data, open files and their limit."""

import os
import resource
from pathlib import Path

from conf.core_dumps import core_dump_goes_to
from conf.metrics import Metrics

__all__ = ["disk_bytes", "disk_free_bytes", "open_files", "open_files_max", "register_host_figures", "resident_bytes"]

OPEN_FILES = Path("/proc/self/fd")  # its size is their number
MEMORY = Path("/proc/self/statm")  # in pages: all, resident, ...


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it.

    The peak of getrusage never falls and is inherited from the parent process.
    """
    try:
        return int(MEMORY.read_text("ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def open_files() -> int | None:
    """Return the number of open files of this process; None if the system does not count them."""
    try:
        return OPEN_FILES.stat().st_size or None  # 0 before Linux 6.2
    except OSError:
        return None


def open_files_max() -> int:
    """Return the limit of open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def disk_bytes(folder: Path) -> int | None:
    """Return the size of the disk that holds a folder, None if it is unavailable."""
    return _disk(folder)[0]


def disk_free_bytes(folder: Path) -> int | None:
    """Return the free bytes of that disk that this process may use."""
    return _disk(folder)[1]


def _disk(folder: Path) -> tuple[int | None, int | None]:
    """Return the size of a folder's disk, and its free bytes for this process."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def register_host_figures(metrics: Metrics, folder: Path) -> None:
    """Register them as metrics; an unavailable value has no series."""
    disk = metrics.shared(lambda: _disk(folder))
    shown = {
        "disk_bytes": ("Size of the disk that holds the node's data.", lambda: disk()[0]),
        "disk_free_bytes": ("Free bytes of that disk for this process.", lambda: disk()[1]),
        "open_files": ("Open files of the process, sockets included.", open_files),
        "open_files_max": ("Limit of open files.", open_files_max),
        "core_dumps": ("1 if a crash would write the node's memory to a disk.", lambda: int(bool(core_dump_goes_to()))),
    }
    for name, (text, read) in shown.items():
        metrics.gauge(name, text, lambda read=read: {} if (value := read()) is None else float(value))  # type: ignore[misc]
