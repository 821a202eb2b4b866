"""Queue of connections beyond the rate of their listener: fair by address, half of the rate for known addresses.

Sans-IO. A connection is queued unread, before its handshake, while the rate is used up. The address with the oldest
last admission is next: a rarely connecting address waits for at most one connection of each other address. Known
addresses have half of the rate. The others also get the unused part of that half.

A queue beyond ``WAITING_MAX`` connections drops the newest one of the address with most. If each address has only one,
the shell stops accepting, and new connections stay in the kernel's backlog.
Source: new flows before old ones, as in RFC 8290 (FQ-CoDel), section 4.2.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from typing import Generic, TypeVar

from access.limits.buckets import Buckets

__all__ = ["WAITING_MAX", "WAIT_S", "AcceptQueue"]

WAITING_MAX = 256  # connections of one listener
WAIT_S = 5.0  # a connection that was queued longer is closed
ADDRESSES_MAX = 65_536  # addresses with a stored last admission

T = TypeVar("T")


class AcceptQueue(Generic[T]):
    """Queued connections of one listener.

    Invariant: while a connection is queued, its class (known addresses or others) has no token left.

    Args:
        rate: Connections a second, above 0.
    """

    def __init__(self, rate: float) -> None:
        self._known: _AddressQueues[T] = _AddressQueues()
        self._others: _AddressQueues[T] = _AddressQueues()
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Change the rate; queued connections keep their position."""
        self._burst = max(1.0, rate / 2)
        self._known_half = Buckets(rate / 2, self._burst)
        self._other_half = Buckets(rate / 2, self._burst)

    def __len__(self) -> int:
        return len(self._known) + len(self._others)

    @property
    def is_full(self) -> bool:
        """Whether the listener should stop accepting: as many addresses as allowed have one connection each."""
        return self._known.addresses + self._others.addresses >= WAITING_MAX

    def try_admit(self, now: float, key: str, *, known: bool) -> bool:
        """Return whether a new connection is admitted at once, and count it; False while its class is queued."""
        mine = self._known if known else self._others
        if len(mine) or not self._take(now, known):
            return False
        mine.note_admission(key, now)
        return True

    def add(self, now: float, key: str, item: T, *, known: bool) -> T | None:
        """Queue a connection; return the connection to close for it, which may be the same."""
        mine = self._known if known else self._others
        mine.add(key, now, item)
        return max((self._others, self._known), key=len).pop_newest_of_most(key) if len(self) > WAITING_MAX else None

    def take_due(self, now: float) -> list[T]:
        """Return the connections that are admitted now, in order."""
        due: list[T] = []
        for known, mine in ((True, self._known), (False, self._others)):
            while len(mine) and self._take(now, known):
                due.append(mine.pop(now))
        return due

    def take_late(self, now: float) -> list[T]:
        """Return the connections that were queued too long."""
        return self._known.take_until(now - WAIT_S) + self._others.take_until(now - WAIT_S)

    def take_all(self) -> list[T]:
        """Return all connections: the rate limit was removed."""
        return self._known.take_until(float("inf")) + self._others.take_until(float("inf"))

    def wait_s(self, now: float) -> float:
        """Return the seconds until ``take_due`` may return a connection; only while one is queued."""
        tokens = 1.0 if len(self._known) else self._burst
        return min(self._other_half.wait_s("", now), self._known_half.wait_s("", now, tokens))

    def _take(self, now: float, known: bool) -> bool:
        """Take a token: for a known address from both halves, for another one from its own half or an unused one."""
        if known:
            return self._known_half.take("", now) or (not len(self._others) and self._other_half.take("", now))
        if self._other_half.take("", now):
            return True
        is_unused = not len(self._known) and self._known_half.wait_s("", now, self._burst) <= 0
        return is_unused and self._known_half.take("", now)


class _AddressQueues(Generic[T]):
    """Queued connections of one class, by address."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[float, T]]] = {}  # key -> (arrival, connection), oldest first
        self._order: list[tuple[float, int, str]] = []  # heap of (last admission, number, key), one for each key
        self._admitted: OrderedDict[str, float] = OrderedDict()  # key -> last admission
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def addresses(self) -> int:
        """Number of addresses with queued connections."""
        return len(self._waiting)

    def note_admission(self, key: str, now: float) -> None:
        """Store the time of an address's last admission."""
        self._admitted[key] = now
        self._admitted.move_to_end(key)
        if len(self._admitted) > ADDRESSES_MAX:
            self._admitted.popitem(last=False)

    def add(self, key: str, now: float, item: T) -> None:
        """Queue a connection."""
        self._count += 1
        if key not in self._waiting:
            self._waiting[key] = deque()
            heapq.heappush(self._order, (self._admitted.get(key, -1.0), next(self._numbers), key))
        self._waiting[key].append((now, item))

    def pop(self, now: float) -> T:
        """Return the oldest connection of the next address."""
        _, _, key = heapq.heappop(self._order)
        mine = self._waiting[key]
        _, item = mine.popleft()
        self._count -= 1
        self.note_admission(key, now)
        if mine:
            heapq.heappush(self._order, (now, next(self._numbers), key))
        else:
            del self._waiting[key]
        return item

    def pop_newest_of_most(self, key: str) -> T:
        """Return the newest connection of the address with most; ``key`` loses a tie."""
        most = max(self._waiting, key=lambda each: (len(self._waiting[each]), each == key))
        mine = self._waiting[most]
        self._count -= 1
        _, item = mine.pop()
        if not mine:
            self._remove(most)
        return item

    def take_until(self, until: float) -> list[T]:
        """Return the connections queued until a time."""
        late: list[T] = []
        for key in [key for key, mine in self._waiting.items() if mine[0][0] <= until]:
            mine = self._waiting[key]
            while mine and mine[0][0] <= until:
                late.append(mine.popleft()[1])
            if not mine:
                self._remove(key)
        self._count -= len(late)
        return late

    def _remove(self, key: str) -> None:
        del self._waiting[key]
        self._order = [turn for turn in self._order if turn[2] != key]
        heapq.heapify(self._order)
