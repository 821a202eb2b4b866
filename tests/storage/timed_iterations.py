"""Timed iterations of storage nodes: processor time of this thread, so that a busy machine gives the same result."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from storage.core import StorageCore
from storage.ready import Event, StorageReady
from tests.memory import without_collector

__all__ = ["middle_round_ms", "timed_rounds"]


@contextmanager
def timed_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Record the milliseconds of each iteration, with the collector disabled as in the shell."""
    found: list[float] = []
    handle = StorageCore.handle

    def timed(self: StorageCore, now: float, events: Sequence[Event], *, goes_on: bool = False) -> StorageReady:
        began = time.thread_time()
        ready = handle(self, now, events, goes_on=goes_on)
        found.append((time.thread_time() - began) * 1e3)
        return ready

    with without_collector(), monkeypatch.context() as patch:
        patch.setattr(StorageCore, "handle", timed)
        yield found


def middle_round_ms(found: list[float], working: int) -> float:
    """Return the median of the ``working`` longest iterations: a busy machine prolongs single ones."""
    return sorted(found)[-working:][working // 2]
