"""A short name for the path of a UNIX socket: the system limit is 107 bytes, and data folders may have longer paths."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["unix_name"]


@contextlib.contextmanager
def unix_name(path: Path) -> Iterator[str]:
    """Return a name under which a socket can be bound or connected, for paths of any length.

    Raises:
        OSError: The folder does not exist.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
