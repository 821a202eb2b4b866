"""Callers: a bearer token, a browser's cookie, or an operator's certificate, and with which role.

Each request is judged anew. A token is asked for at the routers' leader, so one that was revoked opens nothing from
that step on, and neither does a cookie that it opened; where no router answers, nobody gets in by either. No answer
tells whether a token ended, was revoked or never was. A browser sends a cookie and a certificate with the requests of
any page: the application accepts a change, logins included, only from a page of this service or from a program, which
is no browser. A change by cookie also needs a header that the page of another site cannot know.
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
OWN_SITES = ("same-origin", "none")  # of Sec-Fetch-Site: "none" is no page at all
PROGRAM = "make it on this service's page, or with a program"


class Caller(NamedTuple):
    """The one that asks."""

    name: str
    role: OperatorRole
    way: str  # "token", "browser" or "certificate"
    forgery: str = ""  # of a browser: what X-CSRF has to be

    @property
    def key(self) -> str:
        """The caller that its requests count for: a token and the browsers that it opened are one."""
        return f"{'certificate' if self.way == 'certificate' else 'token'}/{self.name}"


class Request(NamedTuple):
    """Parts of a request that say who asks."""

    method: str
    address: str
    authorization: str
    cookies: str
    forgery: str
    certificate: Caller | None


class CheckToken(Protocol):
    """Asks the routers' leader for a token: its record, None for none; raises Problem where nobody can be asked."""

    async def __call__(self, digest: str) -> dict[str, Any] | None: ...


class Callers:
    """The doors of the service.

    Args:
        logins: Browsers.
        check_token: Asks which token a SHA-256 is of.
        now: Seconds, monotonic.
        utc: Seconds since the epoch.
        is_https: Whether cookies are sent over TLS alone.
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
        """Return who asks.

        Raises:
            Problem: 401: nobody that is known; 403: a change by cookie without its header; 429: too many
                failed logins; 503: no router can be asked.
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
        """Return whom a token stands for."""
        record = await self._record(digest_of(token)) if 0 < len(token) <= TOKEN_CHARACTERS_MAX else None
        if record is None:
            raise self._failure(address)
        return Caller(str(record["token"]), ROLES[str(record["role"])], "token")

    async def log_in(self, address: str, token: str, code: str) -> tuple[str, Login]:
        """Return the cookie of a browser that shows a token or a one-time code, and its login."""
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
            raise Problem(403, "forged", "a change from a browser wants the header X-CSRF of /api/v1/me")
        return Caller(login.name, login.role, "browser", login.forgery)

    async def _record(self, digest: str) -> dict[str, Any] | None:
        record = await self._check_token(digest)
        if record is None or (record["until_utc"] and record["until_utc"] <= self._utc()):
            return None
        return record

    def _failure(self, address: str) -> Problem:
        """Count a login that failed, and return its answer.

        A token and a code are 256 random bits, which nobody guesses: they are judged whatever failed before, and only
        failures are told to wait. So wrong tokens of an address keep no right one of it out.
        """
        wait_s = self._logins.wait_s(self._now(), address)
        self._logins.failed(self._now(), address)
        if wait_s > 0:
            return Problem(429, "too_many_logins", "too many failed logins", "wait, then try again", wait_s)
        return _unknown()


def is_foreign(origin: str, site: str, host: str) -> bool:
    """Return whether a browser says that a page of another site made a request; no browser says nothing.

    Args:
        origin: The header Origin.
        site: The header Sec-Fetch-Site, which browsers send over TLS.
        host: The header Host.
    """
    if site:
        return site.lower() not in OWN_SITES
    return bool(origin) and origin.lower().partition("://")[2] != host.lower()


def cookie_name(is_https: bool) -> str:
    """Return the cookie's name; with the prefix a browser takes it from this host over TLS alone."""
    return f"__Host-{COOKIE}" if is_https else COOKIE


def token_answer(ok: bool, result: Any, error: str, exit_code: int) -> dict[str, Any] | None:
    """Return the record in a reply to ``token check``, None where there is no such token.

    Raises:
        Problem: No router can say.
    """
    if ok and isinstance(result, dict):
        return result
    if exit_code == ExitCode.FAILED:
        return None
    raise of_reply(error, ExitCode.NOT_READY, changes=False)


def _unknown() -> Problem:
    return Problem(401, "unknown", "this wants a token, a login or a certificate", "`stratamq token create` makes one")


def _cookie(cookies: str, name: str) -> str:
    try:
        found = SimpleCookie(cookies).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
