"""Memory that a block keeps, as Python's allocator counts it: the same on a busy machine."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Kept", "allocated"]


@dataclass
class Kept:
    """Bytes that were allocated in the block and still stand at its end."""

    bytes: int = 0


@contextmanager
def allocated() -> Iterator[Kept]:
    """Count what the block keeps."""
    kept = Kept()
    tracemalloc.start()
    try:
        yield kept
        kept.bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
