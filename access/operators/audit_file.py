"""The audit log file: one writer, mode 0640, no links followed, synced before replies.

A shell around ``audit_chain``: the caller collects the records of an iteration and calls ``append`` in a worker thread,
because it waits for the disk. While the disk is full, or the last write failed, ``refusal`` returns why verbs that
change state are refused; reading verbs and clients are not affected.

A file of ``rotate_bytes`` is renamed to ``<name>.<number of its last line>``, and the chain continues in a new one. Its
first line contains the sum of that last line, even if the process is killed in between.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from access.operators.audit_chain import GENESIS, LINE_BYTES_MAX, AuditRecord, Head, Scalar, head_of, make_line
from conf.synced_folder import sync_folder

__all__ = ["AuditFile", "AuditFileError", "read_lines"]

MODE = 0o640
FORBIDDEN = 0o137  # bits of a mode: read for the group, nothing for others
ROOM_BYTES_MIN = 64 * 1024 * 1024
ROTATE_BYTES = 64 * 1024 * 1024
NUMBER_DIGITS = 19  # of a line: file names sort like their lines


class AuditFileError(Exception):
    """The audit log cannot be written; one line: where, why, remedy."""


class AuditFile:
    """The open audit log of one node.

    Args:
        path: Its folder must exist and belong to this user.
        room_bytes_min: Free bytes of the file system below which verbs that change state are refused.
        rotate_bytes: Size at which a file is rotated.

    Attributes:
        head: End of the chain on disk.
        torn: A record about an incomplete last line that was removed; the caller appends it first.

    Raises:
        AuditFileError: It is a link or not a file, belongs to another user, is accessible to others, is locked by
            another process, or has an invalid last line.
    """

    def __init__(self, path: Path, room_bytes_min: int = ROOM_BYTES_MIN, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._path = path
        self._room_bytes_min = room_bytes_min
        self._rotate_bytes = rotate_bytes
        self._failed = ""
        self.head = GENESIS
        self.torn: AuditRecord | None = None
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise AuditFileError(f"audit {path}: {error.strerror or error}") from None
        try:
            self._length = self._check_file()
            self._read_end()
            if not self._length:
                self.head = self._rotated_head()
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Close and unlock the file."""
        os.close(self._descriptor)

    def append(self, records: Iterable[AuditRecord], utc: float) -> None:
        """Write and sync records, all or none.

        Raises:
            AuditFileError: None of them is on disk.
        """
        head, lines = self.head, []
        for record in records:
            line, head = make_line(record, utc, head)
            lines.append(line)
        data = b"".join(lines)
        try:
            if self._failed:
                self._truncate()
            self._write(data)
        except OSError as error:
            # a full disk permits truncation; if it fails, the next append retries it
            with contextlib.suppress(OSError):
                self._truncate()
            self._failed = error.strerror or str(error)
            raise AuditFileError(f"audit {self._path} cannot be written: {self._failed}") from None
        self.head = head
        self._length += len(data)
        self._failed = ""
        if self._length >= self._rotate_bytes:
            with contextlib.suppress(OSError):  # the lines are on disk; the next append retries it
                self._rotate()

    def refusal(self) -> str:
        """Return why verbs that change state are refused now, "" if they are not."""
        if self._failed:
            return f"audit {self._path} cannot be written ({self._failed}): make room or mend it, then ask again"
        try:
            about = os.fstatvfs(self._descriptor)
        except OSError as error:
            return f"audit {self._path}: {error.strerror or error}"
        room = about.f_bavail * about.f_frsize
        if room < self._room_bytes_min:
            wanted = self._room_bytes_min >> 20
            return f"audit {self._path} has {room >> 20} MiB of room, {wanted} are wanted: make room, then ask again"
        return ""

    def _check_file(self) -> int:
        """Return the file's length, if only this process writes it."""
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self._no_file()
        if status.st_uid != os.geteuid():
            raise AuditFileError(f"audit {self._path} belongs to user {status.st_uid}: chown it, or name another file")
        if status.st_mode & FORBIDDEN:
            raise AuditFileError(f"audit {self._path} is open to others: chmod 640 {self._path}")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AuditFileError(f"audit {self._path} is held by another process") from None
        return status.st_size

    def _check_names(self) -> None:
        """Refuse a file with a second name; remove one that an interrupted rotation left."""
        status = os.fstat(self._descriptor)
        if status.st_nlink == 2:
            aside = self._rotated_path()
            with contextlib.suppress(OSError):
                if os.path.samestat(aside.lstat(), status):
                    aside.unlink()
                    sync_folder(aside.parent)
        if os.fstat(self._descriptor).st_nlink != 1:
            raise self._no_file()

    def _no_file(self) -> AuditFileError:
        return AuditFileError(f"audit {self._path} is no file of its own name alone: move it away")

    def _rotated_path(self) -> Path:
        """Return the name of the file after its rotation."""
        return self._path.with_name(f"{self._path.name}.{self.head.sequence:0{NUMBER_DIGITS}}")

    def _read_end(self) -> None:
        """Find the end of the chain; an incomplete last line was never acknowledged, and is removed."""
        begin = max(self._length - 2 * LINE_BYTES_MAX, 0)
        end = os.pread(self._descriptor, self._length - begin, begin)
        whole = end[: end.rfind(b"\n") + 1]
        unfinished = end[len(whole) :]
        if whole:
            self.head = self._head(whole[:-1].rpartition(b"\n")[2] + b"\n")
        elif begin:
            raise AuditFileError(f"audit {self._path} ends in no line of an audit: move it away")
        self._check_names()  # before the first byte is changed
        if unfinished:
            total = hashlib.sha256(unfinished).hexdigest()
            cut: dict[str, Scalar] = {"bytes": len(unfinished), "sha256": total}
            self.torn = AuditRecord("start", "failed", arguments=cut, reason="an unfinished line was cut off")
            self._length -= len(unfinished)
            self._truncate()

    def _rotate(self) -> None:
        """Rotate the file and start the next one; this process always holds one of them."""
        aside = self._rotated_path()
        os.link(self._path, aside)  # never replaces an existing file
        try:
            self._path.unlink()
            descriptor = _open(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.rename(self._path)  # continue in the old one; neither of two names of one file is removed
                aside.unlink(missing_ok=True)
            raise
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.close(self._descriptor)
        self._descriptor, self._length = descriptor, 0

    def _rotated_head(self) -> Head:
        """Return the end of the newest rotated file: an empty file continues it."""
        pattern = re.compile(re.escape(self._path.name) + rf"\.[0-9]{{{NUMBER_DIGITS}}}")
        try:
            aside = max((path for path in self._path.parent.iterdir() if pattern.fullmatch(path.name)), default=None)
            if aside is None:
                return GENESIS
            with aside.open("rb") as file:
                file.seek(max(aside.stat().st_size - 2 * LINE_BYTES_MAX, 0))
                end = file.read()
            return head_of(end[:-1].rpartition(b"\n")[2] + end[-1:])
        except ValueError as error:
            text = f"audit {aside}: its last line {error}; `stratamq audit verify` it, and move it away"
            raise AuditFileError(text) from None
        except OSError as error:
            raise AuditFileError(f"audit {self._path.parent}: {error.strerror or error}") from None

    def _head(self, line: bytes) -> Head:
        try:
            return head_of(line)
        except ValueError as error:
            text = f"audit {self._path}: its last line {error}; `stratamq audit verify` it, and move it away"
            raise AuditFileError(text) from None

    def _truncate(self) -> None:
        """Truncate the file to the complete lines."""
        os.ftruncate(self._descriptor, self._length)
        os.fdatasync(self._descriptor)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        os.fdatasync(self._descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError:
        return os.open(path, flags)
    try:
        os.fchmod(descriptor, MODE)  # the process creates files without group permissions
        sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an audit log, each with its newline; an overlong one comes in pieces, and is invalid.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            yield line
