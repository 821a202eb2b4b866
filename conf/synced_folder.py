"""Makes names in a folder survive a power loss: one function for all packages.

fsync of a file does not make its name durable. Creations, renames and deletions need an fsync of their folder.
"""

import os
from pathlib import Path

__all__ = ["sync_folder"]


def sync_folder(folder: Path) -> None:
    """Make creations, renames and deletions in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
