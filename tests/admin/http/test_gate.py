"""Request admission: concurrency limits of each kind of request, independent of each other."""

import json
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from admin.http import request_admission
from admin.http.problems import Problem
from admin.http.query_handlers import waits
from admin.http.request_admission import ADMIT, SLASH, RequestAdmission, RequestSlot, path_of
from conf.served_hosts import ServedHosts


def stay_of(path: str, _: bytes) -> RequestSlot:
    return {"/live": RequestSlot.STREAM, "/wait": RequestSlot.WAIT}.get(path, RequestSlot.SHORT)


class Asked:
    """Requests to an admission whose application names its caller and takes time."""

    def __init__(self, requests_max: int = 4) -> None:
        self.statuses: Counter[tuple[str, str, int]] = Counter()  # (path, caller, status)
        self.gate = RequestAdmission(self._application, requests_max, stay_of)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        del receive
        try:
            if caller := scope["caller"]:
                scope["state"][ADMIT](caller)
            await trio.sleep(5)
            status = 200
        except Problem as problem:
            status = problem.status
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def ask(self, path: str, caller: str = "ann", address: str = "192.0.2.1", body_s: float = 0.0) -> None:
        """Send one request; the body, if any, is sent after a delay."""

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses[path, caller, message["status"]] += 1

        async def receive() -> Any:
            await trio.sleep(body_s)
            return {"type": "http.request", "body": b"{}"}

        scope = {"type": "http", "path": path, "query_string": b"", "client": (address, 1), "caller": caller}
        headers = [(b"content-length", b"2")] if body_s else []
        await self.gate(scope | {"headers": headers}, receive, send)


async def test_admission_limits_each_kind_separately(monkeypatch: pytest.MonkeyPatch, autojump_clock: object) -> None:
    """Four slots of each: a caller gets half, the third request of a kind gets 503, and slots become free again."""
    del autojump_clock
    monkeypatch.setattr(request_admission, "WAITS_MAX", 4)
    monkeypatch.setattr(request_admission, "STREAMS_MAX", 4)
    asked = Asked()
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for path in ("/live", "/wait", "/short"):
                for _ in range(3):
                    nursery.start_soon(asked.ask, path)
    paths = ("/live", "/wait", "/short")
    assert asked.statuses == {(path, "ann", code): 4 - code % 2 * 2 for path in paths for code in (200, 503)}
    assert asked.gate.refused == 6


async def test_admission_one_caller_leaves_slots_for_others(autojump_clock: object) -> None:
    """Regardless of one caller's requests, another one gets a slot."""
    del autojump_clock
    asked = Asked(requests_max=8)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(asked.ask, "/short", "viewer")
        await trio.sleep(1)
        for _ in range(2):
            nursery.start_soon(asked.ask, "/short", "admin")
    assert asked.statuses["/short", "viewer", 200] == 4 and asked.statuses["/short", "admin", 200] == 2


@pytest.mark.parametrize("addresses", [1, 16])
async def test_admission_slow_bodies_block_no_other_request(addresses: int, autojump_clock: object) -> None:
    """400 incomplete bodies: other requests are served at once, and each of them ends after 5 s."""
    del autojump_clock
    asked = Asked(requests_max=8)
    async with trio.open_nursery() as nursery:
        for number in range(400):
            nursery.start_soon(asked.ask, "/slow", "", f"198.51.100.{number % addresses}", 60.0)
        await trio.sleep(0.1)
        for number in range(8):
            nursery.start_soon(asked.ask, "/short", f"caller-{number % 4}", "192.0.2.1")
            nursery.start_soon(asked.ask, "/login", "", "192.0.2.2")
        await trio.sleep(5.1)
        assert asked.statuses["/login", "", 200] == 8
        assert sum(asked.statuses["/short", f"caller-{number}", 200] for number in range(4)) >= 6
    assert asked.statuses["/slow", "", 200] == 0
    assert asked.statuses["/slow", "", 408] + asked.statuses["/slow", "", 503] == 400


@pytest.mark.parametrize(
    ("path", "query", "waiting"),
    [
        ("/api/v1/looks/trace", b"node=e&wait_ms=5000", True),
        ("/api/v1/looks/trace", b"node=e&wait_ms=0", False),
        ("/api/v1/looks/trace", b"node=e", False),
        ("/api/v1/nodes", b"wait_ms=5000", False),
    ],
)
def test_waits_recognizes_waiting_query(path: str, query: bytes, waiting: bool) -> None:
    assert waits(path, query) is waiting


@pytest.mark.parametrize(
    ("pieces", "pause_s", "taken", "closes"),
    [
        ([b"{", b"}"], 0.1, 2, False),
        ([b"{", b"}"], 6.0, 0, True),  # arrives too late
        ([b"x" * 40_000] * 9, 0.01, 4, True),  # longer than the maximum
    ],
)
async def test_admission_unread_body_keeps_connection_consistent(
    pieces: list[bytes], pause_s: float, taken: int, closes: bool, autojump_clock: object
) -> None:
    """The body is read before the response, or the response announces the close."""
    del autojump_clock
    waiting, heads = [*pieces], []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 403, "headers": []})

    async def receive() -> Any:
        await trio.sleep(pause_s)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        heads.append(dict(message.get("headers", ())))

    scope = {"type": "http", "path": "/bans", "query_string": b"", "headers": [(b"content-length", b"2")]}
    await RequestAdmission(application, 2, stay_of)(scope, receive, send)
    assert len(pieces) - len(waiting) == taken
    assert (heads[0].get(b"connection") == b"close") is closes


def test_path_of_placeholder_is_not_a_slash() -> None:
    assert path_of(b"/clients/a%2Fb/x", "/clients/a/b/x") == f"/clients/a{SLASH}b/x"
    assert path_of(b"/clients/a%00b", "/clients/a\x00b") == "/clients/a\ufffdb"
    assert path_of(b"/clients/%ff%2f", "/clients/\ufffd/") == f"/clients/\ufffd{SLASH}"
    assert path_of(None, "/a") == path_of(b"/a", "/a") == "/a"


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([b"localhost:18083"], 200),
        ([b"127.0.0.1:1"], 200),
        ([b"[::1]:18083"], 200),
        ([b"10.0.0.5:18083"], 200),  # local address of the connection
        ([b"ops.example"], 200),
        ([b"OPS.example.:443"], 200),
        ([b"a.wild.example"], 200),
        ([], 200),  # HTTP/1.0: not a browser
        ([b"evil.example:18083"], 421),
        ([b"10.0.0.6:18083"], 421),
        ([b"a.b.wild.example"], 421),
        ([b"localhost", b"localhost"], 421),
        ([b"localhost@evil.example"], 421),
        ([b"evil.example/localhost"], 421),
        ([b""], 421),
        ([b"\xff"], 421),
    ],
)
async def test_a_request_for_another_host_is_refused(hosts: list[bytes], status: int) -> None:
    """DNS rebinding: the page's own name is in Host. The response names the setting."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    served = ServedHosts(["ops.example", "*.wild.example"])
    one = RequestAdmission(application, 4, stay_of, hosts=lambda: served)
    headers = [(b"host", host) for host in hosts]
    scope = {
        "type": "http",
        "path": "/short",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        "server": ("10.0.0.5", 1),
    }
    await one(scope, receive, send)
    assert sent[0]["status"] == status and one.misdirected == (status == 421)
    if status == 421:
        assert json.loads(sent[1]["body"])["code"] == "misdirected" and b"admin.hosts" in sent[1]["body"]
