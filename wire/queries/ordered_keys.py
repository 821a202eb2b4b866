"""Sorted keys of a table, for walks that resume after a key; copied at intervals, not for every query."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["OrderedKeys"]

K = TypeVar("K", int, str, bytes)
KEPT_S = 2.0  # lifetime of a copy; walks see later keys after its end


class OrderedKeys(Generic[K]):
    """The keys of one table.

    Args:
        keys: Returns the current keys; new ones are larger than all before, or wait for the next copy.
    """

    def __init__(self, keys: Callable[[], Iterable[K]]) -> None:
        self._keys: Callable[[], Iterable[K]] = keys
        self._copy: list[K] = []
        self._copied_at = float("-inf")

    def behind(self, key: K | None, now: float) -> Iterator[K]:
        """Yield the keys above one, or all, in order; some may have been removed from the table."""
        if key is None or now - self._copied_at > KEPT_S or now < self._copied_at:
            self._renew(now)
        at = 0 if key is None else bisect_right(self._copy, key)
        if at >= len(self._copy) and self._copied_at < now:
            self._renew(now)
            at = 0 if key is None else bisect_right(self._copy, key)
        copy = self._copy
        for index in range(at, len(copy)):
            yield copy[index]

    def _renew(self, now: float) -> None:
        self._copy = sorted(self._keys())
        self._copied_at = now

    def forget(self) -> None:
        """Drop the copy."""
        self._copy = []
        self._copied_at = float("-inf")
