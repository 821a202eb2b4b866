"""Authorization of the service's paths: each verb and each list with each role; refusals are recorded."""

import hashlib
import itertools
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from litestar import Response, Router

from access.operators.audit_chain import AuditRecord
from access.operators.commands import ROLES, VERBS, OperatorRole
from admin.http.app import BASE, make_application
from admin.http.callers import Callers
from admin.http.command_handlers import OWN, verb_handlers
from admin.http.command_paths import PATHS
from admin.http.logins import BrowserSessions
from admin.http.problems import Problem
from admin.http.request_admission import RequestAdmission
from admin.http.row_handlers import row_handlers
from admin.http.row_paths import LISTS
from wire.messages.query_kinds import LOOK_KINDS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Litestar's, of forms of parameters
TOKENS = {hashlib.sha256(role.encode()).hexdigest(): role for role in ROLES}
NAMES = ("a/b", "/", "a//b/", "a b", "a%2Fb", "\u00e4\u2028/\U0001f600", "queue", "a/queue", "?x=1&y", "#")
VERB_PATHS = [row for row in PATHS if row.verb not in OWN]


class Service:
    """The application with a cluster that accepts every verb and has no rows."""

    def __init__(self) -> None:
        self.carried: list[str] = []
        self.noted: list[AuditRecord] = []
        self.asked: dict[str, Any] = {}  # arguments of the last verb
        logins = BrowserSessions(100.0, 100.0, 10, lambda: "secret")
        clock = itertools.count()  # one second per reading: failed logins are not rate limited
        callers = Callers(logins, self.check, lambda: float(next(clock)), lambda: 0.0, is_https=False)
        routes: Any = [Router(BASE, route_handlers=[*verb_handlers(self.carry), *row_handlers(self.cluster)])]
        application = make_application("c", "1", callers, routes, 60.0, False, note=self.noted.append)
        self.application = RequestAdmission(application, 8)

    async def check(self, digest: str) -> dict[str, Any] | None:
        role = TOKENS.get(digest)
        return {"token": f"of-{role}", "role": role, "until_utc": None} if role else None

    async def carry(self, wish: Any) -> Response[Any]:
        self.carried.append(wish.verb)
        self.asked = wish.arguments
        return Response({}, status_code=200)

    async def cluster(self, *_: object) -> Any:
        raise Problem(503, "not_ready", "no cluster here")

    async def ask(self, method: str, path: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.application)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://x{BASE}") as client:
            return (await client.request(method, re.sub(r"\{\w+\}", "x", path), headers=headers)).status_code


@pytest.mark.parametrize("role", ["", *ROLES])
async def test_a_verb_wants_its_role(role: str) -> None:
    """401 without a caller, 403 and an audit record for a role that is too low; no verb runs."""
    service = Service()
    for row in VERB_PATHS:
        wanted = VERBS[row.verb].role
        status = await service.ask(row.method, row.path, role)
        is_refused = bool(role) and ROLES[role] < wanted
        assert (status == 401) == (not role) and (status == 403) == is_refused, row
        assert [one.verb for one in service.noted] == [row.verb] * is_refused
        if is_refused:
            (note,) = service.noted
            assert (note.kind, note.outcome, note.actor, note.role) == ("verb", "refused", f"of-{role}", role)
        if not role or is_refused:
            assert not service.carried
        service.carried.clear()
        service.noted.clear()


@pytest.mark.parametrize("role", ["", *ROLES])
async def test_a_list_wants_its_role(role: str) -> None:
    service = Service()
    for listing in LISTS:
        status = await service.ask("GET", listing.path, role)
        low = bool(role) and ROLES[role] < ROLES[LOOK_KINDS[listing.what].role]
        assert status == (401 if not role else 403 if low else 503), listing


@pytest.mark.parametrize(
    "name", ["a/b", "/", "a//b/", "a b", "a%2Fb", "\u00e4\u2028/\U0001f600", "queue", "a/queue", "?x=1&y", "#"]
)
async def test_a_client_is_found_whatever_its_name_has(name: str) -> None:
    """A name with a slash was 404 in each path of a client."""
    service = Service()
    for method, end in (("DELETE", "/sessions/{}"), ("DELETE", "/sessions/{}/queue"), ("POST", "/sessions/{}/expire")):
        assert await service.ask(method, end.format(quote(name, safe="")), "admin") == 200, end
        assert service.asked["client_id"] == name


def test_most_verbs_change_nothing_for_viewers() -> None:
    """The matrix above has refusals for each role but the highest."""
    assert {VERBS[row.verb].role for row in VERB_PATHS} == {
        OperatorRole.VIEWER,
        OperatorRole.OPERATOR,
        OperatorRole.ADMIN,
    }
