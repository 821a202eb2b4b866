"""Authenticates callers by bearer token, browser cookie or operator certificate, and returns their role.

Each request is authenticated separately. The routers' leader validates a token, so a revoked one, and any cookie that
it opened, has no effect from that step on. If no router answers, both are refused. A response does not reveal whether a
token expired, was revoked or never existed. A browser sends cookies and certificates with requests of any page.
Therefore a change, logins included, is accepted only from a page of this service or from a program, which is not a
browser. A change by cookie also needs a header that other sites' pages cannot know.
"""

from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple, Protocol

from access.operators.commands import ROLES, OperatorRole
from access.operators.tokens import digest_of
from admin.http.logins import BrowserSessions, Login, is_genuine
from admin.http.problems import Problem, of_reply
from conf.errors import ExitCode

__all__ = ["PROGRAM", "SAFE_METHODS", "Caller", "Callers", "Request", "cookie_name", "is_foreign", "token_answer"]

COOKIE = "stratamq"
TOKEN_CHARACTERS_MAX = 128
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")  # of Sec-Fetch-Site; "none": not started by a page
PROGRAM = "make it on this service's page, or with a program"


class Caller(NamedTuple):
    """The caller of a request."""

    name: str
    role: OperatorRole
    way: str  # "token", "browser" or "certificate"
    forgery: str = ""  # for a browser: required value of X-CSRF

    @property
    def key(self) -> str:
        """The key that limits count by: a token and its browsers share one."""
        return f"{'certificate' if self.way == 'certificate' else 'token'}/{self.name}"


class Request(NamedTuple):
    """Parts of a request that identify the caller."""

    method: str
    address: str
    authorization: str
    cookies: str
    forgery: str
    certificate: Caller | None


class CheckToken(Protocol):
    """Validates a token at the routers' leader: returns its record, or None; raises Problem if no router answers."""

    async def __call__(self, digest: str) -> dict[str, Any] | None: ...


class Callers:
    """Authentication of callers.

    Args:
        logins: Browsers.
        check_token: Returns the token of a SHA-256.
        now: Seconds, monotonic.
        utc: Seconds since the epoch.
        is_https: Whether cookies are sent over TLS only.
    """

    def __init__(
        self,
        logins: BrowserSessions,
        check_token: CheckToken,
        now: Callable[[], float],
        utc: Callable[[], float],
        is_https: bool,
    ) -> None:
        self._logins = logins
        self._check_token = check_token
        self._now, self._utc = now, utc
        self.cookie = cookie_name(is_https)

    async def find(self, request: Request) -> Caller:
        """Return the caller.

        Raises:
            Problem: 401: unknown caller; 403: a change by cookie without its header; 429: too many failed logins; 503:
                no router answers.
        """
        if request.authorization:
            scheme, _, token = request.authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise _unknown()
            return await self.by_token(request.address, token.strip())
        cookie = _cookie(request.cookies, self.cookie)
        if cookie:
            return await self._by_cookie(request, cookie)
        if request.certificate is not None:
            return request.certificate
        raise _unknown()

    async def by_token(self, address: str, token: str) -> Caller:
        """Return the caller of a token."""
        record = await self._record(digest_of(token)) if 0 < len(token) <= TOKEN_CHARACTERS_MAX else None
        if record is None:
            raise self._failure(address)
        return Caller(str(record["token"]), ROLES[str(record["role"])], "token")

    async def log_in(self, address: str, token: str, code: str) -> tuple[str, Login]:
        """Open a login for a token or a one-time code; return the cookie and the login."""
        now = self._now()
        if token:
            caller = await self.by_token(address, token)
            return self._logins.open(now, caller.name, caller.role, digest_of(token))
        if not code or not self._logins.take_code(now, code):
            raise self._failure(address)
        return self._logins.open(now, "one-time code", OperatorRole.ADMIN, "")

    def log_out(self, cookies: str) -> None:
        """End a browser's login."""
        self._logins.close(_cookie(cookies, self.cookie))

    async def _by_cookie(self, request: Request, cookie: str) -> Caller:
        login = self._logins.find(self._now(), cookie)
        if login is None:
            raise _unknown()
        if login.digest and await self._record(login.digest) is None:
            self._logins.close_token(login.digest)
            raise _unknown()
        if request.method not in SAFE_METHODS and not is_genuine(login, request.forgery):
            raise Problem(403, "forged", "a change from a browser needs the header X-CSRF of /api/v1/me")
        return Caller(login.name, login.role, "browser", login.forgery)

    async def _record(self, digest: str) -> dict[str, Any] | None:
        record = await self._check_token(digest)
        if record is None or (record["until_utc"] and record["until_utc"] <= self._utc()):
            return None
        return record

    def _failure(self, address: str) -> Problem:
        """Count a failed login, and return its response.

        Tokens and codes are 256 random bits and cannot be guessed. They are always checked, and only failures are
        delayed: wrong tokens of an address do not block its valid ones.
        """
        wait_s = self._logins.wait_s(self._now(), address)
        self._logins.failed(self._now(), address)
        if wait_s > 0:
            return Problem(429, "too_many_logins", "too many failed logins", "wait, then try again", wait_s)
        return _unknown()


def is_foreign(origin: str, site: str, host: str) -> bool:
    """Return whether a request comes from a page of another site, by browser headers; programs send none.

    Args:
        origin: The header Origin.
        site: The header Sec-Fetch-Site, which browsers send over TLS.
        host: The header Host.
    """
    if site:
        return site.lower() not in OWN_SITES
    return bool(origin) and origin.lower().partition("://")[2] != host.lower()


def cookie_name(is_https: bool) -> str:
    """Return the cookie's name; the prefix restricts it to this host over TLS."""
    return f"__Host-{COOKIE}" if is_https else COOKIE


def token_answer(ok: bool, result: Any, error: str, exit_code: int) -> dict[str, Any] | None:
    """Return the record in a reply to ``token check``, None if the token does not exist.

    Raises:
        Problem: No router answers.
    """
    if ok and isinstance(result, dict):
        return result
    if exit_code == ExitCode.FAILED:
        return None
    raise of_reply(error, ExitCode.NOT_READY, changes=False)


def _unknown() -> Problem:
    return Problem(
        401, "unknown", "this needs a token, a login or a certificate", "create a token with `stratamq token create`"
    )


def _cookie(cookies: str, name: str) -> str:
    try:
        found = SimpleCookie(cookies).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
