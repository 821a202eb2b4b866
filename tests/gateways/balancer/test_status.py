"""Status sockets of balancer and bridges: early disconnections, and exhausted descriptors."""

import contextlib
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from edge.listeners.handoff_socket import HandoffSocket
from edge.listeners.socket_handoff import SocketHandoff
from gateways.balancer.status import StatusSocket
from gateways.bridges.report import Rates
from gateways.bridges.service import STATUS_SOCKET, _serve_status
from tests.patience import PATIENCE_S
from wire.messages.socket_handoff import HandoffReply

Serve = Callable[[], Awaitable[None]]


def socket_of(kind: str, folder: Path) -> tuple[Path, Serve]:
    """Return a path, and the function that serves it."""
    if kind == "balancer":
        return folder / "status.sock", StatusSocket(folder, lambda: {"edges": ["x" * 1_000] * 1_000}).run
    if kind == "bridges":
        return folder / STATUS_SOCKET, partial(_serve_status, folder / STATUS_SOCKET, [], Rates())
    desk = SocketHandoff(lambda _: HandoffReply.TAKEN, lambda *_: None, lambda _: None)
    return folder / "hand-over.sock", HandoffSocket(folder, desk, lambda _: None, lambda: None).run


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Exhaust this process's descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def answered(path: Path) -> bytes:
    """Connect, and return the first bytes."""
    with trio.fail_after(PATIENCE_S):
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):  # bound, and not yet listening
                async with await trio.open_unix_socket(path) as stream:
                    return await stream.receive_some(100)
            await trio.sleep(0.01)


@pytest.mark.parametrize("kind", ["balancer", "bridges"])
async def test_status_socket_survives_early_disconnect(kind: str, tmp_path: Path) -> None:
    path, serve = socket_of(kind, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        assert await answered(path)
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(path))
            await trio.sleep(0.001)
        assert await answered(path)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["balancer", "bridges", "hand-over"])
async def test_status_socket_without_descriptor_retries(kind: str, tmp_path: Path) -> None:
    """A connection stays in the backlog; the process neither ends nor spins."""
    path, serve = socket_of(kind, tmp_path)
    kind_of_socket = socket.SOCK_SEQPACKET if kind == "hand-over" else socket.SOCK_STREAM
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with trio.fail_after(PATIENCE_S):
            while not path.exists():
                await trio.sleep(0.01)
        await trio.sleep(0.05)
        with socket.socket(socket.AF_UNIX, kind_of_socket) as connection:
            with no_descriptors():
                connection.connect(str(path))
                await trio.sleep(0.05)
            connection.setblocking(False)
            if kind == "hand-over":
                connection.send(b"nonsense")
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(connection)
            assert connection.recv(1)
        nursery.cancel_scope.cancel()
