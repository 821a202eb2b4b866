"""Bounded reads of files that control access, and the error type for their mistakes.

A file is read completely or refused. A folder, a pipe, a device, a file that others can write (or read, if it holds
secrets), and a file above its bound are refused unread.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from conf.errors import ExitCode, UserError

__all__ = ["AccessFileError", "read_access_file", "read_secret", "text_lines"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DIFFERENT_BYTES_MIN = 8  # 32 random bytes have about 30 different values, 32 random hexadecimal letters about 14


class AccessFileError(UserError):
    """An unusable file that controls access: one line for an operator.

    Args:
        path: The file.
        line: Number of the line with the mistake, from 1; 0 if no line has it.
        text: The mistake and its remedy; must not quote the file, which may hold secrets.
    """

    def __init__(self, path: Path, line: int, text: str) -> None:
        super().__init__(f"{path}:{line}: {text}" if line else f"{path}: {text}", ExitCode.USAGE)
        self.path = path
        self.line = line
        self.text = text


def read_access_file(path: Path, bytes_max: int, secret: bool = False) -> bytes:
    """Return a file's content; symbolic links are followed, because mounted secrets are links.

    Args:
        path: The file.
        bytes_max: A longer file is refused unread.
        secret: Only its owner and group may read the file.

    Raises:
        AccessFileError: It is missing, unreadable, not a regular file, too long, or accessible to others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block the process
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise AccessFileError(path, 0, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        _check_file(path, os.fstat(descriptor), bytes_max, secret)
        content = bytearray()
        while len(content) <= bytes_max and (piece := os.read(descriptor, bytes_max + 1 - len(content))):
            content += piece
    except OSError as error:
        raise AccessFileError(path, 0, f"cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
    if len(content) > bytes_max:  # it grew, or its file system reports no sizes
        raise AccessFileError(path, 0, f"is longer than {bytes_max} bytes")
    return bytes(content)


def read_secret(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file with one secret only.

    Raises:
        AccessFileError: As ``read_access_file``; or the secret can be guessed: zeros after a crash, one repeated
            letter, only comments.
    """
    content = read_access_file(path, bytes_max, secret=True)
    lines = content.split(b"\n")
    if content.isascii() and all(not line.strip() or line.startswith(b"#") for line in lines):
        raise AccessFileError(path, 0, "has no secret; `head -c 32 /dev/urandom` makes one")
    if len(set(content)) < DIFFERENT_BYTES_MIN:
        few = f"fewer than {DIFFERENT_BYTES_MIN} different bytes"
        raise AccessFileError(path, 0, f"has {few}, so it can be guessed; `head -c 32 /dev/urandom` makes a secret")
    return content


def _check_file(path: Path, status: os.stat_result, bytes_max: int, secret: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise AccessFileError(path, 0, f"is {kind}; name a file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AccessFileError(path, 0, f"may be written by others (mode {mode:04o}); run chmod go-w on it")
    if secret and mode & stat.S_IRWXO:
        raise AccessFileError(path, 0, f"is open to every user (mode {mode:04o}); run chmod o= on it")
    if status.st_size > bytes_max:
        raise AccessFileError(path, 0, f"has {status.st_size} bytes, more than {bytes_max}")


def text_lines(path: Path, content: bytes) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and text of each line without its end; empty lines too.

    Lines end at LF or CRLF. Other characters that some programs treat as line ends are refused: all readers of a file
    must see the same lines.

    Raises:
        AccessFileError: A byte order mark, a line that is not UTF-8, or one with a control character except tab.
    """
    if content.startswith(BYTE_ORDER_MARK):
        raise AccessFileError(path, 1, "begins with a byte order mark; save the file as UTF-8 without one")
    *lines, rest = content.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in lines]
    if rest:
        lines.append(rest)  # no line end: a CR is not part of one
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise AccessFileError(path, number, "is no UTF-8") from None
        if not text.replace("\t", " ").isprintable() and _has_control(text):
            raise AccessFileError(path, number, "has a control character (NUL, CR or another); delete it")
        yield number, text


def _has_control(text: str) -> bool:
    return any(char != "\t" and (char < " " or "\x7f" <= char <= "\x9f" or char in "\u2028\u2029") for char in text)
