"""Folders and files for their owner only, and the checks at start.

They contain messages, keys and logs. New ones get modes 0700 and 0600 (``keep_private``). Existing ones are checked
without following links, because a user who can replace such a file controls the node.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from conf.errors import ExitCode, UserError

__all__ = [
    "check_file",
    "check_private",
    "check_private_folder",
    "keep_private",
    "make_private_folder",
    "read_secret",
]

OTHERS = stat.S_IRWXG | stat.S_IRWXO
FOLDER_MODE = 0o700
SECRET_BYTES_MAX = 64 * 1024
AUDIT = re.compile(r"audit\.jsonl(\.[0-9]{19})?")  # its group may read it (access/operators/audit_file.py)


def keep_private() -> None:
    """Make all new files of this process private, including those of C libraries."""
    os.umask(OTHERS)


def check_file(path: Path, what: str, bytes_max: int) -> None:
    """Refuse a path that is not a regular file before it is opened: a pipe would block the process.

    Raises:
        UserError: It is a folder, a pipe or a device, or too large.
        OSError: It is missing, or its status cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise UserError(f"{what} {path} is {kind}; name a file")
    if status.st_size > bytes_max:
        raise UserError(f"{what} {path} has {status.st_size} bytes, more than {bytes_max}")


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700.

    Raises:
        OSError: It cannot be created.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def check_private(path: Path, what: str) -> None:
    """Check that only this user has access to a file or folder; a missing one is ignored.

    Args:
        path: Symbolic links are not followed.
        what: Description for the error.

    Raises:
        UserError: It is a link, belongs to another user, or is accessible to group or others.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"{what} {path}: {error.strerror or error}") from None
    if stat.S_ISLNK(status.st_mode):
        raise UserError(f"{what} {path} is a symbolic link: name what it points to")
    if status.st_uid != os.geteuid():
        raise UserError(f"{what} {path} belongs to user {status.st_uid}, not to user {os.geteuid()} who runs this")
    open_to = OTHERS & ~stat.S_IRGRP if AUDIT.fullmatch(path.name) and stat.S_ISREG(status.st_mode) else OTHERS
    if status.st_mode & open_to:
        mode = stat.S_IMODE(status.st_mode)
        mend = f"chmod -R go= {path}" if stat.S_ISDIR(status.st_mode) else f"chmod 600 {path}"
        raise UserError(f"{what} {path} is open to group or others (mode {mode:04o}): {mend}")


def read_secret(where: str, path: Path) -> bytes:
    """Return the content of a file of mode 0600, without the trailing newline.

    Args:
        where: Name of the setting, for errors.
        path: Symbolic links are not followed.

    Raises:
        UserError: It is accessible to others, not a regular file, too long, or cannot be read.
    """
    what = f"{where}: secret"
    check_private(path, what)
    try:
        check_file(path, what, SECRET_BYTES_MAX)  # a pipe would block the process
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{what} {path}: {getattr(error, 'strerror', None) or error}", ExitCode.USAGE) from None
    except UserError as error:
        raise UserError(error.message, ExitCode.USAGE) from None
    if len(secret) > SECRET_BYTES_MAX:  # it grew
        raise UserError(f"{what} {path} has more than {SECRET_BYTES_MAX} bytes", ExitCode.USAGE)
    return secret.rstrip(b"\r\n")


def check_private_folder(path: Path, what: str, inside: str) -> None:
    """Check a folder, its entries, and those of its subfolders.

    Args:
        path: The folder; a missing one is ignored.
        what: Description of the folder, for errors.
        inside: Description of the entries.

    Raises:
        UserError: As ``check_private``, for the first violation.
    """
    check_private(path, what)
    for entry in _entries(path):
        check_private(entry, inside)
        if entry.is_dir():
            for deeper in _entries(entry):
                check_private(deeper, inside)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"folder {folder}: {error.strerror or error}") from None
