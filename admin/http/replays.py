"""Answers to repeated changes: a POST with an ``Idempotency-Key`` that came before gets the first answer again.

Bounded in number and time. A key belongs to its caller, and to one request: with another path or body it is refused.
Sans-IO.
"""

from dataclasses import dataclass

from admin.http.problems import Problem

__all__ = ["Answer", "Replays"]

KEPT_S = 600.0
KEYS_MAX = 1_000
KEY_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was given."""

    status: int
    body: bytes
    location: str = ""


@dataclass(slots=True)
class _Known:
    digest: str
    until: float
    answer: Answer | None = None  # None: the first one is under way


class Replays:
    """Answers by caller and key."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}  # by time, ascending

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, now: float, caller: str, key: str, digest: str) -> Answer | None:
        """Return the answer of before; None: carry the request out, then call ``end``.

        Raises:
            Problem: The key is too long, of another request, or its first request is under way.
        """
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise Problem(400, "bad_key", f"an Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters")
        self._sweep(now)
        known = self._known.get((caller, key))
        if known is None:
            if len(self._known) >= KEYS_MAX:
                del self._known[next(iter(self._known))]
            self._known[caller, key] = _Known(digest, now + KEPT_S)
            return None
        if known.digest != digest:
            raise Problem(422, "key_used", "this Idempotency-Key came with another request", "choose a new key")
        if known.answer is None:
            raise Problem(409, "under_way", "the first request with this Idempotency-Key is under way", "", 1.0)
        return known.answer

    def end(self, caller: str, key: str, answer: Answer | None) -> None:
        """Keep an answer; None: nothing was done, so the key is free again."""
        known = self._known.get((caller, key))
        if known is None:
            return
        if answer is None:
            del self._known[caller, key]
        else:
            known.answer = answer

    def _sweep(self, now: float) -> None:
        for key in [key for key, known in self._known.items() if known.until <= now]:
            del self._known[key]
