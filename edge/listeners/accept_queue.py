"""Connections that wait for the rate of their listener: dealt by address in turn, half of it to known addresses.

Sans-IO. A connection waits unread, before its handshake, while the rate is used up. The address whose last connection
was admitted longest ago is next. So an address that connects rarely waits for one connection of each other address at
most, whatever the others send. Known addresses have half of the rate. The others get what these do not use.

Where ``WAITING_MAX`` connections wait, the address with most of them loses its newest one. Where each address has one,
the shell stops accepting, and the backlog of the kernel keeps the newcomers.

Source: new flows before old ones, as in RFC 8290 (FQ-CoDel), section 4.2.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from typing import Generic, TypeVar

from access.limits.buckets import Buckets

__all__ = ["WAITING_MAX", "WAIT_S", "AcceptQueue"]

WAITING_MAX = 256  # connections of one listener
WAIT_S = 5.0  # a connection that waited for longer is closed
ADDRESSES_MAX = 65_536  # whose last admission is remembered

T = TypeVar("T")


class AcceptQueue(Generic[T]):
    """Waiting connections of one listener.

    Invariant: while a connection waits, its class (known addresses or others) has no token left.

    Args:
        rate: Connections a second, above 0.
    """

    def __init__(self, rate: float) -> None:
        self._known: _Turns[T] = _Turns()
        self._others: _Turns[T] = _Turns()
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Deal at another rate from now on; waiting connections keep their place."""
        self._burst = max(1.0, rate / 2)
        self._known_half = Buckets(rate / 2, self._burst)
        self._other_half = Buckets(rate / 2, self._burst)

    def __len__(self) -> int:
        return len(self._known) + len(self._others)

    @property
    def is_full(self) -> bool:
        """Whether no further connection should be accepted: as many addresses wait as may, with one each."""
        return self._known.addresses + self._others.addresses >= WAITING_MAX

    def try_admit(self, now: float, key: str, *, known: bool) -> bool:
        """Return whether a newcomer is admitted at once, and count it; False where another one of its class waits."""
        mine = self._known if known else self._others
        if len(mine) or not self._take(now, known):
            return False
        mine.note_admission(key, now)
        return True

    def add(self, now: float, key: str, item: T, *, known: bool) -> T | None:
        """Let a newcomer wait; return the connection to close for it, which may be the newcomer."""
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
        """Return the connections that waited for too long."""
        return self._known.take_until(now - WAIT_S) + self._others.take_until(now - WAIT_S)

    def take_all(self) -> list[T]:
        """Return all connections: the rate has no limit any more."""
        return self._known.take_until(float("inf")) + self._others.take_until(float("inf"))

    def wait_s(self, now: float) -> float:
        """Return the seconds until ``take_due`` may return something; only while a connection waits."""
        tokens = 1.0 if len(self._known) else self._burst
        return min(self._other_half.wait_s("", now), self._known_half.wait_s("", now, tokens))

    def _take(self, now: float, known: bool) -> bool:
        """Take a token: for a known address of both halves, for another one of its own and of an unused one."""
        if known:
            return self._known_half.take("", now) or (not len(self._others) and self._other_half.take("", now))
        if self._other_half.take("", now):
            return True
        is_unused = not len(self._known) and self._known_half.wait_s("", now, self._burst) <= 0
        return is_unused and self._known_half.take("", now)


class _Turns(Generic[T]):
    """Waiting connections of one class, by address."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[float, T]]] = {}  # key -> (arrival, connection), oldest first
        self._turns: list[tuple[float, int, str]] = []  # heap of (last admission, number, key), one for each key
        self._admitted: OrderedDict[str, float] = OrderedDict()  # key -> last admission
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def addresses(self) -> int:
        """Addresses that wait."""
        return len(self._waiting)

    def note_admission(self, key: str, now: float) -> None:
        """Note that a connection of an address was admitted."""
        self._admitted[key] = now
        self._admitted.move_to_end(key)
        if len(self._admitted) > ADDRESSES_MAX:
            self._admitted.popitem(last=False)

    def add(self, key: str, now: float, item: T) -> None:
        """Let a connection wait."""
        self._count += 1
        if key not in self._waiting:
            self._waiting[key] = deque()
            heapq.heappush(self._turns, (self._admitted.get(key, -1.0), next(self._numbers), key))
        self._waiting[key].append((now, item))

    def pop(self, now: float) -> T:
        """Return the oldest connection of the address whose turn it is."""
        _, _, key = heapq.heappop(self._turns)
        mine = self._waiting[key]
        _, item = mine.popleft()
        self._count -= 1
        self.note_admission(key, now)
        if mine:
            heapq.heappush(self._turns, (now, next(self._numbers), key))
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
        """Return the connections that came until a time."""
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
        self._turns = [turn for turn in self._turns if turn[2] != key]
        heapq.heapify(self._turns)
