"""Cache of a server's answers about who may log in and what: bounded, short, and forgotten when rights change.

An entry is found by an HMAC of the question, so neither a password nor a token stands in memory. A positive answer is
kept for the max-age that it came with, 300 s at most, and not at all without one; a negative one for 5 s, so a client
that tries again at once costs the server nothing. Errors are no answers.

An answer that was asked for before ``clear`` and comes after it is of rights that are gone; its ticket says so, and
it is not kept.
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
    """Answers by question.

    Args:
        secret: Random bytes of this process, 16 or more.
    Attributes:
        ticket: Number that a question takes along and that ``put`` wants back.
        dropped: Answers that left before their time, because the cache was full.
    """

    def __init__(self, secret: bytes, answers_max: int = ANSWERS_MAX) -> None:
        if len(secret) < SECRET_BYTES_MIN or answers_max < 1:
            raise ValueError("a cache of answers needs a secret of 16 bytes and room for one answer")
        self._secret = secret
        self._answers_max = answers_max
        self._answers: dict[bytes, tuple[float, A]] = {}  # the oldest first
        self.ticket = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._answers)

    def key(self, parts: Sequence[bytes]) -> bytes:
        """Return the key of a question; ("ab", "c") and ("a", "bc") are two questions."""
        text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, text, "sha256")

    def get(self, key: bytes, now: float) -> A | None:
        """Return the answer to a question, None if it has to be asked."""
        found = self._answers.get(key)
        if found is None:
            return None
        if found[0] <= now:
            del self._answers[key]
            return None
        return found[1]

    def put(self, key: bytes, answer: A, now: float, *, positive: bool, max_age_s: float | None, ticket: int) -> bool:
        """Keep an answer; return False if it may not be kept.

        Args:
            max_age_s: As the server said; one that is no number above 0 is none.
            ticket: The cache's, when the question was asked.
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
        """Forget all: rights changed, or another server is asked."""
        self._answers.clear()
        self.ticket += 1
