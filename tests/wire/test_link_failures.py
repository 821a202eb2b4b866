"""The log line about a failed link has the reason, for any behaviour of the peer."""

import contextlib
import logging
import re
import socket
import ssl
from pathlib import Path

import pytest
import trio

from tests.patience import PATIENCE_S
from tests.wire.test_hub import Node, certificates, linked, start
from wire.links.connection import failure_text
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import LinkError, NodeIdentity, encode_hello
from wire.node.lease_holder import LeaseHolder
from wire.node.startup_log import missing_from_routers


def chained(cause: Exception) -> Exception:
    try:
        raise trio.BrokenResourceError from cause
    except trio.BrokenResourceError as error:
        return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (trio.TooSlowError(), "no HELLO within 4 s"),
        (trio.BrokenResourceError(), "the peer closed the connection during the HELLO"),
        (chained(ConnectionResetError(104, "Connection reset by peer")), "[Errno 104] Connection reset by peer"),
        (chained(ConnectionResetError()), "the peer closed the connection during the HELLO"),
        (LinkError("a\nb"), "a?b"),
    ],
)
def test_failure_text_is_never_empty(error: Exception, text: str) -> None:
    assert failure_text(error, "HELLO") == text


async def test_hub_logs_the_step_of_an_abandoned_handshake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line was "refused a link:" without a reason."""
    caplog.set_level(logging.INFO)
    router = Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0"))
    edge = certificates(tmp_path, "edge", "edge-0").client
    async with trio.open_nursery() as nursery:
        host, port = (await start(nursery, router)).rsplit(":", 1)
        for step in ("half a ClientHello", "no TLS", "reset", "no HELLO", "half a HELLO"):
            await trio.to_thread.run_sync(leave, (host, int(port)), step, edge)
        with trio.fail_after(PATIENCE_S):
            while sum("refused a link" in line for line in caplog.messages) < 5:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    lines = [line for line in caplog.messages if "refused a link" in line]
    assert all(re.fullmatch(r"refused a link: \S.{7,}", line) for line in lines), lines


def leave(address: tuple[str, int], step: str, context: ssl.SSLContext) -> None:
    """Open a connection and close it in the middle of a step."""
    plain = socket.create_connection(address, PATIENCE_S)
    if step == "no TLS":
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    elif step in ("half a ClientHello", "reset"):
        plain.sendall(b"\x16\x03\x01\x00\x80\x01\x00")
    else:
        secured = context.wrap_socket(plain, server_hostname="stratamq")
        hello = encode_hello(NodeIdentity("test", "edge-0", "edge", 1))
        secured.sendall(hello[: len(hello) // 2] if step == "half a HELLO" else b"")
        plain = secured
    if step == "reset":
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_WR) if step == "half a ClientHello" else None
    plain.close()


async def test_node_refused_by_a_later_incarnation_reports_the_reason() -> None:
    """It reported that no router answers, or a missing leader, although the router had sent the reason."""
    router, thief = Node("router", "router-0"), Node("storage", "storage-0", incarnation=1 << 42)
    async with linked(router, thief):
        owner = Node("storage", "storage-0", incarnation=7)
        async with trio.open_nursery() as nursery:
            await start(nursery, owner)
            owner.hub.set_seeds([router.hub.identity.address])
            with trio.fail_after(PATIENCE_S):
                while not owner.hub.router_fault:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    holder = LeaseHolder(NodeEntry("storage-0", "storage", 7, "h:1"), lambda *_: True, lambda _: None)
    why = missing_from_routers(holder, 0.0, ("a:1",), owner.hub.router_fault)
    assert why.startswith("no router takes a link of this node: router-0 knows incarnation 4398046511104 of storage-0")
    assert missing_from_routers(holder, 0.0, ("a:1",)) == "no router answers at a:1"


async def test_node_reports_a_router_of_another_authority(tmp_path: Path) -> None:
    """A node with another cluster's certificates reported that no router answers."""
    router = Node("router", "router-0", contexts=certificates(tmp_path / "one", "router", "router-0"))
    storage = Node("storage", "storage-0", contexts=certificates(tmp_path / "other", "storage", "storage-0"))
    async with linked(router, storage, up=False):
        with trio.fail_after(PATIENCE_S):
            while not storage.hub.router_fault:
                await trio.sleep(0.01)
    assert "certificate verify failed" in storage.hub.router_fault
