"""The balancer's end of a hand-over: answers in order, an edge that is silent, gone, or says what nobody asked."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from gateways.balancer import hand_over
from gateways.balancer.hand_over import EdgeSocket
from tests.patience import PATIENCE_S
from wire.clock import boot_time
from wire.messages.socket_handoff import HandoffReply


class Edge:
    """An edge's socket that answers as a test says."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(str(path))
        self.listening.listen()
        self.listening.setblocking(False)
        self.got = 0

    async def accept(self) -> socket.socket:
        with trio.fail_after(PATIENCE_S):
            await trio.lowlevel.wait_readable(self.listening)
        return self.listening.accept()[0]

    async def take(self, connection: socket.socket) -> None:
        with trio.fail_after(PATIENCE_S):
            await trio.lowlevel.wait_readable(connection)
        _, descriptors, _, _ = socket.recv_fds(connection, 512, 4)
        for fd in descriptors:
            os.close(fd)
        self.got += len(descriptors)


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        yield one


@contextlib.asynccontextmanager
async def asking(tmp_path: Path) -> AsyncIterator[tuple[Edge, EdgeSocket, list[HandoffReply | None]]]:
    path = tmp_path / "hand-over.sock"
    edge = Edge(path)
    told: list[HandoffReply | None] = []
    async with trio.open_nursery() as nursery:
        with edge.listening:
            yield edge, EdgeSocket(str(path), nursery.start_soon), told
        nursery.cancel_scope.cancel()


async def until(told: list[HandoffReply | None], count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while len(told) < count:
            await trio.sleep(0.001)


async def test_many_are_under_way_and_answered_in_order(tmp_path: Path, client: socket.socket) -> None:
    async with asking(tmp_path) as (edge, to, told):
        for _ in range(3):
            assert to.offer(client, "tls", boot_time(), told.append)
        connection = await edge.accept()
        with connection:
            for answer in (HandoffReply.TAKEN, HandoffReply.FULL, HandoffReply.DRAINING):
                await edge.take(connection)
                connection.send(bytes((answer,)))
            await until(told, 3)
            assert (
                told == [HandoffReply.TAKEN, HandoffReply.FULL, HandoffReply.DRAINING] and edge.got == 3 and to.is_idle
            )
            assert to.offer(client, "tls", boot_time(), told.append)  # over the same connection
            await edge.take(connection)
            connection.send(b"\0")
            await until(told, 4)


@pytest.mark.parametrize("how", ["silent", "gone", "nonsense", "unasked"])
async def test_an_edge_that_does_not_answer_is_asked_no_more(
    tmp_path: Path, client: socket.socket, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits is told so at once, and the next offer begins a new connection."""
    monkeypatch.setattr(hand_over, "ANSWER_S", 0.1)
    async with asking(tmp_path) as (edge, to, told):
        for _ in range(2):
            assert to.offer(client, "tls", boot_time(), told.append)
        connection = await edge.accept()
        if how == "gone":
            connection.close()
        elif how == "nonsense":
            connection.send(b"\xff")
        elif how == "unasked":
            connection.send(b"\0")
            connection.send(b"\3")
            connection.send(b"\0")
        await until(told, 2)
        assert told == ([HandoffReply.TAKEN, HandoffReply.FULL] if how == "unasked" else [None, None])
        connection.close()
        await trio.sleep(0.01)
        told.clear()
        assert to.offer(client, "tls", boot_time(), told.append)
        with await edge.accept() as again:
            await edge.take(again)
            again.send(b"\0")
            await until(told, 1)
        assert told == [HandoffReply.TAKEN]


async def test_nobody_there_is_told_at_once(tmp_path: Path, client: socket.socket) -> None:
    async with trio.open_nursery() as nursery:
        to = EdgeSocket(str(tmp_path / "none" / "hand-over.sock"), nursery.start_soon)
        assert not to.offer(client, "tls", boot_time(), lambda _: None)
        assert to.is_idle


async def test_an_edge_that_does_not_read_keeps_what_it_has(tmp_path: Path, client: socket.socket) -> None:
    """A further offer is turned away; those that it has stand, and its answers to them count."""
    async with asking(tmp_path) as (edge, to, told):
        offered = 0
        while to.offer(client, "tls", boot_time(), told.append):
            offered += 1
        assert offered > 10 and not told
        with await edge.accept() as connection:
            for _ in range(offered):
                await edge.take(connection)
                connection.send(b"\0")
            await until(told, offered)
            assert told == [HandoffReply.TAKEN] * offered
            assert to.offer(client, "tls", boot_time(), told.append)  # over the same connection
            await edge.take(connection)


@pytest.mark.parametrize("how", ["closes", "does not answer one"])
async def test_answers_that_came_count_when_the_connection_ends(
    tmp_path: Path, client: socket.socket, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that an edge took goes to no other one, whatever ends the connection at that moment."""
    monkeypatch.setattr(hand_over, "ANSWER_S", 0.1)
    async with asking(tmp_path) as (edge, to, told):
        for _ in range(3):
            assert to.offer(client, "tls", boot_time(), told.append)
        with await edge.accept() as connection:
            connection.send(b"\0")
            connection.send(b"\0")
            if how == "closes":
                connection.close()
                assert not to.offer(client, "tls", boot_time(), told.append)  # before the answers are looked at
            await until(told, 3)
    assert told == [HandoffReply.TAKEN, HandoffReply.TAKEN, None]
