"""Browser logins: codes work once, logins end by time and with their token, and failures are rate limited."""

import hashlib
from collections import Counter
from itertools import count
from typing import Any

import pytest

from access.operators.commands import OperatorRole
from admin.http.callers import Callers, Request, is_foreign
from admin.http.logins import CODE_S, BrowserSessions, is_genuine
from admin.http.problems import Problem

GOOD = hashlib.sha256(b"smq_good").hexdigest()
RECORD: dict[str, Any] = {"token": "ci", "role": "operator", "until_utc": None}


def logins(sessions_max: int = 10) -> BrowserSessions:
    numbers = count()
    return BrowserSessions(100.0, 10.0, sessions_max, lambda: f"secret-{next(numbers)}")


def test_a_code_logs_one_browser_in() -> None:
    """It is invalid after its use, and after ten minutes."""
    known = logins()
    code = known.make_code(0.0)
    assert not known.take_code(0.0, "other") and known.take_code(1.0, code) and not known.take_code(1.0, code)
    late = known.make_code(0.0)
    assert not known.take_code(CODE_S, late)


def test_login_ends_by_idle_time_age_count_and_token() -> None:
    known = logins(sessions_max=2)
    cookies = [known.open(0.0, "ann", OperatorRole.ADMIN, f"digest-{number}")[0] for number in range(3)]
    assert known.find(0.0, cookies[0]) is None and len(known) == 2  # the most idle one was removed
    for now in range(5, 100, 5):
        assert known.find(float(now), cookies[1]) is not None
    assert known.find(100.0, cookies[1]) is None
    assert known.find(10.0, cookies[2]) is None
    cookie, login = known.open(0.0, "ann", OperatorRole.ADMIN, "digest")
    assert is_genuine(login, login.forgery) and not is_genuine(login, "") and not is_genuine(login, "x")
    known.close_token("digest")
    assert known.find(0.0, cookie) is None


def test_logins_of_one_token_evict_none_of_another() -> None:
    """At the bound the token with most logins loses its most idle one."""
    known = logins(sessions_max=10)
    admin, _ = known.open(0.0, "root", OperatorRole.ADMIN, "digest of root")
    viewers = [known.open(0.0, "guest", OperatorRole.VIEWER, "digest of guest")[0] for _ in range(1_100)]
    assert len(known) == 10 and known.find(1.0, admin) is not None
    assert [known.find(1.0, cookie) is not None for cookie in viewers[-10:]] == [False] + [True] * 9


async def test_wrong_tokens_do_not_delay_valid_one() -> None:
    """Failures of an address, and of all, get 429; a valid token is still accepted."""

    async def check(digest: str) -> dict[str, Any] | None:
        return RECORD if digest == GOOD else None

    callers = Callers(logins(), check, lambda: 0.0, lambda: 0.0, is_https=False)
    answers: Counter[int] = Counter()
    for _ in range(100):
        with pytest.raises(Problem) as caught:
            await callers.find(asking(bearer="smq_bad"))
        answers[caught.value.status] += 1
        assert (await callers.find(asking(bearer="smq_good"))).name == "ci"
        assert (await callers.log_in("192.0.2.1", "smq_good", ""))[1].name == "ci"
    assert answers == {401: 5, 429: 95}


def asking(method: str = "GET", bearer: str = "", cookie: str = "", forgery: str = "") -> Request:
    authorization = f"Bearer {bearer}" if bearer else ""
    return Request(method, "192.0.2.1", authorization, f"stratamq={cookie}" if cookie else "", forgery, None)


async def test_expired_or_revoked_token_is_refused() -> None:
    """Both look like an unknown token, and a cookie ends with its token."""
    tokens = {"good": RECORD}
    utc = [0.0]

    async def check(digest: str) -> dict[str, Any] | None:
        return tokens.get("good") if digest == GOOD else None

    callers = Callers(logins(), check, lambda: 0.0, lambda: utc[0], is_https=False)
    assert (await callers.find(asking(bearer="smq_good"))).role is OperatorRole.OPERATOR
    cookie, login = await callers.log_in("192.0.2.1", "smq_good", "")
    assert (await callers.find(asking(cookie=cookie))).name == "ci"
    with pytest.raises(Problem, match="X-CSRF"):
        await callers.find(asking("POST", cookie=cookie))
    assert (await callers.find(asking("POST", cookie=cookie, forgery=login.forgery))).way == "browser"
    answers = set()
    tokens["good"] = {**RECORD, "until_utc": 5.0}
    utc[0] = 5.0
    for bearer in ("smq_good", "smq_bad", "x" * 1000):
        with pytest.raises(Problem) as caught:
            await callers.find(asking(bearer=bearer))
        answers.add((caught.value.status, caught.value.detail, caught.value.do))
    assert len(answers) == 1 and next(iter(answers))[0] == 401
    del tokens["good"]
    with pytest.raises(Problem):
        await callers.find(asking(cookie=cookie))
    tokens["good"] = RECORD
    with pytest.raises(Problem):
        await callers.find(asking(cookie=cookie))


async def test_failed_logins_are_rate_limited_by_address() -> None:
    """Five per second; another address is not affected."""

    async def nothing(digest: str) -> dict[str, Any] | None:
        assert digest
        return None

    callers = Callers(logins(), nothing, lambda: 0.0, lambda: 0.0, is_https=False)
    statuses = []
    for _ in range(8):
        with pytest.raises(Problem) as caught:
            await callers.log_in("192.0.2.1", "smq_x", "")
        statuses.append(caught.value.status)
    assert statuses == [401] * 5 + [429] * 3
    with pytest.raises(Problem) as caught:
        await callers.log_in("198.51.100.1", "smq_x", "")
    assert caught.value.status == 401


@pytest.mark.parametrize(
    ("origin", "site", "foreign"),
    [
        ("", "", False),  # a program
        ("https://admin:18083", "", False),
        ("https://admin:18083", "same-origin", False),
        ("https://evil.example", "", True),
        ("https://admin", "", True),  # another port is another site
        ("null", "", True),  # a page that hides its origin
        ("", "cross-site", True),
        ("https://admin:18083", "same-site", True),
    ],
)
def test_is_foreign_by_browser_headers(origin: str, site: str, foreign: bool) -> None:
    assert is_foreign(origin, site, "admin:18083") is foreign
