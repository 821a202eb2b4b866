"""Connections handed over by a balancer: one descriptor in, one reply out, no leaked descriptor."""

import contextlib
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from edge.listeners.handoff_socket import HandoffSocket
from edge.listeners.socket_handoff import Offer, SocketHandoff
from tests.patience import PATIENCE_S
from wire.clock import boot_time
from wire.messages.socket_handoff import HAND_OVER, HandoffReply, decode_hand_over, encode_hand_over

KNOWN = ("tls", "plain")
TURNS = 10_000


class Edge:
    """An edge that keeps its connections."""

    def __init__(self, folder: Path) -> None:
        self.taken: list[tuple[str, int, float]] = []
        self.counts: Counter[str] = Counter()
        self.state = HandoffReply.TAKEN
        self.desk = SocketHandoff(self._state, self._take, self._count)
        self.socket = HandoffSocket(folder, self.desk, self._count, lambda: None)
        self.path = folder / "hand-over.sock"

    def _state(self, listener: str) -> HandoffReply:
        return self.state if listener in KNOWN else HandoffReply.NO_LISTENER

    def _take(self, listener: str, fd: int, waited_s: float) -> None:
        self.taken.append((listener, fd, waited_s))

    def _count(self, what: str) -> None:
        self.counts[what] += 1


class Balancer:
    """One connection to an edge's socket."""

    def __init__(self, path: Path) -> None:
        self.socket = trio.socket.from_stdlib_socket(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self.path = path

    async def connect(self) -> None:
        await self.socket.connect(str(self.path))

    async def offer(self, data: bytes, *descriptors: int) -> HandoffReply:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors))]
        await self.socket.sendmsg([data], rights if descriptors else [])
        with trio.fail_after(PATIENCE_S):
            answer = await self.socket.recv(2)
        assert len(answer) == 1
        return HandoffReply(answer[0])


@contextlib.asynccontextmanager
async def balancer(edge: Edge) -> AsyncIterator[Balancer]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edge.socket.run)
        with trio.fail_after(PATIENCE_S):
            while not edge.path.exists() or not os.access(edge.path, os.W_OK):
                await trio.testing.wait_all_tasks_blocked()
        one = Balancer(edge.path)
        with one.socket:
            await one.connect()
            yield one
        nursery.cancel_scope.cancel()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end and the accepted one."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def message(listener: str = "tls", waited_s: float = 0.0, age_s: float = 0.0) -> bytes:
    now = boot_time() - age_s
    return encode_hand_over(listener, int((now - waited_s) * 1000), int(now * 1000))


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_offered_connection_reaches_its_listener(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    """The connection is non-blocking and has its waiting time; the balancer may close its copy."""
    client, accepted = connection
    edge = Edge(tmp_path)
    assert edge.socket.addresses[HAND_OVER].endswith(f":{edge.path}")
    async with balancer(edge) as one:
        assert edge.path.stat().st_mode & 0o777 == 0o600
        assert await one.offer(message(waited_s=2.0), accepted.fileno()) is HandoffReply.TAKEN
        accepted.close()
        [(listener, fd, waited_s)] = edge.taken
        with socket.socket(fileno=fd) as taken:
            assert listener == "tls" and 2.0 <= waited_s < 60.0 and not os.get_inheritable(fd)
            assert taken.getpeername() == client.getsockname() and not os.get_blocking(fd)
            taken.send(b"hello")
            assert client.recv(5) == b"hello"
        assert client.recv(1) == b""
        for state in (HandoffReply.NOT_READY, HandoffReply.FULL, HandoffReply.DRAINING):
            edge.state = state
            assert await one.offer(message(), client.fileno()) is state
        assert await one.offer(message("other"), client.fileno()) is HandoffReply.NO_LISTENER
    assert not edge.path.exists() and len(edge.taken) == 1
    assert edge.counts["handed_over_taken"] == edge.counts["handed_over_draining"] == 1


async def test_invalid_offers_are_refused_without_leaks(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    """No descriptor, two, a pipe, a listening socket; no message, another version, too long; too old, or of the
    future.
    """
    client, accepted = connection
    edge = Edge(tmp_path)
    fd = accepted.fileno()
    newer = msgspec.msgpack.encode({"v": 2, "listener": "tls", "accepted_ms": 1, "sent_ms": 1})
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socketpair()[0] as local,
        (tmp_path / "f").open("w") as file,
    ):
        pipe = os.pipe()
        async with balancer(edge) as one:
            assert await one.offer(b"x") is HandoffReply.UNUSABLE  # accepted by now
            before = open_descriptors()
            for data, descriptors, expected in (
                (message(), (), HandoffReply.UNUSABLE),
                (message(), (fd, client.fileno()), HandoffReply.UNUSABLE),
                (message(), (fd,) * 6, HandoffReply.UNUSABLE),
                (message(), pipe[:1], HandoffReply.UNUSABLE),
                (message(), (file.fileno(),), HandoffReply.UNUSABLE),
                (message(), (listening.fileno(),), HandoffReply.UNUSABLE),
                (message(), (local.fileno(),), HandoffReply.UNUSABLE),
                (newer, (fd,), HandoffReply.UNUSABLE),
                (b"\x91" * 500, (fd,), HandoffReply.UNUSABLE),
                (message() + b"\0" * 600, (fd,), HandoffReply.UNUSABLE),
                (message(age_s=0.6), (fd,), HandoffReply.NOT_READY),
                (message(age_s=-5.0), (fd,), HandoffReply.NOT_READY),
            ):
                assert await one.offer(data, *descriptors) is expected, (data, descriptors)
                assert open_descriptors() == before
            assert not edge.taken
            assert await one.offer(message(), fd) is HandoffReply.TAKEN  # the socket still works
            os.close(edge.taken[0][1])
        for each in pipe:
            os.close(each)


async def test_refusals_leak_no_descriptor(tmp_path: Path, connection: tuple[socket.socket, socket.socket]) -> None:
    edge = Edge(tmp_path)
    fd = connection[1].fileno()
    pipe = os.pipe()
    async with balancer(edge) as one:
        assert await one.offer(b"x") is HandoffReply.UNUSABLE  # accepted by now
        before = open_descriptors()
        for turn in range(TURNS):
            wrong = turn % 3
            edge.state = HandoffReply.FULL
            answer = await one.offer(message() if wrong else b"x", *((fd,) if wrong < 2 else (fd, pipe[0])))
            assert answer is (HandoffReply.UNUSABLE, HandoffReply.FULL, HandoffReply.UNUSABLE)[wrong]
        assert open_descriptors() == before
    for each in pipe:
        os.close(each)
    assert edge.counts.total() == TURNS + 1 and not edge.taken


@pytest.mark.parametrize(
    ("late_s", "is_sent", "is_taken"), [(0.4, True, True), (1.1, True, False), (0.0, False, False)]
)
def test_late_reply_takes_no_connection(
    tmp_path: Path,
    connection: tuple[socket.socket, socket.socket],
    late_s: float,
    is_sent: bool,
    is_taken: bool,
) -> None:
    """After a suspended process replies late, another edge may have the connection."""
    edge = Edge(tmp_path)
    copy = os.dup(connection[1].fileno())
    now = boot_time()
    edge.desk.offered(now, Offer(message(), [copy], 0), lambda _: is_sent, lambda: now + late_s)
    assert bool(edge.taken) is is_taken
    if is_taken:
        os.close(copy)
    else:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)
        connection[0].settimeout(0.05)
        with pytest.raises(TimeoutError):  # another edge's copy stays open
            connection[0].recv(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
async def test_other_user_is_refused() -> None:
    """By the socket's permissions, and without them by SO_PEERCRED."""
    folder = Path(tempfile.mkdtemp(prefix="stratamq-test-"))
    edge = Edge(folder)
    code = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); print(len(s.recv(1)))"
    )
    command = [sys.executable, "-c", code, str(edge.path)]
    folder.chmod(0o755)  # the data folder protects it normally; here only the socket does
    async with balancer(edge) as one:
        refused = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert b"Permission denied" in refused.stderr
        edge.path.chmod(0o666)
        closed = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert closed.stdout == b"0\n", closed.stderr
        assert edge.counts["balancers_refused"] == 1
        assert await one.offer(b"x") is HandoffReply.UNUSABLE
    folder.rmdir()


def test_handoff_message_is_bounded() -> None:
    data = encode_hand_over("tls", 1, 2)
    assert decode_hand_over(data).listener == "tls" and len(data) < 100
    with pytest.raises(ValueError, match="unreadable hand-over"):
        decode_hand_over(encode_hand_over("x" * 33, 1, 2))
