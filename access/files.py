"""Bounded reads of files that decide who has access, and the one error of their mistakes.

A file is read whole or refused whole. A folder, a pipe, a device, a file that others may write or, where it holds
secrets, read, and a file above its bound are refused before their content is looked at.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from conf.errors import ExitCode, UserError

__all__ = ["AccessFileError", "read_access_file", "read_secret", "text_lines"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DIFFERENT_BYTES_MIN = 8  # 32 random bytes have some 30, 32 random hexadecimal letters have some 14


class AccessFileError(UserError):
    """A file that decides access is unusable as a whole: one line for an operator.

    Args:
        path: The file.
        line: Number of the line with the mistake, from 1; 0 if the mistake is in no line.
        text: The mistake and its remedy; must quote nothing of the file, because the file may hold secrets.
    """

    def __init__(self, path: Path, line: int, text: str) -> None:
        super().__init__(f"{path}:{line}: {text}" if line else f"{path}: {text}", ExitCode.USAGE)
        self.path = path
        self.line = line
        self.text = text


def read_access_file(path: Path, bytes_max: int, secret: bool = False) -> bytes:
    """Return a file's content; a symbolic link is followed, because mounted secrets are links.

    Args:
        path: The file.
        bytes_max: A longer file is refused unread.
        secret: The file may be read by its owner and group only.
    Raises:
        AccessFileError: It is missing, unreadable, no regular file, too long, or open to others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not hold the process
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise AccessFileError(path, 0, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        _judge(path, os.fstat(descriptor), bytes_max, secret)
        content = bytearray()
        while len(content) <= bytes_max and (piece := os.read(descriptor, bytes_max + 1 - len(content))):
            content += piece
    except OSError as error:
        raise AccessFileError(path, 0, f"cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
    if len(content) > bytes_max:  # it grew, or lies in a file system that knows no sizes
        raise AccessFileError(path, 0, f"is longer than {bytes_max} bytes")
    return bytes(content)


def read_secret(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file that holds one secret and nothing else.

    Raises:
        AccessFileError: As ``read_access_file``; or anybody could guess it: the zeros that a crash left in the place of
            a content, one letter again and again, comments alone.
    """
    content = read_access_file(path, bytes_max, secret=True)
    lines = content.split(b"\n")
    if content.isascii() and all(not line.strip() or line.startswith(b"#") for line in lines):
        raise AccessFileError(path, 0, "has no secret; `head -c 32 /dev/urandom` makes one")
    if len(set(content)) < DIFFERENT_BYTES_MIN:
        few = f"fewer than {DIFFERENT_BYTES_MIN} different bytes"
        raise AccessFileError(path, 0, f"has {few}, so it can be guessed; `head -c 32 /dev/urandom` makes a secret")
    return content


def _judge(path: Path, status: os.stat_result, bytes_max: int, secret: bool) -> None:
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
    """Yield the numbers, from 1, and texts of a file's lines without their ends; empty lines too.

    Lines end at LF or CRLF. Other characters that some programs end lines at are refused: two readers of one file must
    see the same lines.

    Raises:
        AccessFileError: A byte order mark, a line that is no UTF-8, or one with a control character but tab.
    """
    if content.startswith(BYTE_ORDER_MARK):
        raise AccessFileError(path, 1, "begins with a byte order mark; save the file as UTF-8 without one")
    *lines, rest = content.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in lines]
    if rest:
        lines.append(rest)  # without an end: a CR there is none
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
