"""Responses to repeated changes: a POST with a known ``Idempotency-Key`` gets the first response again.

A key is stored for its whole lifetime, because a repeat after its removal would run twice; a caller with too many keys
gets no new one. A key belongs to one caller and one request: with another path or body it is refused. Sans-IO.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from admin.http.problems import Problem

__all__ = ["Replays", "StoredResponse"]

KEPT_S = 600.0
KEYS_MAX = 16_384
KEYS_CALLER_MAX = 4_096
KEY_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to the first request."""

    status: int
    body: bytes
    location: str = ""


@dataclass(slots=True)
class _Known:
    digest: str
    until: float
    answer: StoredResponse | None = None  # None: the first request is in progress


class Replays:
    """Responses by caller and key."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}  # by time, ascending
        self._counts: Counter[str] = Counter()  # of those, by caller

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, now: float, caller: str, key: str, digest: str) -> StoredResponse | None:
        """Return the stored response; None: run the request, then call ``end``.

        Raises:
            Problem: The key is too long, belongs to another request, is one too many, or its first request is in
                progress.
        """
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise Problem(400, "bad_key", f"an Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters")
        self._sweep(now)
        known = self._known.get((caller, key))
        if known is None:
            if self._counts[caller] >= KEYS_CALLER_MAX or len(self._known) >= KEYS_MAX:
                wait_s = next(iter(self._known.values())).until - now
                raise Problem(429, "too_many_keys", f"too many Idempotency-Keys within {KEPT_S:g} s", "", wait_s)
            self._known[caller, key] = _Known(digest, now + KEPT_S)
            self._counts[caller] += 1
            return None
        if known.digest != digest:
            raise Problem(422, "key_used", "this Idempotency-Key belongs to another request", "choose a new key")
        if known.answer is None:
            raise Problem(409, "under_way", "the first request with this Idempotency-Key is in progress", "", 1.0)
        return known.answer

    def end(self, caller: str, key: str, answer: StoredResponse | None) -> None:
        """Store a response; None: the request had no effect, so the key is free again."""
        known = self._known.get((caller, key))
        if known is None:
            return
        if answer is None:
            self._forget((caller, key))
        else:
            known.answer = answer

    def _sweep(self, now: float) -> None:
        for key in list(takewhile(lambda key: self._known[key].until <= now, self._known)):
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        del self._known[key]
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]
