"""Daily quotas: bytes that a user sends to this edge on a day of UTC.

Each edge counts separately and restarts from zero: a quota bounds the load of one edge and is not for billing. Only
authenticated users are counted, so strangers cannot fill the table.
"""

__all__ = ["DailyBytes"]

DAY_S = 86_400
USERS_MAX = 200_000


class DailyBytes:
    """Bytes of today, by user.

    Attributes:
        dropped: Users evicted from a full table: their count restarts at zero.
    """

    def __init__(self, users_max: int = USERS_MAX) -> None:
        if users_max < 1:
            raise ValueError("a quota table needs space for at least one user")
        self._users_max = users_max
        self._day = -1
        self._spent: dict[str, int] = {}  # least recently active user first
        self.dropped = 0

    def spend(self, user: str, octets: int, quota: int, now_utc: float) -> bool:
        """Count bytes; return False, and count none, if they exceed the rest of the day's quota."""
        day = int(now_utc // DAY_S)
        if day > self._day:  # setting the clock back does not restore yesterday's quota
            self._day = day
            self._spent.clear()
        spent = self._spent.pop(user, 0)
        fits = octets >= 0 and spent + octets <= quota
        self._spent[user] = spent + octets if fits else spent
        while len(self._spent) > self._users_max:
            del self._spent[next(iter(self._spent))]
            self.dropped += 1
        return fits

    def left(self, user: str, quota: int, now_utc: float) -> int:
        """Return the bytes that a user may still send today."""
        spent = self._spent.get(user, 0) if int(now_utc // DAY_S) <= self._day else 0
        return max(quota - spent, 0)
