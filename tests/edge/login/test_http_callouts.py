"""HTTP callouts with correct, wrong, slow and hostile servers over real sockets."""

import contextlib
import datetime
import io
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from access.identity.chain import Ticket
from access.identity.http_answer import HttpJob, HttpReply
from access.identity.principal import Credentials
from access.limits.answer_cache import AnswerCache
from conf.errors import UserError
from conf.logs import configure_logs
from conf.node_settings import LogSettings
from conf.settings import ListenerSettings
from edge.login import callout_service
from edge.login.auth_jobs import AuthJobs
from edge.login.callout_service import CONCURRENT_MAX
from edge.login.http_callouts import HttpCallouts
from edge.login.server_urls import ServerUrls
from tests.patience import PATIENCE_S
from wire.links.authority import DevelopmentAuthority

SECRET = b"sixteen bytes at least"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Handler = Callable[[trio.SocketStream], Awaitable[None]]


def said(body: bytes, more: bytes = b"") -> bytes:
    return OK + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


ALLOW = said(b'{"result":"allow"}', b"Cache-Control: max-age=60\r\n")
WRONG = {  # parts of a response, and its counter
    "huge": ([OK + b"\r\n", *[b"x" * 65_536] * 4], "too_long"),
    "garbage": ([b"\x00\xff" * 5_000], "broken"),
    "closed": ([OK + b"Content-Length: 100\r\n\r\nabc"], "broken"),
    "nothing": ([], "broken"),
    "packed": ([said(b"abc", b"Content-Encoding: gzip\r\n")], "wrong"),
    "html": ([b'HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 18\r\n\r\n{"result":"allow"}'], "wrong"),
    "redirect": ([b"HTTP/1.1 302 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"], "wrong"),
    "503": ([b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"], "wrong"),
    "deep": ([said(b"[" * 60_000)], "wrong"),
}


def reads(answer: list[bytes], asked: list[bytes] | None = None) -> Handler:
    """Return a server with one request for each connection."""

    async def handler(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
            while b"\r\n\r\n" not in data or not data.endswith(b"}"):
                data += await stream.receive_some(4_096)
            if asked is not None:
                asked.append(data)
            for piece in answer:
                await stream.send_all(piece)
        await stream.aclose()

    return handler


class Place:
    """Callouts to one server, and the completed logins."""

    def __init__(self, url: str, **more: object) -> None:
        self.listener = ListenerSettings(name="l", port=0, tls=False, http_url=url, **more)  # type: ignore[arg-type]
        self.cache: AnswerCache[HttpReply] = AnswerCache(SECRET, 100)
        self.desk = AuthJobs(1_000)
        self.answers: dict[int, object] = {}
        self.calls = HttpCallouts([self.listener], self.cache, self.desk, self.done)
        self.desk.came = self.calls.asking.came
        self.number = 0

    def done(self, number: int, ticket: Ticket, result: object) -> None:
        del ticket
        self.answers[number] = result

    def come(self, user: str = "ann") -> int:
        self.number += 1
        body = json.dumps({"username": user}).encode()
        self.desk.put(self.number, Ticket(Credentials("l", "192.0.2.1", "c"), 0, HttpJob(body, body), 1, None))
        return self.number

    async def answer(self, number: int, limit_s: float = PATIENCE_S) -> object:
        with trio.fail_after(limit_s):
            while number not in self.answers:
                await trio.sleep(0.005)
        return self.answers[number]

    async def asks(self, user: str = "ann") -> HttpReply | None:
        reply = await self.answer(self.come(user))
        assert reply is None or isinstance(reply, HttpReply)
        return reply

    def outcomes(self) -> dict[str, int]:
        return {outcome: count for (_, outcome), count in self.calls.asking.outcomes.items()}


@asynccontextmanager
async def place_of(handler: Handler) -> AsyncIterator[Place]:
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(trio.serve_tcp, handler, 0)
        place = Place(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/auth")
        nursery.start_soon(place.calls.asking.run)
        yield place
        nursery.cancel_scope.cancel()


async def test_response_is_cached_for_max_age() -> None:
    """EMQX's request form; a removal of permissions clears the cache."""
    asked: list[bytes] = []
    async with place_of(reads([ALLOW], asked)) as place:
        for _ in range(3):
            reply = await place.asks()
            assert reply is not None and (reply.status, reply.body) == (200, b'{"result":"allow"}')
        assert len(asked) == 1 and asked[0].startswith(b"POST /auth HTTP/1.1\r\n")
        assert b"content-type: application/json" in asked[0].lower()
        place.cache.clear()
        await place.asks()
        assert len(asked) == 2 and place.outcomes() == {"allow": 2, "cached": 2}


async def test_requests_are_not_logged() -> None:
    """Many logins must not flood the log, at any level."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logs(LogSettings(level="debug"), "edge-0", stream)
        async with place_of(reads([ALLOW])) as place:
            assert await place.asks() is not None
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert "http" not in stream.getvalue()


async def test_denials_are_cached_and_responses_without_max_age_are_not() -> None:
    for body, questions in ((b'{"result":"deny"}', 1), (b'{"result":"ignore"}', 1), (b'{"result":"allow"}', 3)):
        asked: list[bytes] = []
        async with place_of(reads([said(body)], asked)) as place:
            for _ in range(3):
                await place.asks()
            assert len(asked) == questions, body


async def test_response_from_before_permission_removal_is_not_cached() -> None:
    """A5 of docs/revocation.md."""
    go_on = trio.Event()

    async def handler(stream: trio.SocketStream) -> None:
        await stream.receive_some(4_096)
        await go_on.wait()
        await stream.send_all(ALLOW)

    async with place_of(handler) as place:
        number = place.come()
        await trio.testing.wait_all_tasks_blocked(0.05)
        place.cache.clear()
        go_on.set()
        await place.answer(number)
        assert len(place.cache) == 0


@pytest.mark.parametrize("kind", WRONG)
async def test_wrong_response_fails_early(kind: str) -> None:
    """It is not cached, and no other address is requested."""
    pieces, outcome = WRONG[kind]
    async with place_of(reads(pieces)) as place:
        reply = await place.asks()
        assert (reply is None) == (outcome in ("too_long", "broken"))
        assert place.outcomes() == {outcome: 1} and len(place.cache) == 0


async def test_slow_and_hanging_servers_time_out() -> None:
    """2 s in all, even with a byte a second."""

    async def drip(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            for byte in said(b'{"result":"allow"}'):
                await stream.send_all(bytes([byte]))
                await trio.sleep(1.0)

    for handler in (drip, lambda _: trio.sleep_forever()):
        async with place_of(handler) as place:
            began = trio.current_time()
            assert await place.asks() is None
            assert trio.current_time() - began > 1.9 and place.outcomes() == {"timeout": 1}


async def test_full_accept_queue_times_out_early() -> None:
    """The kernel does not answer: half a second, not 2."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # more than fit: these are not accepted
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        place = Place(f"http://127.0.0.1:{server.getsockname()[1]}/auth")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.calls.asking.run)
            assert await place.asks() is None
            assert place.outcomes() == {"connect": 1} and callout_service.CONNECT_S == 0.5
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["closed", "503", "nobody"])
async def test_breaker_opens_after_failures_and_closes_after_probe(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Five failures, then no login waits; one log line for each change."""
    caplog.set_level(logging.INFO, "edge.login.callout_service")
    shift = 0.0
    real = trio.current_time
    for module in ("callout_service", "http_callouts"):
        monkeypatch.setattr(f"edge.login.{module}.boot_time", lambda: real() + shift)
    pieces = [] if kind == "nobody" else list(WRONG[kind][0])
    asked: list[bytes] = []
    async with place_of(reads(pieces, asked)) as place:
        for number in range(5):
            await place.asks(str(number))
        assert len(asked) == 5 and place.calls.asking.open_breakers() == {("l",): 1.0}
        for number in range(20):
            assert await place.asks(str(number)) is None
        assert len(asked) == 5 and place.outcomes()["breaker_open"] == 20
        shift = 5.1
        await place.asks("probe")
        assert len(asked) == 6 and place.calls.asking.open_breakers() == {("l",): 1.0}
        shift = 10.2
        pieces[:] = [ALLOW]
        assert await place.asks("probe") is not None
        assert place.calls.asking.open_breakers() == {("l",): 0.0}
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


async def test_client_provoked_failures_do_not_open_the_breaker() -> None:
    for answer in (b"HTTP/1.1 400 x\r\nContent-Length: 0\r\n\r\n", said(b"{}")):
        async with place_of(reads([answer])) as place:
            for number in range(10):
                assert await place.asks(str(number)) is not None
            assert place.calls.asking.open_breakers() == {("l",): 0.0}


async def test_concurrent_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callout_service, "CONNECT_S", PATIENCE_S)
    monkeypatch.setattr(callout_service, "ANSWER_S", PATIENCE_S)
    open_now = most = 0

    async def handler(stream: trio.SocketStream) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if most >= CONCURRENT_MAX:
            full.set()
        await stream.receive_some(4_096)
        await full.wait()
        await trio.sleep(0.05)  # one beyond the bound would come now
        open_now -= 1
        await stream.send_all(said(b'{"result":"deny"}', b"Connection: close\r\n"))
        await stream.aclose()

    full = trio.Event()  # the largest number is pending: none is answered before
    async with place_of(handler) as place:
        numbers = [place.come(str(number)) for number in range(100)]
        for number in numbers:
            assert await place.answer(number) is not None
        assert most == CONCURRENT_MAX


async def test_proxy_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with place_of(reads([ALLOW])) as place:
        assert await place.asks() is not None


async def test_cookies_are_not_sent_in_other_requests() -> None:
    asked: list[bytes] = []
    cookie = said(b'{"result":"allow"}', b"Set-Cookie: who=ann; Path=/\r\n")
    async with place_of(reads([cookie], asked)) as place:
        for _ in range(2):
            await place.asks()
        assert len(asked) == 2 and b"cookie" not in asked[1].lower()


# --- TLS


class Config:
    """The settings that a reload reads for callouts."""

    def __init__(self, *listeners: ListenerSettings) -> None:
        self.edge = self
        self.listeners = listeners


async def test_reload_reads_url_file_again(tmp_path: Path) -> None:
    """The next request has the new key, and no log line contains either."""
    asked: list[bytes] = []
    file = tmp_path / "url"
    file.touch(mode=0o600)
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(trio.serve_tcp, reads([ALLOW], asked), 0)
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/auth?key="
        file.write_text(f"{url}former\n")
        place = Place(f"file:{file}")
        urls = ServerUrls([place.listener], {"http_url": place.calls.asking.replace_url})
        nursery.start_soon(place.calls.asking.run)
        assert await place.asks() is not None
        held = urls.current()
        assert urls.difference(urls.load(Config(place.listener))) == []
        file.write_text(f"{url}renewed\n")
        loaded = urls.load(Config(place.listener))
        [line] = urls.difference(loaded)
        assert line.startswith(f"{file}: content ") and "renewed" not in line
        for part, read in ((urls, loaded), (place.calls, place.calls.load(Config(place.listener)))):
            part.put(read)  # type: ignore[arg-type]
        assert await place.asks() is not None
        assert [data.split()[1] for data in asked] == [b"/auth?key=former", b"/auth?key=renewed"]
        assert urls.current() == loaded != held and "renewed" not in f"{loaded}"
        file.write_text("ftp://h/secret")
        with pytest.raises(UserError, match=r"listener l: http_url: .*/url: the content must be https") as caught:
            urls.load(Config(place.listener))
        assert "secret" not in str(caught.value)
        nursery.cancel_scope.cancel()


async def test_client_certificate_and_reload(tmp_path: Path) -> None:
    """A reload applies http_ca and http_certificate, and clears the cache."""
    now = datetime.datetime.now(datetime.UTC)
    ours, others = (DevelopmentAuthority(tmp_path / name, name, now) for name in ("ours", "others"))
    own, client = ours.server(), ours.client("edge")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(own.authority))
    context.load_cert_chain(own.certificate, own.key)
    context.verify_mode = ssl.CERT_REQUIRED
    shown: list[object] = []

    async def handler(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            if not await stream.receive_some(4_096):
                return  # it did not trust this server
            shown.append(stream.getpeercert(binary_form=True))
            await stream.send_all(ALLOW)

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_ssl_over_tcp, handler, 0, context, https_compatible=True)
        (listener, *_) = await nursery.start(serve)
        url = f"https://localhost:{listener.transport_listener.socket.getsockname()[1]}/auth"
        ca = tmp_path / "ca.pem"
        ca.write_bytes(others.server().authority.read_bytes())
        place = Place(url, http_ca=ca, http_certificate=client.certificate, http_key=client.key)
        nursery.start_soon(place.calls.asking.run)
        assert await place.asks() is None and place.outcomes() == {"connect": 1}
        ca.write_bytes(own.authority.read_bytes())
        loaded = place.calls.load(Config(place.listener))
        assert len(place.calls.difference(loaded)) == 1 and str(ca) in place.calls.difference(loaded)[0]
        place.calls.put(loaded)
        assert place.calls.current() == loaded
        assert await place.asks() is not None and await place.asks() is not None and len(shown) == 1 and shown[0]
        place.calls.put(place.calls.load(Config(place.listener)))
        assert await place.asks() is not None and len(shown) == 2
        ca.write_text("nothing")
        with pytest.raises(UserError, match=r"listener l: .*ca\.pem is not readable as PEM"):
            place.calls.load(Config(place.listener))
        nursery.cancel_scope.cancel()
