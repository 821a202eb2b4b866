"""Webhooks, Redis Streams and files with third-party programs, each killed or broken once."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio

from conf.bridge_settings import GatewaySettings, MapSettings, Webhook
from conf.url_settings import HttpUrl
from gateways.bridges.webhook import build_webhook
from mqtt.packets import Publish
from tests.free_ports import free_port
from tests.gateways.bridges.fault_run import BridgeProcess
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
REDIS = shutil.which("redis-server")
TOPICS = 4
PAGES = ("page", "endless")
PAGE = b"<h1>500 Internal Server Error</h1>"


def packets(begin: int, end: int) -> list[Publish]:
    return [Publish(f"u/{number % TOPICS}", b"%d" % number, 1) for number in range(begin, end)]


def in_order(found: list[tuple[str, int]]) -> bool:
    """Return whether the first arrivals of each topic are in the order of publishing."""
    for topic in {name for name, _ in found}:
        first = list(dict.fromkeys(number for name, number in found if name == topic))
        if first != sorted(first):
            return False
    return True


def settings(kind: str, port: int, lines: str, rule: str = "") -> str:
    return f"""
[bridge.under]
kind = "{kind}"
cluster = ["mqtt://127.0.0.1:{port}"]
client_id = "under"
{lines}
[[bridge.under.map]]
filter = "u/#"
{rule}
"""


TOKEN = "Zq7-in-a-query"


class Hook(ThreadingHTTPServer):
    """A server with scripted answers, and success afterwards."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[str] = []
        self.bodies: list[tuple[dict[str, str], bytes]] = []
        self.refused: set[int] = set()
        self.paths: set[str] = set()
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.paths.add(self.path)
            answer = self.server.answers.pop(0) if self.server.answers else "200"
        numbers = {number(each) for each in json.loads(body)}
        if answer == "close":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if answer == "stall":
            self.connection.recv(1)  # until the client closes
            return
        if answer in ("200", *PAGES) and numbers & self.server.refused:
            answer = "422"
        elif answer == "200":
            with self.server.lock:
                self.server.bodies.append((dict(self.headers), body))
        if answer in PAGES:
            self._send_page(answer, body)
            return
        self.send_response(int(answer))
        if answer == "302":
            self.send_header("location", "http://127.0.0.1:1/")
        if answer == "429":
            self.send_header("retry-after", "1")
        self.send_header("set-cookie", f"mine-{len(self.server.bodies)}=1")
        self.send_header("content-length", "0")
        self.end_headers()

    def _send_page(self, answer: str, body: bytes) -> None:
        """Send status 200 with an error page, or with an endless body."""
        with self.server.lock:
            self.server.bodies.append((dict(self.headers), body))
        if answer == "endless":
            self.do_OPTIONS()
            return
        self.send_response(200)
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def do_OPTIONS(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:  # without end
                self.wfile.write(b"x" * 65_536)

    def log_message(self, *_: Any) -> None:
        """Suppress the log."""


def number(found: dict[str, Any]) -> int:
    import base64

    return int(base64.b64decode(found["payload"]))


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


async def test_webhook_failing_server_receives_all_records(tmp_path: Path, hook: Hook) -> None:
    """Closed, stalled, redirected, 429 and 500; a record that is refused alone goes to the dead letter.

    2xx means done, whatever the length and content of the body.
    """
    hook.answers = ["close", "stall", "302", "429", "500", "endless", "page"]
    hook.refused = {17}
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("key\n")
    url = tmp_path / "url"
    url.touch(mode=0o600)
    url.write_text(f"http://127.0.0.1:{hook.server_address[1]}/in?token={TOKEN}\n")
    lines = f'url = "file:{url}"\nsecret_file = "{secret}"\ntimeout_s = 1.0'
    async with running_mosquitto(tmp_path) as broker, gathering(broker.port, "dead", "bridge/#") as dead:
        bridge = BridgeProcess(tmp_path, settings("webhook", broker.port, lines))
        bridge.start()
        try:
            await bridge.ready()
            await publish_all(broker.port, packets(0, 60))
            assert await dead.payloads(1, 60) == [b"17"]
            with trio.fail_after(60):
                while len({number(each) for _, body in hook.bodies for each in json.loads(body)}) < 59:
                    await trio.sleep(0.05)
        finally:
            bridge.kill()
    assert hook.paths == {f"/in?token={TOKEN}"}
    log = bridge.log.read_text()
    assert TOKEN not in log and "httpx" not in log and "httpcore" not in log and "ready" in log
    found = [(each["topic"], number(each)) for _, body in hook.bodies for each in json.loads(body)]
    assert {value for _, value in found} == set(range(60)) - {17}
    assert in_order(found)
    for headers, body in hook.bodies:
        lower = {name.lower(): value for name, value in headers.items()}
        assert lower["x-signature"] == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()
        assert lower["idempotency-key"] and "cookie" not in lower


async def test_webhook_check_ignores_endless_body(tmp_path: Path, hook: Hook) -> None:
    """The status is sufficient."""
    made = Webhook(
        kind="webhook",
        cluster=("mqtt://localhost",),
        client_id="hook",
        url=HttpUrl(f"http://127.0.0.1:{hook.server_address[1]}/in"),
        map=(MapSettings(filter="u/#"),),
    )
    bridge = build_webhook("hook", made, GatewaySettings(id="bridge-1", data_dir=tmp_path))
    with trio.fail_after(PATIENCE_S):
        [found] = await bridge.checks[1]()
    assert found.ok and "status 200" in found.text


@pytest.mark.parametrize(("status", "ok"), [(200, True), (404, True), (501, True), (500, False), (503, False)])
async def test_webhook_check_fails_only_on_server_error(tmp_path: Path, status: int, ok: bool) -> None:
    """501 means that OPTIONS is not implemented: the server is reachable."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n".encode())

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        made = Webhook(
            kind="webhook",
            cluster=("mqtt://localhost",),
            client_id="hook",
            url=HttpUrl(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/in"),
            map=(MapSettings(filter="u/#"),),
        )
        with trio.fail_after(PATIENCE_S):
            [found] = await build_webhook("hook", made, GatewaySettings(data_dir=tmp_path)).checks[1]()
        nursery.cancel_scope.cancel()
    assert (found.ok, f"status {status}" in found.text) == (ok, True)


@asynccontextmanager
async def running_redis(folder: Path) -> AsyncIterator[int]:
    port = free_port()
    command = [str(REDIS), "--port", str(port), "--save", "", "--dir", str(folder)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.01)  # polling: no event signals an open port
        yield port
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed (Debian: redis-server)")
async def test_redis_streams_both_ways(tmp_path: Path) -> None:
    """A sink and a source in one process, killed: every entry arrives in the order of its topic, and none stays
    pending.
    """
    redis = pytest.importorskip("redis", reason="the extra redis is not installed")
    async with (
        running_mosquitto(tmp_path) as broker,
        running_redis(tmp_path) as port,
        gathering(broker.port, "reader", "back/#") as reader,
    ):
        text = settings("redis-sink", broker.port, f"redis_port = {port}", 'topic = "stream"')
        back = settings("redis-source", broker.port, f'redis_port = {port}\nconsumer_group = "g"', 'topic = "back/x"')
        back = back.replace("bridge.under", "bridge.back").replace('"under"', '"back"').replace('"u/#"', '"stream"')
        bridge = BridgeProcess(tmp_path, text + back)
        bridge.start()
        try:
            await bridge.ready()
            await publish_all(broker.port, packets(0, 100))
            bridge.kill()
            bridge.start()
            await publish_all(broker.port, packets(100, 200))
            payloads = await reader.payloads(200)
            client = redis.Redis(port=port)
            with trio.fail_after(PATIENCE_S):
                while await trio.to_thread.run_sync(lambda: client.xpending("stream", "g")["pending"]):
                    await trio.sleep(0.05)
            entries = client.xrange("stream")
        finally:
            bridge.kill()
    assert {int(payload) for payload in payloads} == set(range(200))
    assert in_order([(fields[b"topic"].decode(), int(fields[b"payload"])) for _, fields in entries])
    assert all(fields[b"ref"].startswith(b"under:") for _, fields in entries)
    assert int(reader.messages[0].payload) == 0


async def test_files_keep_acknowledged_records_after_kill(tmp_path: Path) -> None:
    """Batches of the killed process are converted to Parquet by the next one."""
    import pyarrow.parquet

    folder = tmp_path / "archive"
    lines = f'folder = "{folder}"\nrotate_s = 0.5'
    async with running_mosquitto(tmp_path) as broker:
        bridge = BridgeProcess(tmp_path, settings("files", broker.port, lines))
        bridge.start()
        try:
            await bridge.ready()
            await publish_all(broker.port, packets(0, 100))
            bridge.kill()
            bridge.start()
            await publish_all(broker.port, packets(100, 200))

            def rows() -> list[tuple[str, int]]:
                tables = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))]
                return [(row["topic"], int(row["payload"])) for table in tables for row in table.to_pylist()]

            with trio.fail_after(PATIENCE_S):
                while len({value for _, value in await trio.to_thread.run_sync(rows)}) < 200:
                    await trio.sleep(0.1)
            found = rows()
        finally:
            bridge.kill()
    assert in_order(found)
    assert not list(folder.glob("*.tmp"))


async def test_files_of_killed_process_are_converted_at_start(tmp_path: Path) -> None:
    """Also files of removed members, but not those of a bridge whose name has the same prefix."""
    import pyarrow.parquet

    folder = tmp_path / "archive"
    lines = f'folder = "{folder}"\nrotate_s = 600.0'
    async with running_mosquitto(tmp_path) as broker:
        bridge = BridgeProcess(tmp_path, settings("files", broker.port, f"shares = 3\n{lines}"))
        bridge.start()
        await bridge.ready()
        await publish_all(broker.port, packets(0, 90))

        def open_files() -> list[Path]:
            return sorted(folder.glob("under-*.arrows.open"))

        with trio.fail_after(PATIENCE_S):
            while sum(row["delivered"] for row in await trio.to_thread.run_sync(bridge.rows)) < 90:
                await trio.sleep(0.05)
        bridge.kill()
        assert len(open_files()) == 3
        other = folder / "under-0-0-1.arrows.open"  # of a bridge named "under-0"
        other.write_bytes(b"")
        bridge.file.write_text(bridge.file.read_text().replace("shares = 3\n", ""))
        bridge.start()
        try:
            with trio.fail_after(PATIENCE_S):
                while open_files() != [other]:
                    await trio.sleep(0.05)
        finally:
            bridge.kill()
    rows = [row for path in folder.glob("*.parquet") for row in pyarrow.parquet.read_table(path).to_pylist()]
    assert sorted(int(row["payload"]) for row in rows) == list(range(90))
