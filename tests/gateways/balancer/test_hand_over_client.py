"""The balancer's end of a hand-over: ordered answers; a silent or closed edge, and invalid answers."""

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
    """An edge's socket with scripted answers."""

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
async def edge_socket(tmp_path: Path) -> AsyncIterator[tuple[Edge, EdgeSocket, list[HandoffReply | None]]]:
    path = tmp_path / "hand-over.sock"
    edge = Edge(path)
    answers: list[HandoffReply | None] = []
    async with trio.open_nursery() as nursery:
        with edge.listening:
            yield edge, EdgeSocket(str(path), nursery.start_soon), answers
        nursery.cancel_scope.cancel()


async def wait_for_answers(answers: list[HandoffReply | None], count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while len(answers) < count:
            await trio.sleep(0.001)


async def test_hand_over_pipelined_offers_are_answered_in_order(tmp_path: Path, client: socket.socket) -> None:
    async with edge_socket(tmp_path) as (edge, to, answers):
        for _ in range(3):
            assert to.offer(client, "tls", boot_time(), answers.append)
        connection = await edge.accept()
        with connection:
            for answer in (HandoffReply.TAKEN, HandoffReply.FULL, HandoffReply.DRAINING):
                await edge.take(connection)
                connection.send(bytes((answer,)))
            await wait_for_answers(answers, 3)
            assert (
                answers == [HandoffReply.TAKEN, HandoffReply.FULL, HandoffReply.DRAINING]
                and edge.got == 3
                and to.is_idle
            )
            assert to.offer(client, "tls", boot_time(), answers.append)  # over the same connection
            await edge.take(connection)
            connection.send(b"\0")
            await wait_for_answers(answers, 4)


@pytest.mark.parametrize("failure", ["silent", "gone", "nonsense", "unasked"])
async def test_hand_over_failed_edge_connection_is_replaced(
    tmp_path: Path, client: socket.socket, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending offers get None at once, and the next offer opens a new connection."""
    monkeypatch.setattr(hand_over, "ANSWER_S", 0.1)
    async with edge_socket(tmp_path) as (edge, to, answers):
        for _ in range(2):
            assert to.offer(client, "tls", boot_time(), answers.append)
        connection = await edge.accept()
        if failure == "gone":
            connection.close()
        elif failure == "nonsense":
            connection.send(b"\xff")
        elif failure == "unasked":
            connection.send(b"\0")
            connection.send(b"\3")
            connection.send(b"\0")
        await wait_for_answers(answers, 2)
        assert answers == ([HandoffReply.TAKEN, HandoffReply.FULL] if failure == "unasked" else [None, None])
        connection.close()
        await trio.sleep(0.01)
        answers.clear()
        assert to.offer(client, "tls", boot_time(), answers.append)
        with await edge.accept() as reconnected:
            await edge.take(reconnected)
            reconnected.send(b"\0")
            await wait_for_answers(answers, 1)
        assert answers == [HandoffReply.TAKEN]


async def test_hand_over_missing_socket_refuses_offer(tmp_path: Path, client: socket.socket) -> None:
    async with trio.open_nursery() as nursery:
        to = EdgeSocket(str(tmp_path / "none" / "hand-over.sock"), nursery.start_soon)
        assert not to.offer(client, "tls", boot_time(), lambda _: None)
        assert to.is_idle


async def test_hand_over_full_socket_keeps_pending_offers(tmp_path: Path, client: socket.socket) -> None:
    """A further offer is refused; pending offers stay valid, and their answers count."""
    async with edge_socket(tmp_path) as (edge, to, answers):
        offered = 0
        while to.offer(client, "tls", boot_time(), answers.append):
            offered += 1
        assert offered > 10 and not answers
        with await edge.accept() as connection:
            for _ in range(offered):
                await edge.take(connection)
                connection.send(b"\0")
            await wait_for_answers(answers, offered)
            assert answers == [HandoffReply.TAKEN] * offered
            assert to.offer(client, "tls", boot_time(), answers.append)  # over the same connection
            await edge.take(connection)


@pytest.mark.parametrize("failure", ["closes", "does not answer one"])
async def test_hand_over_received_answers_count_after_disconnect(
    tmp_path: Path, client: socket.socket, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that an edge accepted goes to no other edge, whatever ends the connection."""
    monkeypatch.setattr(hand_over, "ANSWER_S", 0.1)
    async with edge_socket(tmp_path) as (edge, to, answers):
        for _ in range(3):
            assert to.offer(client, "tls", boot_time(), answers.append)
        with await edge.accept() as connection:
            connection.send(b"\0")
            connection.send(b"\0")
            if failure == "closes":
                connection.close()
                assert not to.offer(client, "tls", boot_time(), answers.append)  # before the answers are read
            await wait_for_answers(answers, 3)
    assert answers == [HandoffReply.TAKEN, HandoffReply.TAKEN, None]
