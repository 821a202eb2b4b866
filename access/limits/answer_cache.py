"""Cache of an authentication server's responses: bounded, short-lived, and cleared when rights change.

An entry is keyed by an HMAC of the request, so no password or token is in memory. A positive response is cached for its
max-age, at most 300 s, and not at all without one. A negative one is cached for 5 s, so that immediate retries cost the
server nothing. Errors are not cached.

A response whose request was sent before ``clear`` reflects former rights. Its ticket differs, so it is not cached.
"""

import hmac
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

__all__ = ["AnswerCache"]

POSITIVE_MAX_S = 300.0
NEGATIVE_S = 5.0
ANSWERS_MAX = 100_000
SECRET_BYTES_MIN = 16

A = TypeVar("A")


class AnswerCache(Generic[A]):
    """Responses by request.

    Args:
        secret: Random bytes of this process, 16 or more.

    Attributes:
        ticket: Generation number; ``put`` needs the one at the time of the request.
        dropped: Responses evicted early, because the cache was full.
    """

    def __init__(self, secret: bytes, answers_max: int = ANSWERS_MAX) -> None:
        if len(secret) < SECRET_BYTES_MIN or answers_max < 1:
            raise ValueError("the response cache needs a secret of 16 bytes and space for one response")
        self._secret = secret
        self._answers_max = answers_max
        self._answers: dict[bytes, tuple[float, A]] = {}  # oldest first
        self.ticket = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._answers)

    def key(self, parts: Sequence[bytes]) -> bytes:
        """Return the key of a request; ("ab", "c") and ("a", "bc") differ."""
        text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, text, "sha256")

    def get(self, key: bytes, now: float) -> A | None:
        """Return the cached response, None if there is none."""
        found = self._answers.get(key)
        if found is None:
            return None
        if found[0] <= now:
            del self._answers[key]
            return None
        return found[1]

    def put(self, key: bytes, answer: A, now: float, *, positive: bool, max_age_s: float | None, ticket: int) -> bool:
        """Cache a response; return False if that is not allowed.

        Args:
            max_age_s: From the server; values that are not above 0 count as none.
            ticket: The cache's, when the request was sent.
        """
        age_s = max_age_s if max_age_s is not None and max_age_s > 0 and not math.isnan(max_age_s) else 0.0
        age_s = min(age_s, POSITIVE_MAX_S) if positive else NEGATIVE_S
        if ticket != self.ticket or not age_s:
            return False
        self._answers.pop(key, None)
        self._answers[key] = now + age_s, answer
        while len(self._answers) > self._answers_max:
            del self._answers[next(iter(self._answers))]
            self.dropped += 1
        return True

    def clear(self) -> None:
        """Remove all: rights or the server changed."""
        self._answers.clear()
        self.ticket += 1
