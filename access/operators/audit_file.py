"""The audit's file: one writer, mode 0640, no link followed, synced before anybody is answered.

A shell around ``audit_chain``: the caller collects the records of a turn and calls ``append`` in a worker thread,
because it waits for the disk. While there is no room, or the last write failed, ``refusal`` says why verbs that
change something are refused; reading verbs and clients go on.

A file of ``rotate_bytes`` is put aside as ``<name>.<number of its last line>``, and the chain goes on in a new one: its
first line names the sum of that last line, also if the process dies between the two.
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
FORBIDDEN = 0o137  # bits of a mode: the group may read, others nothing
ROOM_BYTES_MIN = 64 * 1024 * 1024
ROTATE_BYTES = 64 * 1024 * 1024
NUMBER_DIGITS = 19  # of a line: names of files sort as their lines do


class AuditFileError(Exception):
    """The audit cannot be written; the text is one line: where, why, what to do."""


class AuditFile:
    """The open audit of one node.

    Args:
        path: Its folder must exist and be this user's.
        room_bytes_min: Free bytes of the file system below which verbs that change something are refused.
        rotate_bytes: Length from which a file is put aside.
    Attributes:
        head: End of the chain on the disk.
        torn: A record about an unfinished last line that was cut off; the caller appends it first.
    Raises:
        AuditFileError: It is a link, no file, another user's, open to others, held by another process, or its last
            line is not what was written.
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
            self._length = self._judge()
            self._read_end()
            if not self._length:
                self.head = self._head_aside()
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Close the file, and let another process have it."""
        os.close(self._descriptor)

    def append(self, records: Iterable[AuditRecord], utc: float) -> None:
        """Write and sync records, all or none.

        Raises:
            AuditFileError: They are not on the disk, and no part of them is.
        """
        head, lines = self.head, []
        for record in records:
            line, head = make_line(record, utc, head)
            lines.append(line)
        data = b"".join(lines)
        try:
            if self._failed:
                self._cut()
            self._write(data)
        except OSError as error:
            with contextlib.suppress(OSError):  # a full disk still shortens a file; if not, the next append does
                self._cut()
            self._failed = error.strerror or str(error)
            raise AuditFileError(f"audit {self._path} cannot be written: {self._failed}") from None
        self.head = head
        self._length += len(data)
        self._failed = ""
        if self._length >= self._rotate_bytes:
            with contextlib.suppress(OSError):  # the lines are on the disk; the next append tries it again
                self._rotate()

    def refusal(self) -> str:
        """Return why a verb that changes something is refused now, "" if it is not."""
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

    def _judge(self) -> int:
        """Return the file's length, if it is one that only this process writes."""
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

    def _judge_names(self) -> None:
        """Refuse a file with a second name; one that a rotation gave it before a death is taken away."""
        status = os.fstat(self._descriptor)
        if status.st_nlink == 2:
            aside = self._aside()
            with contextlib.suppress(OSError):
                if os.path.samestat(aside.lstat(), status):
                    aside.unlink()
                    sync_folder(aside.parent)
        if os.fstat(self._descriptor).st_nlink != 1:
            raise self._no_file()

    def _no_file(self) -> AuditFileError:
        return AuditFileError(f"audit {self._path} is no file of its own name alone: move it away")

    def _aside(self) -> Path:
        """Return the name of the file once it is put aside."""
        return self._path.with_name(f"{self._path.name}.{self.head.sequence:0{NUMBER_DIGITS}}")

    def _read_end(self) -> None:
        """Find the end of the chain; an unfinished last line was never answered for, and is cut off."""
        begin = max(self._length - 2 * LINE_BYTES_MAX, 0)
        end = os.pread(self._descriptor, self._length - begin, begin)
        whole = end[: end.rfind(b"\n") + 1]
        unfinished = end[len(whole) :]
        if whole:
            self.head = self._head(whole[:-1].rpartition(b"\n")[2] + b"\n")
        elif begin:
            raise AuditFileError(f"audit {self._path} ends in no line of an audit: move it away")
        self._judge_names()  # before the first byte is changed
        if unfinished:
            total = hashlib.sha256(unfinished).hexdigest()
            cut: dict[str, Scalar] = {"bytes": len(unfinished), "sha256": total}
            self.torn = AuditRecord("start", "failed", arguments=cut, reason="an unfinished line was cut off")
            self._length -= len(unfinished)
            self._cut()

    def _rotate(self) -> None:
        """Put the file aside and begin the next one; this process holds one or the other all the time."""
        aside = self._aside()
        os.link(self._path, aside)  # never over a file that is there
        try:
            self._path.unlink()
            descriptor = _open(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.rename(self._path)  # go on in the old one; of two names of one file none is taken away
                aside.unlink(missing_ok=True)
            raise
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.close(self._descriptor)
        self._descriptor, self._length = descriptor, 0

    def _head_aside(self) -> Head:
        """Return the end of the newest file that was put aside: an empty file continues it."""
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

    def _cut(self) -> None:
        """Shorten the file to the lines that are whole."""
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
        os.fchmod(descriptor, MODE)  # the process makes its files without the group's bits
        sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an audit, each with its end of line; one that is too long comes in pieces, and is broken.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            yield line
