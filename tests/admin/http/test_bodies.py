"""Untrusted requests: wrong media types, nested or invalid bodies, odd headers and queries, pages of other sites."""

import logging
import random
from collections import Counter
from typing import Any

import pytest

from admin.http.app import BASE
from admin.http.bodies import media_type_fault
from tests.admin.http.test_roles import VERB_PATHS, Service

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Litestar's, of forms of parameters

Headers = dict[str, bytes]
JSON: Headers = {"content-type": b"application/json"}
ADMIN: Headers = {"authorization": b"Bearer admin"}
OWN: Headers = {"origin": b"http://x", "sec-fetch-site": b"same-origin"}
LOGIN, USERS, LOGOUT, ROLE = f"{BASE}/login", f"{BASE}/users", f"{BASE}/logout", f"{BASE}/roles/r"
BODIES = {
    "arrays": b"[" * 20_000,
    "objects": b'{"token":' * 5_000,
    "a nested string": b'{"token":"' + b"[" * 20_000 + b'"}',
    "no UTF-8": b'{"token": "\xff\xfe"}',
    "no UTF-8 in a name": b'{"to\xe4ken": "a"}',
    "UTF-16": '{"token": "a"}'.encode("utf-16"),
    "a surrogate": b'{"token": "\xed\xa0\x80"}',
    "half a character": b'{"token": "\\ud800"}',
    "NaN": b'{"token": NaN}',
    "a huge integer": b'{"token": ' + b"9" * 5_000 + b"}",
    "one name twice": b'{"token": "a", "token": "b"}',
    "half an object": b'{"token": "a"',
    "another type": b'{"token": [1]}',
    "an unknown member": b'{"tokn": "a"}',
    "a lone quote": b'"',
    "a zero byte": b"\x00",
    "a byte order mark": b"\xef\xbb\xbf{}x",
}


async def ask(
    service: Service, method: str, path: str, headers: Headers, body: bytes = b"", query: bytes = b""
) -> tuple[int, bytes]:
    """Return status and body of a response; all bytes are sent unchanged, as from a socket."""
    answers: list[Any] = []
    sent = [(name.encode(), value) for name, value in {"host": b"x", **headers}.items()]
    if body:
        sent.append((b"content-length", str(len(body)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": sent,
        "client": ("192.0.2.1", 1),
        "server": ("x", 80),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    await service.application(scope, receive, send)
    return answers[0]["status"], b"".join(each.get("body", b"") for each in answers)


@pytest.mark.parametrize("path", [LOGIN, USERS, ROLE])
@pytest.mark.parametrize("name", BODIES)
async def test_body_invalid_is_refused_without_log_line(name: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Deep nesting and invalid UTF-8 were 500, with a traceback in the log, without login."""
    service = Service()
    method = "PUT" if path == ROLE else "POST"
    headers = JSON if path == LOGIN else JSON | ADMIN
    status, answer = await ask(service, method, path, headers, BODIES[name])
    assert status == (401 if (name, path) == ("a nested string", LOGIN) else 400), answer
    assert not service.carried and not caplog.records


@pytest.mark.parametrize(
    "content_type",
    [
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"multipart/form-data",
        b"application/msgpack",
        b"application/json; charset=utf-16",
        b"text/plain; application/json",
        b"application/json+x",
        b"\xff",
        b"",
    ],
)
@pytest.mark.parametrize("path", [LOGIN, USERS, LOGOUT])
async def test_body_needs_json_media_type(path: str, content_type: bytes) -> None:
    """A form of another site has one of three media types, and logged a browser in as another user."""
    service = Service()
    headers = {"content-type": content_type} | ({} if path == LOGIN else ADMIN)
    status, answer = await ask(service, "POST", path, headers, b'{"token": "viewer"}')
    assert (status, b'"bad_type"' in answer) == (415, True), answer


async def test_each_verb_refuses_a_form() -> None:
    """Also paths with arguments in the query string, and forms without fields."""
    service = Service()
    for row in VERB_PATHS:
        if row.method != "GET":
            for body in (b"a=b", b""):
                headers = ADMIN | {"content-type": b"application/x-www-form-urlencoded"}
                path = BASE + row.path.replace("{", "").replace("}", "")
                assert (await ask(service, row.method, path, headers, body))[0] == 415, row
    assert not service.carried


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", LOGIN, b'{"token": "viewer"}', 200),
        ("POST", LOGOUT, b"", 204),
        ("POST", USERS, b'{"user": "ann", "record": ""}', 200),
        ("DELETE", f"{USERS}/ann", b"", 200),
    ],
)
async def test_request_of_other_site_is_refused(method: str, path: str, body: bytes, status: int) -> None:
    """Logins and logouts too: another site's page logged an operator's browser in as its own user."""
    service = Service()
    headers = ADMIN | (JSON if body else {})
    for foreign in (
        {"sec-fetch-site": b"cross-site"},
        {"sec-fetch-site": b"same-site"},
        {"origin": b"http://evil.example"},
        {"origin": b"null"},
        {"origin": b"\xff"},
    ):
        got, answer = await ask(service, method, path, headers | foreign, body)
        assert (got, b'"forged"' in answer) == (403, True), (foreign, answer)
    assert not service.carried
    for own in ({}, OWN, {"origin": b"http://x"}, {"sec-fetch-site": b"none"}):
        got, answer = await ask(service, method, path, headers | own, body)
        assert got == status, (own, answer)


async def test_odd_headers_and_queries_never_fail(caplog: pytest.LogCaptureFixture) -> None:
    """For any bytes in a header, a query or a body: no 5xx, no log line."""
    caplog.set_level(logging.WARNING)
    service, draw = Service(), random.Random(5)
    names = ["cookie", "authorization", "content-type", "x-csrf", "origin", "sec-fetch-site", "host", "if-match"]
    names += ["idempotency-key", "content-length", "accept", "transfer-encoding"]
    pieces = [b"\xff\xfe", b"stratamq=", b"Bearer ", b"a" * 3_000, b'"', b";", b"=", b"\\377", b"-1", b"9" * 5_000]
    pieces += ["\uff19".encode(), b"application/json", b"charset", b",", b"%ff", b"%00", b"&", b"http://", b"null"]
    pieces += [b"dry_run", b"user", b"node", b"limit", b"token", b"[", b"{", b"[" * 2_000, b"\xed\xa0\x80"]
    paths = [("POST", LOGIN), ("GET", LOGIN), ("POST", LOGOUT), *((row.method, BASE + row.path) for row in VERB_PATHS)]
    statuses: Counter[int] = Counter()
    for _ in range(1_500):
        method, path = draw.choice(paths)
        some = {name: b"".join(draw.choices(pieces, k=draw.randrange(4))) for name in draw.sample(names, 2)}
        query, body = (b"".join(draw.choices(pieces, k=draw.randrange(6))) for _ in range(2))
        path = path.replace("{", "").replace("}", draw.choice(["", "%FF", "\u00e4"]))
        status, answer = await ask(service, method, path, JSON | ADMIN | some, body, query)
        assert status < 500, (method, path, some, query, body, answer)
        assert not caplog.records, (method, path, some, query, body)
        statuses[status] += 1
    assert statuses.keys() >= {200, 400, 401, 403, 415}, statuses
    assert statuses[200] > 5, statuses


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON ; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_the_media_type_may_name_its_charset(content_type: str) -> None:
    assert not media_type_fault(content_type)
