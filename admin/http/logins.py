"""Browser logins: one-time codes, sessions behind cookies, and rate limits on failures.

A session stores the digest of the token that opened it; the caller validates that token again for each request.
Sans-IO: secrets and times are arguments. No state is on disk: a restart ends every login.
"""

import hmac
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from access.limits.buckets import Buckets
from access.operators.commands import OperatorRole
from access.operators.tokens import digest_of
from conf.addresses import address_key

__all__ = ["CODE_S", "BrowserSessions", "Login", "is_genuine"]

CODE_S = 600.0  # a code in a terminal is used soon or never
CODES_MAX = 16
FAILED_ADDRESS_S = 5.0  # failed logins per second of one address
FAILED_ALL_S = 50.0
ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class Login:
    """One logged-in browser.

    Attributes:
        digest: SHA-256 of the token that opened it, "" for a code.
        forgery: Value that a change must repeat in the header ``X-CSRF``; pages of other sites cannot read it.
    """

    name: str
    role: OperatorRole
    digest: str
    forgery: str
    opened: float
    seen: float = field(default=0.0)


class BrowserSessions:
    """The browsers of one process.

    Args:
        session_s: Lifetime of a login.
        idle_s: Idle time after which it ends earlier.
        sessions_max: Bound; beyond it, the longest-idle login of the token with most logins is removed.
        make_secret: Returns 256 random bits as text.
    """

    def __init__(self, session_s: float, idle_s: float, sessions_max: int, make_secret: Callable[[], str]) -> None:
        self._session_s = session_s
        self._idle_s = idle_s
        self._sessions_max = sessions_max
        self._make_secret = make_secret
        self._logins: dict[str, Login] = {}  # digest of the cookie -> login; longest idle first
        self._codes: dict[str, float] = {}  # digest of a code -> expiry
        self._failed = Buckets(FAILED_ADDRESS_S, FAILED_ADDRESS_S, ADDRESSES_MAX)
        self._failed_all = Buckets(FAILED_ALL_S, FAILED_ALL_S, 1)

    def __len__(self) -> int:
        return len(self._logins)

    def make_code(self, now: float) -> str:
        """Return a code that logs one browser in as admin, once."""
        code = self._make_secret()
        self._codes[digest_of(code)] = now + CODE_S
        while len(self._codes) > CODES_MAX:
            del self._codes[next(iter(self._codes))]
        return code

    def take_code(self, now: float, code: str) -> bool:
        """Return whether a code is valid, and invalidate it."""
        until = self._codes.pop(digest_of(code), None)
        return until is not None and now < until

    def wait_s(self, now: float, address: str) -> float:
        """Return how long an address must wait before its next login attempt, 0 if not at all."""
        return max(self._failed.wait_s(address_key(address), now), self._failed_all.wait_s("", now))

    def failed(self, now: float, address: str) -> None:
        """Count a failed login."""
        self._failed.take(address_key(address), now)
        self._failed_all.take("", now)

    def open(self, now: float, name: str, role: OperatorRole, digest: str) -> tuple[str, Login]:
        """Return the cookie of a new login, and the login."""
        cookie = self._make_secret()
        while len(self._logins) >= self._sessions_max:
            del self._logins[self._find_victim()]
        login = self._logins[digest_of(cookie)] = Login(name, role, digest, self._make_secret(), now, now)
        return cookie, login

    def _find_victim(self) -> str:
        """Return the longest-idle login of the token with most logins."""
        (most, _), *_ = Counter(login.digest for login in self._logins.values()).most_common(1)
        return next(key for key, login in self._logins.items() if login.digest == most)

    def find(self, now: float, cookie: str) -> Login | None:
        """Return the login of a cookie, None if it is unknown or expired."""
        key = digest_of(cookie)
        login = self._logins.pop(key, None)
        if login is None or now - login.opened >= self._session_s or now - login.seen >= self._idle_s:
            return None
        login.seen = now
        self._logins[key] = login
        return login

    def close(self, cookie: str) -> None:
        """End a login."""
        self._logins.pop(digest_of(cookie), None)

    def close_token(self, digest: str) -> None:
        """End every login of a removed token."""
        for key in [key for key, login in self._logins.items() if login.digest == digest]:
            del self._logins[key]


def is_genuine(login: Login, header: str) -> bool:
    """Return whether a change comes from our own page: other sites cannot send this header's value."""
    return hmac.compare_digest(login.forgery.encode(), header.encode())
