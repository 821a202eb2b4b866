"""Tests interest at a StrataMQ cluster, from subscriptions made before the agent connected and ends that sent no
event.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio

from conf.errors import UserError
from conf.federate_settings import FEDERATE_DEFAULTS, FederateSettings
from conf.gateway_config import load_gateway
from gateways.federation.interest.cluster_list import ClusterList, build_cluster_list
from gateways.federation.interest.interest import Interest
from gateways.federation.interest.static import StaticFilters, set_configured
from gateways.federation.interest.stratamq import PREFIX, SessionEventAdapter
from stratamq.federate_folder import make_folder
from tests.patience import PATIENCE_S

TOKEN = "smq_token"
OWN = "stratamq-federate-a"


def row(client: str, topic_filter: str, qos: int = 1) -> dict[str, object]:
    return {"client_id": client, "filter": topic_filter, "qos": qos}


class InterestRig:
    """An adapter, its clock and the interest it reports."""

    def __init__(self, filters_max: int = 10_000) -> None:
        self.interest = Interest([OWN], 60.0, filters_max)
        self.adapter = SessionEventAdapter(self.interest, filters_max)
        self.wanted: dict[str, int] = {}
        self.now = 1_000.0

    def event(self, kind: str, client: str, topic_filter: str = "", qos: int = 1) -> None:
        self.now += 1.0
        payload = json.dumps({"client": client, "filter": topic_filter, "qos": qos}).encode()
        self.adapter.received(self.now, PREFIX + kind, payload)

    def list(self, *rows: Any, is_whole: bool = True) -> bool:
        self.now += 10.0
        self.adapter.begin_list(self.now)
        self.adapter.page(rows)
        return self.adapter.end_list(is_whole)

    def interests(self) -> dict[str, int]:
        change = self.interest.take_change()
        if change is not None:
            self.wanted |= change.added
            for each in change.removed:
                del self.wanted[each]
        return self.wanted


def test_earlier_subscriptions_count() -> None:
    """Subscriptions of the agent itself are excluded, as they would never end; groups count as their filter."""
    rig = InterestRig()
    assert rig.adapter.is_due
    assert rig.list(row("c", "a/#"), row("d", "a/#", 2), row(OWN, "b/#"), row("e", "$share/g/s/+"), row("e", "$SYS/#"))
    assert rig.interests() == {"a/#": 2, "s/+": 1}
    assert not rig.adapter.is_due


def test_two_complete_lists_end_missing_filters() -> None:
    """One list is not enough, since a client that moves between nodes can be missing from it."""
    rig = InterestRig()
    rig.list(row("c", "a"))
    rig.list()
    assert rig.interests() == {"a": 1}
    rig.list()
    assert rig.interests() == {}


def test_an_incomplete_list_removes_nothing() -> None:
    """It only adds filters. A list with invalid rows or above the limit is not complete either."""
    rig = InterestRig(filters_max=2)
    rig.list(row("c", "a"))
    for _ in range(3):
        assert not rig.list(row("c", "b"), is_whole=False)
        assert not rig.list({"client_id": 3}, row("c", "b"))
        assert not rig.list(row("c", "b"), row("c", "c"), row("c", "d"))
    assert set(rig.interests()) == {"a", "b"}
    assert rig.interest.counts["lists_in_part"] == 9


def test_events_count_at_once_and_lists_for_silent_clients() -> None:
    """A client not listed since the list before last is dropped; one that subscribed meanwhile is kept."""
    rig = InterestRig()
    rig.event("subscribed", "lost", "old")  # its end is never reported
    rig.list(row("c", "a"))
    rig.event("subscribed", "new", "n")
    rig.list(row("c", "a"))
    assert set(rig.interests()) == {"a", "n"}
    rig.list(row("c", "a"), row("new", "n"))
    assert set(rig.interests()) == {"a", "n"}
    rig.event("unsubscribed", "new", "n")
    rig.list(row("c", "a"))
    rig.list(row("c", "a"))
    assert set(rig.interests()) == {"a"}


def test_a_later_process_continues_with_listed_filters() -> None:
    """The filters stay until two complete lists of its own end them; a reconnect makes a list due."""
    rig = InterestRig()
    rig.list(row("c", "a"), row("c", "b"))
    kept = {write.key: write.value for write in rig.interest.take_rows()}  # type: ignore[union-attr]
    later = InterestRig()
    later.interest.restore(kept.items())
    later.list(row("c", "b"))
    assert set(later.interests()) == {"a", "b"}
    later.list(row("c", "b"))
    assert set(later.interests()) == {"b"}
    later.adapter.disconnected(later.now)
    assert later.adapter.reconnected(later.now, True) and later.adapter.is_due


def test_invalid_mqtt_text_is_counted() -> None:
    """JSON can contain a lone surrogate, which the spool's rows cannot store."""
    rig = InterestRig()
    rig.event("subscribed", "\ud800", "a")
    rig.event("subscribed", "c", "\ud800")
    assert rig.interest.counts["unreadable"] == 2
    assert rig.interests() == {} and not rig.interest.take_rows()


def test_configured_filters_outlive_a_gap() -> None:
    """They used to be dropped ``interest_s`` after the broker had been unreachable, like those of a client."""
    interest = Interest([], 60.0)
    adapter = SessionEventAdapter(interest)
    set_configured(interest, ["plant/#"])
    adapter.disconnected(0.0)
    adapter.reconnected(100.0, False)
    interest.expire(1_000_000.0)
    assert interest.take_change() is not None and len(interest) == 1


def test_a_client_cannot_remove_configured_filters() -> None:
    """A client used to remove them by having the internal name of the configured source and unsubscribing."""
    interest = Interest([], 60.0)
    set_configured(StaticFilters(interest).interest, ["plant/#"])
    for name in ("$configured", "configured", "$listed"):
        interest.unsubscribed(name, "plant/#")
        interest.connected(name, is_persistent=False)
        interest.session_ended(name)
    assert len(interest) == 1


# --- the reader, with a real HTTP server


@contextmanager
def served(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Serve pages by cursor; yield the address and the received headers."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            came.append(self.headers.get("Authorization", ""))
            status, body = answer(query.get("cursor", [""])[0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings_of(folder: Path, api: str, *flags: str) -> FederateSettings:
    folder.chmod(0o700)
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    path, _ = make_folder(folder, "plants", ["a", "b"], ["a-b"])
    given = ["federate.host_kind=stratamq", f"federate.api={api}", f"federate.api_token_file={folder}/token", *flags]
    kind = ("federate", FederateSettings)
    return load_gateway(kind, FEDERATE_DEFAULTS, path, environment={}, flags=given).settings


def reader(folder: Path, api: str) -> tuple[InterestRig, ClusterList]:
    rig = InterestRig()
    return rig, build_cluster_list(settings_of(folder, api), rig.adapter, lambda: True, lambda: None)


async def wait_reason(found: ClusterList, words: str) -> None:
    """Run a reader until it reports why no list is complete; "" means a complete one."""
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            while not (found.why == words if not words else words in found.why):
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


def page(rows: list[Any], **more: object) -> bytes:
    return json.dumps({"rows": rows, "cursor": "", "complete": True, "partial": [], "restarted": []} | more).encode()


async def test_pages_are_read_to_the_end(tmp_path: Path) -> None:
    """With the token, and with the cursor of the previous page."""
    pages = {"": page([row("c", "a")], cursor="x&y"), "x&y": page([row("d", "b")])}
    with served(lambda cursor: (200, pages[cursor])) as (api, came):
        rig, found = reader(tmp_path, api)
        await wait_reason(found, "")
    assert set(rig.interests()) == {"a", "b"} and set(came) == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, b"{}"), "status 401"),
        ((200, b"<html>"), "is no list"),
        ((200, b"[]"), "is no list"),
        ((200, b"[" * 100_000), "is no list"),
        ((200, b'{"rows": 3}'), "is no list"),
        ((200, page([3, None, {"client_id": "c"}])), "invalid rows"),
        ((200, b'{"rows": [{"client_id": "c", "filter": "\\ud800"}]}'), "invalid rows"),
        ((200, page([row("c", "a")], complete=False, partial=[{"node": "edge-1"}])), "edge-1"),
        ((200, page([row("c", "a")], restarted=["edge-1"])), "not all nodes"),
        ((200, b" " * (4 * 1024 * 1024 + 1)), "a page of more than"),
    ],
)
async def test_an_invalid_list_removes_nothing(tmp_path: Path, answer: tuple[int, bytes], words: str) -> None:
    """The reason is reported and the known filters stay."""
    with served(lambda _: answer) as (api, _):
        rig, found = reader(tmp_path, api)
        rig.list(row("c", "known"))
        await wait_reason(found, words)
    assert "known" in rig.interests()


async def test_an_unreachable_service(tmp_path: Path) -> None:
    """The request is retried."""
    with served(lambda _: (200, page([]))) as (api, _):
        pass
    _, found = reader(tmp_path, api)
    await wait_reason(found, "refused")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["federate.api=http://example.org:80"], "a token needs https"),
        (["federate.api=ftp://127.0.0.1"], "http:// or https:// with a host"),
        (["federate.api=http://127.0.0.1:1/path"], r"write http\(s\)://host:port"),
        (["federate.api=http://127.0.0.1:1?key=a"], r"http://127.0.0.1:1\?\*\*\*: write http"),
        (["federate.api=http://127.0.0.1:99999"], "federate.api"),
        (["federate.host_kind=mosquitto"], "api is for host_kind = stratamq"),
        (["federate.api_token_file=/nowhere"], "/nowhere"),
    ],
)
def test_invalid_settings(tmp_path: Path, flags: list[str], line: str) -> None:
    """Each is one line, before anything starts."""
    with pytest.raises(UserError, match=line):
        settings = settings_of(tmp_path, "http://127.0.0.1:1", *flags)
        build_cluster_list(settings, InterestRig().adapter, lambda: True, lambda: None)


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"client":' * 20_000,
        b'{"client": "c", "qos": 1e999}',
        b'{"client": "\xff"}',
        b'{"client": "\\ud800"}',
    ],
)
def test_an_invalid_event_is_counted(payload: bytes) -> None:
    """Deep nesting and an infinite QoS used to terminate the agent."""
    rig = InterestRig()
    rig.adapter.received(1.0, PREFIX + "subscribed", payload)
    assert rig.interest.counts["unreadable"] == 1
