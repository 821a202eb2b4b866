"""Keys of devices and nodes: 32 bytes each, as 64 hexadecimal digits in files of mode 0600."""

from pathlib import Path

from access.files import AccessFileError, read_access_file, text_lines
from gateways.datagrams.sealed import NAME_BYTES_MAX

__all__ = ["read_key", "read_keys"]

FILE_BYTES_MAX = 64 * 1024 * 1024
KEY_BYTES = 32


def read_keys(path: Path) -> dict[str, bytes]:
    """Return the keys of a file with ``name key`` lines; empty lines and lines that begin with # are skipped.

    Raises:
      AccessFileError: A line is invalid, a name is repeated, or there is no key: no key is used.
    """
    keys: dict[str, bytes] = {}
    for number, text in text_lines(path, read_access_file(path, FILE_BYTES_MAX, secret=True)):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not 0 < len(words[0].encode()) <= NAME_BYTES_MAX:
            raise AccessFileError(path, number, f"is not `name key` with a name of at most {NAME_BYTES_MAX} bytes")
        if words[0] in keys:
            raise AccessFileError(path, number, "repeats a name")
        keys[words[0]] = _key(path, number, words[1])
    if not keys:
        raise AccessFileError(path, 0, "has no key: no device could connect")
    return keys


def read_key(path: Path) -> bytes:
    """Return the one key of a file.

    Raises:
      AccessFileError: The file does not contain exactly one key.
    """
    words = [text.strip() for _, text in text_lines(path, read_access_file(path, FILE_BYTES_MAX, secret=True))]
    words = [word for word in words if word]
    if len(words) != 1:
        raise AccessFileError(path, 0, "has not exactly one key")
    return _key(path, 1, words[0])


def _key(path: Path, number: int, text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise AccessFileError(path, number, f"has a key that is not {2 * KEY_BYTES} hexadecimal digits")
    return key
