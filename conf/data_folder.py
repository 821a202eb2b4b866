"""A node's data folder: one process at a time, and a new incarnation at every start.

The folder is locked for as long as the process lives. Who holds the lock has proved that the process before it on this
folder has ended, so the former incarnation, kept in the folder, need not be waited for (docs/protocol.md rule 2.2).
"""

import fcntl
import os
import time
from pathlib import Path

from conf.errors import UserError
from conf.private_files import make_private_folder
from conf.synced_folder import sync_folder

__all__ = ["DataFolder"]


class DataFolder:
    """The locked folder of this process.

    Attributes:
        path: Of the folder, made if it was missing.
        incarnation: Of this process; higher than every one before it on this folder.
        ended_incarnation: Of the process before; 0 if there was none.
    Raises:
        UserError: The folder cannot be written, or another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_private_folder(path)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(
                f"cannot write to the data folder {path}: {error.strerror}; choose another node.data_dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UserError(f"the data folder {path} is in use by another process; one node per folder") from error
        self.ended_incarnation = self._read()
        # Wall time makes incarnations of a wiped folder newer too; the former one makes them grow without a clock.
        self.incarnation = max(self.ended_incarnation + 1, time.time_ns() // 1_000_000)
        self._write()

    def _read(self) -> int:
        try:
            return int((self.path / "incarnation").read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise UserError(f"{self.path / 'incarnation'} is damaged; a number was expected") from error

    def _write(self) -> None:
        new = self.path / "incarnation.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{self.incarnation}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.rename(self.path / "incarnation")
        sync_folder(self.path)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._lock)
