"""A node's data folder: one process at a time, and a new incarnation at every start.

The folder is locked for the lifetime of the process. The lock proves that the previous process on this folder has
ended, so there is no need to wait for the former incarnation, whose number is in the folder (docs/protocol.md rule
2.2).

The folder also stores name and cluster ID of its cluster, from the first map that was read.
"""

import fcntl
import os
import re
import time
from pathlib import Path

from conf.errors import UserError
from conf.private_files import make_private_folder
from conf.synced_folder import sync_folder

__all__ = ["CLUSTER_FILE", "DataFolder", "read_cluster_file", "write_cluster_file"]

CLUSTER_FILE = "cluster"
_CLUSTER_LINE = re.compile(r"(?P<name>[^ \n]{1,64}) (?P<id>[0-9a-f]{32})\n")


def read_cluster_file(folder: Path) -> tuple[str, str]:
    """Return (name, cluster ID) of a folder's cluster; two empty strings if none is stored.

    Raises:
        UserError: The file cannot be read, or is damaged.
    """
    path = folder / CLUSTER_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return "", ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    found = _CLUSTER_LINE.fullmatch(text)
    if found is None:
        raise UserError(f"{path} is damaged: expected a cluster's name and its ID")
    return found["name"], found["id"]


def write_cluster_file(folder: Path, name: str, cluster_id: str) -> None:
    """Store the cluster of a folder, synced.

    Raises:
        OSError: It cannot be written.
    """
    _write_synced(folder / CLUSTER_FILE, f"{name} {cluster_id}\n")


def _write_synced(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.rename(path)
    sync_folder(path.parent)


class DataFolder:
    """The locked folder of this process.

    Attributes:
        path: Of the folder, created if missing.
        incarnation: Of this process; higher than every earlier one on this folder.
        ended_incarnation: Of the previous process; 0 if there was none.
        cluster: Name of the folder's cluster; "" until ``belong``.
        cluster_id: Its cluster ID.

    Raises:
        UserError: The folder cannot be written, or is in use by another process.
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
        self.cluster, self.cluster_id = read_cluster_file(path)
        self.ended_incarnation = self._read()
        # Wall time makes incarnations of a deleted folder newer too; the former one makes them grow without a clock.
        self.incarnation = max(self.ended_incarnation + 1, time.time_ns() // 1_000_000)
        _write_synced(path / "incarnation", f"{self.incarnation}\n")

    def belong(self, cluster: str, cluster_id: str) -> None:
        """Store the folder's cluster.

        Raises:
            OSError: It cannot be written.
        """
        write_cluster_file(self.path, cluster, cluster_id)
        self.cluster, self.cluster_id = cluster, cluster_id

    def _read(self) -> int:
        try:
            return int((self.path / "incarnation").read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise UserError(f"{self.path / 'incarnation'} is damaged; a number was expected") from error

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)
