"""Takeovers of one client ID: five per minute, then only after a delay that doubles; 0x9F until then.

Two clients that share a client ID disconnect each other endlessly. While takeovers are refused, the older connection
stays. The caller records a takeover after the newer client was authenticated and compared with the session's owner. So
a stranger's CONNECT does not count. The delay is bounded, so an owner can connect at least once in ``DELAY_MAX_S``.
"""

from hashlib import blake2b

__all__ = ["Takeovers"]

FREE = 5  # within the window
WINDOW_S = 60.0
DELAY_S = 2.0  # before the first additional one; doubled by each: 5 + 4 in the first minute
DELAY_MAX_S = 60.0
KEYS_MAX = 100_000
DIGEST_BYTES = 16

_History = tuple[tuple[float, ...], int]  # times of the newest, at most FREE; number of delayed ones


class Takeovers:
    """Takeovers by client ID.

    Attributes:
        free: Takeovers per minute without a delay; a change applies to later ones.
        dropped: Client IDs evicted from a full table.
    """

    def __init__(self, free: int = FREE, keys_max: int = KEYS_MAX) -> None:
        if free < 1 or keys_max < 1:
            raise ValueError(f"{free} takeovers in a minute, {keys_max} keys: both 1 or more")
        self.free = free
        self._keys_max = keys_max
        self._taken: dict[bytes, _History] = {}  # least recently taken over first
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._taken)

    def refused_s(self, client_id: str, now: float) -> float:
        """Return for how many seconds a takeover is refused, 0.0 if it is not."""
        times, delayed = self._of(_key(client_id), now)
        if not delayed and sum(1 for at in times if now - at < WINDOW_S) < self.free:
            return 0.0
        return max(times[-1] + _delay_s(delayed) - now, 0.0)

    def taken(self, client_id: str, now: float) -> None:
        """Record a takeover, even if it was permitted for another reason."""
        key = _key(client_id)
        times, delayed = self._of(key, now)
        if delayed or sum(1 for at in times if now - at < WINDOW_S) >= self.free:
            delayed += 1
        self._taken.pop(key, None)
        self._taken[key] = (*times, now)[-self.free :], delayed
        while len(self._taken) > self._keys_max:
            del self._taken[next(iter(self._taken))]
            self.dropped += 1

    def _of(self, key: bytes, now: float) -> _History:
        """Return the takeovers of a client ID; delays are reset after a quiet time."""
        times, delayed = self._taken.get(key, ((), 0))
        if times and now - times[-1] >= max(WINDOW_S, 2 * _delay_s(delayed)):
            delayed = 0
        return times, delayed


def _key(client_id: str) -> bytes:
    return blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _delay_s(delayed: int) -> float:
    return min(DELAY_S * 2.0 ** min(delayed, 16), DELAY_MAX_S)
