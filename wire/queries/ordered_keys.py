"""Keys of a table in order, for walks that go on behind a key: copied now and then, not at every look."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["OrderedKeys"]

K = TypeVar("K", int, str, bytes)
KEPT_S = 2.0  # a copy lives as long; walks see keys that came later once they are at its end


class OrderedKeys(Generic[K]):
    """The keys of one table.

    Args:
        keys: Returns those that there are; new ones are larger than all before, or are seen by the next copy.
    """

    def __init__(self, keys: Callable[[], Iterable[K]]) -> None:
        self._keys: Callable[[], Iterable[K]] = keys
        self._copy: list[K] = []
        self._copied_at = float("-inf")

    def behind(self, key: K | None, now: float) -> Iterator[K]:
        """Yield the keys above one, in order, or all; some of them may be gone from the table by now."""
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
        """Keep no copy."""
        self._copy = []
        self._copied_at = float("-inf")
