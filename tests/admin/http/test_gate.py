"""The gate of the service: as many requests of each kind as may be, and each kind keeps out its own alone."""

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from admin.http import gate
from admin.http.gate import SLASH, Gate, Stay, path_of
from admin.http.look_handlers import waits


def stay_of(path: str, _: bytes) -> Stay:
    return {"/live": Stay.STREAM, "/wait": Stay.WAIT}.get(path, Stay.SHORT)


async def test_each_kind_keeps_out_its_own(monkeypatch: pytest.MonkeyPatch, autojump_clock: object) -> None:
    """Two of each; the third of a kind gets 503 at once, and places are free again behind them."""
    del autojump_clock
    monkeypatch.setattr(gate, "WAITS_MAX", 2)
    monkeypatch.setattr(gate, "STREAMS_MAX", 2)
    statuses: Counter[tuple[str, int]] = Counter()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await trio.sleep(5)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    made = Gate(application, 2, stay_of)

    async def ask(path: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses[path, message["status"]] += 1

        async def receive() -> None:
            raise AssertionError("no body is read")

        await made({"type": "http", "path": path, "query_string": b"", "headers": []}, receive, send)

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for path in ("/live", "/wait", "/short"):
                for _ in range(3):
                    nursery.start_soon(ask, path)
    assert statuses == {(path, code): 4 - code % 2 * 2 for path in ("/live", "/wait", "/short") for code in (200, 503)}
    assert made.refused == 6


@pytest.mark.parametrize(
    ("path", "query", "waiting"),
    [
        ("/api/v1/looks/trace", b"node=e&wait_ms=5000", True),
        ("/api/v1/looks/trace", b"node=e&wait_ms=0", False),
        ("/api/v1/looks/trace", b"node=e", False),
        ("/api/v1/nodes", b"wait_ms=5000", False),
    ],
)
def test_a_look_that_waits_is_told_by_its_address(path: str, query: bytes, waiting: bool) -> None:
    assert waits(path, query) is waiting


@pytest.mark.parametrize(
    ("pieces", "pause_s", "taken", "closes"),
    [
        ([b"{", b"}"], 0.1, 2, False),
        ([b"{", b"}"], 5.0, 0, True),  # comes too late
        ([b"x" * 40_000] * 9, 0.01, 2, True),  # longer than a body may be
    ],
)
async def test_a_connection_stays_whose_body_nobody_read(
    pieces: list[bytes], pause_s: float, taken: int, closes: bool, autojump_clock: object
) -> None:
    """The body is taken before the answer, or the answer says that the connection ends."""
    del autojump_clock
    waiting, heads = [*pieces], []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 403, "headers": []})

    async def receive() -> Any:
        await trio.sleep(pause_s)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        heads.append(dict(message["headers"]))

    scope = {"type": "http", "path": "/bans", "query_string": b"", "headers": [(b"content-length", b"2")]}
    await Gate(application, 2, stay_of)(scope, receive, send)
    assert len(pieces) - len(waiting) == taken
    assert (heads[0].get(b"connection") == b"close") is closes


def test_what_stands_for_a_slash_is_no_slash_itself() -> None:
    assert path_of(b"/clients/a%2Fb/x", "/clients/a/b/x") == f"/clients/a{SLASH}b/x"
    assert path_of(b"/clients/a%00b", "/clients/a\x00b") == "/clients/a\ufffdb"
    assert path_of(b"/clients/%ff%2f", "/clients/\ufffd/") == f"/clients/\ufffd{SLASH}"
    assert path_of(None, "/a") == path_of(b"/a", "/a") == "/a"
