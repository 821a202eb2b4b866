"""Takeovers of one client ID: five in a minute, then each only after a delay that doubles, and 0x9F until then.

Two clients that share a client ID throw each other out for ever. The older connection stays while takeovers are
refused. The caller notes a takeover where a connection was ended by one, so the chain has let the newer one in and the
session's owner was compared: a stranger's CONNECT counts nothing, and only somebody who may have the session can use
its takeovers up. The delay is bounded, so an owner gets in at least once in ``DELAY_MAX_S``.
"""

from hashlib import blake2b

__all__ = ["Takeovers"]

FREE = 5  # within the window
WINDOW_S = 60.0
DELAY_S = 2.0  # before the first that is more; doubled by each: 5 + 4 in the first minute
DELAY_MAX_S = 60.0
KEYS_MAX = 100_000
DIGEST_BYTES = 16

_Taken = tuple[tuple[float, ...], int]  # times of the newest, at most FREE; how many came after a delay


class Takeovers:
    """Takeovers by client ID.

    Attributes:
        free: Takeovers in a minute that nothing delays; another number holds for what comes.
        dropped: Client IDs that left the table because it was full.
    """

    def __init__(self, free: int = FREE, keys_max: int = KEYS_MAX) -> None:
        if free < 1 or keys_max < 1:
            raise ValueError(f"{free} takeovers in a minute, {keys_max} keys: both 1 or more")
        self.free = free
        self._keys_max = keys_max
        self._taken: dict[bytes, _Taken] = {}  # the client ID that was taken over longest ago first
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._taken)

    def refused_s(self, client_id: str, now: float) -> float:
        """Return for how many seconds a takeover is refused, 0.0 if it is not; changes nothing."""
        times, delayed = self._of(_key(client_id), now)
        if not delayed and sum(1 for at in times if now - at < WINDOW_S) < self.free:
            return 0.0
        return max(times[-1] + _delay_s(delayed) - now, 0.0)

    def taken(self, client_id: str, now: float) -> None:
        """Note that a connection was taken over, for whatever reason it was not refused."""
        key = _key(client_id)
        times, delayed = self._of(key, now)
        if delayed or sum(1 for at in times if now - at < WINDOW_S) >= self.free:
            delayed += 1
        self._taken.pop(key, None)
        self._taken[key] = (*times, now)[-self.free :], delayed
        while len(self._taken) > self._keys_max:
            del self._taken[next(iter(self._taken))]
            self.dropped += 1

    def _of(self, key: bytes, now: float) -> _Taken:
        """Return the takeovers of a client ID; delays are forgotten when it was quiet for long enough."""
        times, delayed = self._taken.get(key, ((), 0))
        if times and now - times[-1] >= max(WINDOW_S, 2 * _delay_s(delayed)):
            delayed = 0
        return times, delayed


def _key(client_id: str) -> bytes:
    return blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _delay_s(delayed: int) -> float:
    return min(DELAY_S * 2.0 ** min(delayed, 16), DELAY_MAX_S)
