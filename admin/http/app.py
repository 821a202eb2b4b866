"""The HTTP application: paths under ``/api/v1``, the dashboard's files, and authorization.

Each handler names its minimum role in its options; a handler without one refuses every caller, so a forgotten option is
safe. The audit log records a forbidden verb, as for one over a link. Paths of verbs come from ``command_paths``, lists
of rows from ``row_paths``.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
from litestar import Litestar, MediaType, Request, Response, Router, get, post
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from access.operators.audit_chain import AuditRecord
from access.operators.commands import OperatorRole
from admin.http.bodies import BODY_BYTES_MAX, validate_body
from admin.http.callers import PROGRAM, SAFE_METHODS, Caller, Callers, is_foreign
from admin.http.callers import Request as Asking
from admin.http.certificates import caller_of
from admin.http.description import complete
from admin.http.parameters import refuse_unknown
from admin.http.problems import MEDIA_TYPE, Problem
from admin.http.request_admission import ADMIT, SLASH
from conf.events import say

__all__ = ["BASE", "PUBLIC", "make_application"]

logger = logging.getLogger(__name__)

BASE = "/api/v1"
NO_BODY = "a body in JSON is missing"
PUBLIC = "public"  # role of a handler without authentication
Connection = ASGIConnection[Any, Any, Any, Any]
Guard = Callable[[Connection, BaseRouteHandler], Awaitable[None]]
Find = Callable[[Connection], Awaitable[Caller]]


class LoginForm(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a login: a token, or the one-time code that `stratamq up` prints."""

    token: str = ""
    code: str = ""


class Me(msgspec.Struct):
    """The caller of a request; a browser's changes repeat ``csrf`` in the header X-CSRF."""

    name: str
    role: str
    way: str
    csrf: str
    cluster: str


class Application(Litestar):
    """Litestar with msgspec's plugin only: its other plugins import 3 MiB of unused modules."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def make_application(
    cluster: str,
    version: str,
    callers: Callers,
    handlers: Sequence[HTTPRouteHandler],
    session_s: float,
    is_https: bool,
    refusal: Callable[[bytes], str] = lambda _: "",
    note: Callable[[AuditRecord], None] = lambda _: None,
) -> Litestar:
    """Return the application; ``handlers`` holds all other paths, with their roles.

    Args:
        cluster: Its name.
        version: Of this program.
        callers: Authenticates requests.
        handlers: Of all other paths.
        session_s: Lifetime of a browser's cookie.
        is_https: Whether cookies are sent over TLS only.
        refusal: Returns why an operator's certificate in DER is refused.
        note: Receives refused changes.
    """

    async def find(connection: Connection) -> Caller:
        return await callers.find(_asking(connection, cluster, refusal))

    @get(
        f"{BASE}/version",
        opt={"role": PUBLIC},
        summary="Release of this service",
        operation_id="version",
        media_type=MediaType.TEXT,
    )
    async def get_version() -> str:
        return version

    @get(f"{BASE}/openapi.json", opt={"role": PUBLIC}, include_in_schema=False, sync_to_thread=False)
    def describe(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return complete(request.app.openapi_schema.to_schema())

    logins = _login_handlers(cluster, callers, find, session_s, is_https)
    return Application(
        route_handlers=[*logins, get_version, describe, *handlers],
        guards=[_guard(find, note)],
        request_max_body_size=BODY_BYTES_MAX,
        exception_handlers={Problem: _problem, HTTPException: _http_problem, Exception: _unexpected},
        openapi_config=_description(version),
        logging_config=None,
        debug=False,
    )


def _guard(
    find: Find, note: Callable[[AuditRecord], None]
) -> Callable[[Connection, BaseRouteHandler], Awaitable[None]]:
    """Return the check of every request: caller, role and parameter names."""

    async def authorize(connection: Connection, handler: BaseRouteHandler) -> None:
        required = handler.opt.get("role")
        if required == PUBLIC:
            _refuse_foreign(connection)
            await _validate_body(connection)
            return
        caller: Caller | None = None
        try:
            caller = await find(connection)
            connection.scope["state"][ADMIT](caller.key)
            _refuse_foreign(connection)
            if not isinstance(required, OperatorRole) or caller.role < required:
                name = required.name.lower() if isinstance(required, OperatorRole) else "of nobody"
                text = f"this needs the role {name}; {caller.name} has {caller.role.name.lower()}"
                raise Problem(403, "forbidden", text, "ask with another token")
        except Problem as problem:
            verb = handler.opt.get("verb", "")
            if problem.status == 403 and verb:
                note(_refused(caller, verb, _address(connection), problem.detail))
            raise
        await _validate_body(connection)
        for name, value in connection.path_params.items():
            if isinstance(value, str):
                connection.path_params[name] = value.replace(SLASH, "/")  # restored to the value before the gate
        refuse_unknown(handler, connection.path_params, connection.query_params)
        connection.state.caller = caller
        connection.state.authenticate = lambda: find(connection)  # for a stream, which outlives its first check

    return authorize


def _refuse_foreign(connection: Connection) -> None:
    """Refuse a change from a page of another site; a login and a logout are changes too.

    Raises:
        Problem: 403.
    """
    headers = connection.headers
    if str(connection.scope.get("method", "GET")) not in SAFE_METHODS and is_foreign(
        headers.get("origin", ""), headers.get("sec-fetch-site", ""), headers.get("host", "")
    ):
        raise Problem(403, "forged", "a page of another site may change nothing here", PROGRAM)


async def _validate_body(connection: Connection) -> None:
    if isinstance(connection, Request):
        await validate_body(connection)


def _refused(caller: Caller | None, verb: str, address: str, reason: str) -> AuditRecord:
    name, role = (caller.name, caller.role.name.lower()) if caller is not None else ("", "")
    return AuditRecord("verb", "refused", actor=name, role=role, address=address, verb=verb, reason=reason)


def _login_handlers(
    cluster: str, callers: Callers, find: Find, session_s: float, is_https: bool
) -> list[HTTPRouteHandler]:
    """Return the handlers of a browser's login and logout, and of the caller's identity."""

    def as_me(caller: Caller) -> Me:
        return Me(caller.name, caller.role.name.lower(), caller.way, caller.forgery, cluster)

    @post(f"{BASE}/login", opt={"role": PUBLIC}, status_code=200, summary="Log a browser in", operation_id="login")
    async def log_in(request: Request[Any, Any, Any], data: LoginForm) -> Response[Me]:
        cookie, login = await callers.log_in(_address(request), data.token, data.code)
        response = Response(Me(login.name, login.role.name.lower(), "browser", login.forgery, cluster))
        response.set_cookie(
            callers.cookie, cookie, max_age=int(session_s), httponly=True, samesite="strict", secure=is_https
        )
        return response

    @get(
        f"{BASE}/login",
        opt={"role": PUBLIC},
        summary="The logged-in caller; empty: none",
        operation_id="logged_in",
    )
    async def logged_in(request: Request[Any, Any, Any]) -> Me | None:
        # A page calls this first: browsers log each 401 response on their console.
        try:
            return as_me(await find(request))
        except Problem as problem:
            if problem.status == 401:
                return None
            raise

    @post(
        f"{BASE}/logout", opt={"role": OperatorRole.VIEWER}, status_code=204, summary="Log out", operation_id="logout"
    )
    async def log_out(request: Request[Any, Any, Any]) -> Response[None]:
        callers.log_out(request.headers.get("cookie", ""))
        response = Response(None, status_code=204)
        response.delete_cookie(callers.cookie)
        return response

    @get(f"{BASE}/me", opt={"role": OperatorRole.VIEWER}, summary="The caller", operation_id="me")
    async def me(request: Request[Any, Any, Any]) -> Me:
        return as_me(request.state.caller)

    return [log_in, logged_in, log_out, me]


def _description(version: str) -> OpenAPIConfig:
    schemes: dict[str, Any] = {
        "token": SecurityScheme(type="http", scheme="bearer", description="`stratamq token create` makes one."),
        "browser": SecurityScheme(type="apiKey", name="stratamq", security_scheme_in="cookie"),
    }
    return OpenAPIConfig(
        title="StrataMQ",
        version=version,
        description="The operators' interface of a StrataMQ cluster.",
        path=f"{BASE}/schema",
        openapi_router=Router(f"{BASE}/schema", route_handlers=[], opt={"role": PUBLIC}, include_in_schema=False),
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        components=Components(security_schemes=schemes),
        security=[{"token": []}, {"browser": []}],
        use_handler_docstrings=True,
    )


def _asking(connection: Connection, cluster: str, refusal: Callable[[bytes], str]) -> Asking:
    headers, scope = connection.headers, cast("dict[str, Any]", connection.scope)
    tls = (scope.get("extensions") or {}).get("tls") or {}
    return Asking(
        scope.get("method", "GET"),
        _address(connection),
        headers.get("authorization", ""),
        headers.get("cookie", ""),
        headers.get("x-csrf", ""),
        caller_of(cluster, tls.get("client_cert_chain") or (), refusal),
    )


def _address(connection: Connection) -> str:
    return connection.client.host if connection.client is not None else ""


def _answer(request: Request[Any, Any, Any], problem: Problem) -> Response[Any]:
    headers = {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.retry_s > 0:
        headers["Retry-After"] = str(max(1, round(problem.retry_s)))
    request_id = str(request.scope["state"].get("request_id", ""))
    return Response(problem.body(request_id), status_code=problem.status, headers=headers, media_type=MEDIA_TYPE)


def _problem(request: Request[Any, Any, Any], problem: Problem) -> Response[Any]:
    return _answer(request, problem)


def _http_problem(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    codes = {400: "bad_request", 404: "not_found", 405: "bad_method", 413: "too_large", 415: "bad_type"}
    code = codes.get(error.status_code, "failed" if error.status_code >= 500 else "bad_request")
    response = _answer(request, Problem(error.status_code, code, _line(error)))
    for name, value in (error.headers or {}).items():
        response.headers.setdefault(name, value)
    return response


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    problem = _first_problem(error)
    if problem is not None:
        return _answer(request, problem)
    say(logger, "admin.request_failed", method=request.scope["method"], path=request.scope["path"], exc_info=error)
    return _answer(request, Problem(500, "failed", f"this service failed: {type(error).__name__}", "see its log"))


def _first_problem(error: BaseException) -> Problem | None:
    """Return the problem in an exception group: from a request that queried several nodes at once."""
    if isinstance(error, Problem):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for item in inner if (found := _first_problem(item)) is not None), None)


def _line(error: HTTPException) -> str:
    """Return the error in one line; Litestar names the parameters in ``extra``."""
    extra = error.extra if isinstance(error.extra, list) else []
    parts = [
        NO_BODY
        if item.get("message") == repr(item.get("key"))
        else f"{item.get('key', 'body')}: {item.get('message', '')}"
        for item in extra
        if isinstance(item, dict)
    ]
    text = "; ".join(parts) or error.detail
    return "".join(letter if letter.isprintable() else "?" for letter in text[:512])
