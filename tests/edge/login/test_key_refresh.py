"""Wrong and hostile servers of token keys: each failure is one log line, never an error of the edge."""

from contextlib import suppress

import pytest
import trio

from access.identity.chain import Ticket
from access.identity.key_set import FetchKeys, KeySource
from access.identity.principal import Credentials
from conf.settings import ListenerSettings
from conf.url_settings import KeySetUrl
from edge.login.auth_jobs import AuthJobs
from edge.login.key_refresh_service import KeyRefresh
from tests.patience import PATIENCE_S
from wire.clock import boot_time

SECRET = "Zq7-in-a-query"
OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "huge": [OK + b"\r\n", *[b"x" * 65_536] * 4],
    "garbage": [b"\x00\xff" * 5_000],
    "headers": [OK, *[b"h%d: v\r\n" % number for number in range(20_000)], b"\r\n"],
    "closed": [OK + b"Content-Length: 100\r\n\r\nabc"],
    "redirect": [b"HTTP/1.1 302 x\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"],
    "chunk": [OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n"],
    "packed": [OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"],
    "status": [b"HTTP/1.1 999999 OK\r\n\r\n"],
    "letters": ["HTTP/1.1 200 OK\r\nLocatiön: ü\r\n\r\n".encode()],
    "nothing": [],
    "deep": [OK + b"\r\n" + b"[" * 60_000],
}


async def test_changed_url_is_fetched_at_once() -> None:
    """After a reload the next fetch does not wait 300 s."""
    asked: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        asked.append((await stream.receive_some(4_096)).split()[1])
        await stream.send_all(OK + b"Content-Type: application/json\r\nContent-Length: 11\r\n\r\n" + b'{"keys":[]}')
        await stream.aclose()

    source = KeySource()
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(trio.serve_tcp, answer, 0)
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/keys?key="
        settings = ListenerSettings(name="set", port=0, tls=False, token_jwks_url=KeySetUrl(f"{url}a"))
        refresh = KeyRefresh([settings], {"set": source}, AuthJobs(10), lambda *_: None)
        nursery.start_soon(refresh.run)
        with trio.fail_after(PATIENCE_S):
            while not asked or source.is_due(boot_time()):
                await trio.sleep(0.01)
            refresh.replace_url("set", KeySetUrl(f"{url}b"))
            while len(asked) < 2:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert asked == [b"/keys?key=a", b"/keys?key=b"]


@pytest.mark.parametrize("kind", ANSWERS)
async def test_wrong_response_is_a_failure(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The waiting login continues without keys; the log has one line."""

    async def answer(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(4_096)
            for piece in ANSWERS[kind]:
                await stream.send_all(piece)
        await stream.aclose()

    source, done = KeySource(), list[object]()
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(trio.serve_tcp, answer, 0)
        address = listener.socket.getsockname()
        url = KeySetUrl(f"http://127.0.0.1:{address[1]}/keys?key={SECRET}")
        settings = ListenerSettings(name="set", port=0, tls=False, token_jwks_url=url)
        desk = AuthJobs(10)
        refresh = KeyRefresh([settings], {"set": source}, desk, lambda number, *_: done.append(number))
        desk.came = refresh.came
        desk.put(7, Ticket(Credentials("set", "192.0.2.1", "c"), 0, FetchKeys(), 1, None))
        nursery.start_soon(refresh.run)
        with trio.fail_after(PATIENCE_S):  # a loaded machine sends 20 000 headers slowly
            while not done:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert done == [7] and source.failures >= 1 and not source.keys
    [line] = [record.message for record in caplog.records if "fetching token keys" in record.message]
    assert f"http://127.0.0.1:{address[1]}/keys?*** failed: " in line and SECRET not in caplog.text
