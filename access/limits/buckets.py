"""Token buckets by key: rate limits of an address, a user or a listener.

A bucket holds ``burst`` tokens and gains ``rate`` per second. It is stored as one number, the time at which it is full
again. So a table of 100 000 keys is small, and a key outside the table has a full bucket. Source: the generic cell rate
algorithm, ITU-T I.371.

A full table evicts the least recently used key. An attacker with more addresses than the table holds starts each with a
full bucket; the limits of the listener, which have one key, then apply.
"""

import math
from collections.abc import Hashable

from conf.addresses import TrustedNetworks, address_key

__all__ = ["KEYS_MAX", "AddressBuckets", "Buckets"]

KEYS_MAX = 100_000  # about 20 MB
SWEPT_PER_KEY = 2  # full buckets removed per added key


class Buckets:
    """Equal token buckets, one for each key.

    Args:
        rate: Tokens per second, above 0; without a limit, use no bucket.
        burst: Tokens of a full bucket, 1 or more.
        keys_max: Bound of the table.

    Attributes:
        dropped: Keys evicted before their bucket was full again.

    Raises:
        ValueError: A rate or a burst that would admit no client, or all.
    """

    def __init__(self, rate: float, burst: float, keys_max: int = KEYS_MAX) -> None:
        if not (0 < rate < math.inf and 1 <= burst < math.inf and keys_max >= 1):
            raise ValueError(f"rate {rate}, burst {burst}, {keys_max} keys: a bucket needs finite ones above 0")
        self._token_s = 1.0 / rate
        self._full_s = burst / rate
        self._keys_max = keys_max
        self._full_at: dict[Hashable, float] = {}  # least recently used first
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: Hashable, now: float, tokens: float = 1.0) -> bool:
        """Take tokens if available; otherwise return False, and take none.

        A refused key stays in the table as recently used.
        """
        full_at = max(self._full_at.pop(key, now), now)
        after = full_at + tokens * self._token_s
        taken = after - now <= self._full_s * (1 + 1e-12)
        self._put(key, after if taken else full_at, now)
        return taken

    def book(self, key: Hashable, now: float, most_s: float) -> float:
        """Take a token even in advance; return the seconds until it is available, at most ``most_s``.

        Beyond that no token is booked, so an endless user does not make others wait longer.
        """
        full_at = max(self._full_at.pop(key, now), now) + self._token_s
        full_at = min(full_at, now + self._full_s + most_s)
        self._put(key, full_at, now)
        return max(full_at - now - self._full_s, 0.0)

    def wait_s(self, key: Hashable, now: float, tokens: float = 1.0) -> float:
        """Return the seconds until ``take`` would succeed, without taking."""
        return max(max(self._full_at.get(key, now), now) + tokens * self._token_s - now - self._full_s, 0.0)

    def forget(self, key: Hashable) -> None:
        """Remove the bucket of a closed connection or session."""
        self._full_at.pop(key, None)

    def _put(self, key: Hashable, full_at: float, now: float) -> None:
        self._full_at[key] = full_at
        for _ in range(SWEPT_PER_KEY):
            oldest = next(iter(self._full_at))
            if oldest == key or self._full_at[oldest] > now:
                break
            del self._full_at[oldest]
        while len(self._full_at) > self._keys_max:
            del self._full_at[next(iter(self._full_at))]
            self.dropped += 1


class AddressBuckets:
    """Token buckets of addresses: an IPv4 address, an IPv6 /64. Trusted proxies are never counted."""

    def __init__(self, buckets: Buckets, trusted: TrustedNetworks) -> None:
        self._buckets = buckets
        self._trusted = trusted

    @property
    def dropped(self) -> int:
        """Number of addresses evicted before their bucket was full again."""
        return self._buckets.dropped

    def take(self, address: str, now: float, tokens: float = 1.0) -> bool:
        """Take tokens of an address if available."""
        return address in self._trusted or self._buckets.take(address_key(address), now, tokens)
