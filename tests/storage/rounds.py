"""Rounds of storage nodes that are timed: processor time of this thread, so that a busy machine says the same."""

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
    """Note the milliseconds of each round, without the collector, which a shell tends by itself."""
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
    """Return the middle one of the ``working`` longest rounds: a busy machine makes single ones longer."""
    return sorted(found)[-working:][working // 2]
