"""Mosquitto's password file: ``name:hash`` lines, accepted or refused as a whole.

An invalid line refuses the file, because skipping one once created a user without a password (CVE-2018-12551). A file
without users is refused too: it would silently refuse every login.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from access.files import AccessFileError, read_access_file, text_lines
from access.identity.passwords import PasswordRecord, parse_record
from access.identity.principal import name_fault

__all__ = ["parse_password_file", "read_password_file"]

FILE_BYTES_MAX = 64 << 20  # about 300 000 users
USERS_MAX = 300_000


def read_password_file(path: Path) -> Mapping[str, PasswordRecord]:
    """Return the records of a file by user.

    Raises:
        AccessFileError: The file, or one line of it, is invalid.
    """
    return parse_password_file(path, read_access_file(path, FILE_BYTES_MAX, secret=True))


def parse_password_file(path: Path, content: bytes) -> Mapping[str, PasswordRecord]:
    """Return the records of a file's content by user; ``path`` is for errors.

    Raises:
        AccessFileError: A line is invalid, a name repeats, or there are no users.
    """
    users: dict[str, PasswordRecord] = {}
    for number, line in text_lines(path, content):
        if not line or line.startswith("#"):
            continue
        name, colon, record = line.partition(":")
        if not colon:
            raise AccessFileError(path, number, "has no colon; expected name:hash as mosquitto_passwd writes it")
        fault = name_fault(name)
        if fault:
            raise AccessFileError(path, number, f"the user name {fault}")
        if name in users:
            raise AccessFileError(path, number, "names a user for the second time; delete one of the lines")
        try:
            users[name] = parse_record(record)
        except ValueError as error:
            raise AccessFileError(path, number, f"{error}; make the line anew with mosquitto_passwd") from None
        if len(users) > USERS_MAX:
            raise AccessFileError(path, number, f"is one user more than the {USERS_MAX} that a file may have")
    if not users:
        raise AccessFileError(path, 0, "names no user; add one with mosquitto_passwd, or take the file out of settings")
    return MappingProxyType(users)
