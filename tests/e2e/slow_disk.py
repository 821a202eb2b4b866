"""Delay or fail syncs of real nodes on request (``shim/slow_disk.c``, preloaded)."""

import contextlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["SlowDisk"]

SOURCE = Path(__file__).parent / "shim" / "slow_disk.c"
CONTROL = struct.Struct("=qqq")  # microseconds per sync, syncs that fail, syncs that a main thread waited for


class SlowDisk:
    """Some files of nodes."""

    def __init__(self, control: Path) -> None:
        self.control = control
        control.write_bytes(CONTROL.pack(0, 0, 0))

    @property
    def waited(self) -> int:
        """Syncs that took longer, and that the main thread of a node waited for."""
        return int(CONTROL.unpack(self.control.read_bytes())[2])

    def set(self, seconds: float = 0.0, failures: int = 0) -> None:
        """Let each sync take so long from now on, and some fail."""
        with self.control.open("r+b") as file:  # in place: it is mapped
            file.write(CONTROL.pack(int(seconds * 1e6), failures, self.waited))

    @contextlib.contextmanager
    def preloaded(self, folder: Path, files: str) -> Iterator[None]:
        """Let processes that are started meanwhile have such a disk for files with this in their paths."""
        library = folder / "slow_disk.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(library))
            patch.setenv("SLOW_DISK_CONTROL", str(self.control))
            patch.setenv("SLOW_DISK_FILES", files)
            yield
