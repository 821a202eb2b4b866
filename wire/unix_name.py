"""A short name for the path of a UNIX socket: the system takes 107 bytes, and data folders may lie deeper."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["unix_name"]


@contextlib.contextmanager
def unix_name(path: Path) -> Iterator[str]:
    """Give a name by which a socket is bound or connected, however long its path.

    Raises:
        OSError: Its folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
