"""Memory that a block keeps, as Python's allocator counts it, and blocks in which the collector is off."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Kept", "allocated", "without_collector"]


@dataclass
class Kept:
    """Bytes that were allocated in the block and are still allocated at its end."""

    bytes: int = 0


@contextmanager
def allocated() -> Iterator[Kept]:
    """Count the bytes that the block keeps."""
    kept = Kept()
    tracemalloc.start()
    try:
        yield kept
        kept.bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect, and let the collector rest in the block: a shell of ours tends it by itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
