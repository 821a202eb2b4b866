"""Links that are read in Trio's I/O wait delay neither Trio nor readers."""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.patience import PATIENCE_S
from tests.wire.test_hub import CONTROL, Node, certificates, linked, start
from wire.links.connection import LinkConnection, watch
from wire.links.link import LinkCore
from wire.links.reactor_hook import ReactorHook, early_reads
from wire.links.tls import LinkContexts
from wire.messages.hello import PeerKey
from wire.trio_epoll import ready_tasks


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    try:
        for end in ends:
            end.setblocking(False)
        yield ends
    finally:
        for end in ends:
            end.close()


class RecordedIterations:
    """Records iterations of readers; counts those of Trio's loop."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def note(self, seconds: float, _: float) -> None:
        self.noted.append(seconds)


@asynccontextmanager
async def reading(*readers: tuple[socket.socket, Callable[[], None]]) -> AsyncIterator[RecordedIterations]:
    """Read descriptors early inside the block."""
    turns = RecordedIterations()
    with early_reads(turns.note) as reads:
        assert reads is not None
        async with trio.open_nursery() as nursery:
            for end, reader in readers:
                nursery.start_soon(reads.reading, end.fileno(), reader)
            await trio.testing.wait_all_tasks_blocked()
            yield turns
            nursery.cancel_scope.cancel()


class Ticks(trio.abc.Instrument):
    """Counts the waits of trio's loop."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        self.count += 1


async def test_reactor_hook_frames_without_tasks_need_no_trio_iteration() -> None:
    """A thousand requests are answered within a few iterations of Trio's loop."""
    with pair() as (ours, theirs):
        asked = 0
        enough = trio.Event()

        def answer() -> None:
            nonlocal asked
            ours.send(ours.recv(100))
            asked += 1
            if asked == 1_000:
                enough.set()

        def ask() -> None:
            theirs.setblocking(True)
            for _ in range(1_000):
                theirs.send(b"?")
                theirs.recv(100)

        async with reading((ours, answer)) as turns:
            ticks = Ticks()
            trio.lowlevel.add_instrument(ticks)
            thread = threading.Thread(target=ask)
            thread.start()
            with trio.fail_after(PATIENCE_S):
                await enough.wait()
            trio.lowlevel.remove_instrument(ticks)
            await trio.to_thread.run_sync(thread.join)
        assert ticks.count < 100
        assert sum(1 for _ in turns.noted) >= 1_000


async def test_reactor_hook_runs_a_woken_task_at_once() -> None:
    """Trio had no deadline: only the reader knows that a task is ready."""
    with pair() as (ours, theirs):
        read = trio.Event()

        def wake() -> None:
            ours.recv(100)
            read.set()

        async with reading((ours, wake)):
            with trio.fail_after(PATIENCE_S):
                threading.Timer(0.05, theirs.send, (b"x",)).start()
                await read.wait()


async def test_reactor_hook_yields_after_each_reader() -> None:
    with pair() as (ours, theirs), pair() as (others, to_others):
        calls: list[str] = []
        theirs.send(b"x")
        to_others.send(b"x")

        def read(end: socket.socket) -> None:
            end.recv(1)
            calls.append("read")

        with early_reads(lambda *_: None, lambda: calls.append("way")) as reads:
            assert reads is not None
            async with trio.open_nursery() as nursery:
                for end in (ours, others):
                    nursery.start_soon(reads.reading, end.fileno(), partial(read, end))
                with trio.fail_after(PATIENCE_S):
                    while calls.count("read") < 2:
                        await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert calls == ["read", "way"] * 2


async def test_reactor_hook_fires_timers_under_constant_reads() -> None:
    """A link with constant input does not starve tasks."""
    with pair() as (ours, theirs):
        theirs.send(b"never taken")
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1

        async with reading((ours, look)):
            with trio.fail_after(PATIENCE_S):
                await trio.sleep(0.05)
            before = looks
            with trio.fail_after(PATIENCE_S):
                await trio.to_thread.run_sync(lambda: None)
        assert looks > before > 10


async def test_reactor_hook_reads_while_tasks_are_always_ready() -> None:
    with pair() as (ours, theirs):
        data: list[bytes] = []
        async with reading((ours, lambda: data.append(ours.recv(100)))):
            theirs.send(b"x")
            with trio.fail_after(PATIENCE_S):
                while not data:
                    await trio.lowlevel.checkpoint()
        assert data == [b"x"]


async def test_reactor_hook_reader_error_ends_only_its_link() -> None:
    """The error is raised where the link is served; other links are read further."""
    with pair() as (first, to_first), pair() as (second, to_second):
        data: list[bytes] = []
        with early_reads(lambda *_: None) as reads:
            assert reads is not None

            def fail() -> None:
                raise ValueError("bad frame")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(reads.reading, second.fileno(), lambda: data.append(second.recv(100)))
                to_first.send(b"x")
                with trio.fail_after(PATIENCE_S), pytest.raises(ValueError, match="bad frame"):
                    await reads.reading(first.fileno(), fail)
                to_second.send(b"y")
                with trio.fail_after(PATIENCE_S):
                    while not data:
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    assert data == [b"y"]


async def test_reactor_hook_paused_descriptor_is_not_read_nor_polled() -> None:
    """Other links are read; after the resume, pending input and its end are found."""
    with pair() as (ours, theirs), pair() as (second, to_second):
        data: list[bytes] = []
        more = trio.Event()

        def read() -> None:
            data.append(ours.recv(100))
            more.set()

        with early_reads(lambda *_: None) as reads:
            assert reads is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reads.reading, ours.fileno(), read)
                nursery.start_soon(reads.reading, second.fileno(), lambda: data.append(second.recv(100)))
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(2):
                    reads.pause(ours.fileno())
                theirs.send(b"x")
                theirs.shutdown(socket.SHUT_WR)
                to_second.send(b"y")
                with trio.fail_after(PATIENCE_S):
                    while not data:
                        await trio.sleep(0.01)
                ticks = Ticks()
                trio.lowlevel.add_instrument(ticks)
                await trio.sleep(0.05)
                trio.lowlevel.remove_instrument(ticks)
                assert data == [b"y"] and ticks.count < 10
                for _ in range(2):
                    reads.go_on(ours.fileno())
                with trio.fail_after(PATIENCE_S):
                    await more.wait()
                    while b"" not in data:
                        await trio.sleep(0.01)
                reads.pause(ours.fileno())
                nursery.cancel_scope.cancel()
            reads.pause(ours.fileno())  # ignored for a descriptor without a reader
    assert data[:3] == [b"y", b"x", b""]


def test_early_reads_without_trios_epoll_yields_none() -> None:
    async def main() -> ReactorHook | None:
        with early_reads(lambda *_: None) as reads:
            return reads

    assert trio.run(main, clock=trio.testing.MockClock()) is None


def test_ready_tasks_is_available_in_the_supported_trio() -> None:
    """Without it, a task woken by a reader would wait for the next deadline."""

    async def main() -> list[int]:
        tasks, event = ready_tasks(), trio.Event()
        assert tasks is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(event.wait)
            await trio.testing.wait_all_tasks_blocked()
            seen = [len(tasks)]
            event.set()
            return [*seen, len(tasks)]

    assert trio.run(main) == [0, 1]


def early(node: Node) -> Node:
    node.hub = node.make_hub(early=lambda *_: None)
    return node


async def test_hub_with_early_reads_receives_all_frames_in_order(tmp_path: Path) -> None:
    """Small frames, frames of several TLS records, and frames after a reconnect."""
    router = early(Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0")))
    storage = Node("storage", "storage-0", contexts=certificates(tmp_path, "storage", "storage-0"))
    frames = [b"%d" % number * (50_000 if number % 50 == 0 else 1) for number in range(200)]
    async with linked(router, storage):
        for number, frame in enumerate(frames):
            assert storage.hub.send("router-0", CONTROL, frame)
            if number == 120:
                peer = router.hub.table.get("storage-0")
                assert peer is not None and peer.connection is not None
                router.hub.table.ended(peer, peer.connection)
            if number % 20 == 10:
                await trio.sleep(0.001)
        await router.until(lambda: len(router.frames) == 200)
    assert router.frames == frames


async def test_hub_with_early_reads_notices_a_closed_peer(tmp_path: Path) -> None:
    router = early(Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0")))
    storage = Node("storage", "storage-0", contexts=certificates(tmp_path, "storage", "storage-0"))
    async with linked(router, storage):
        await router.until(lambda: ("up", "storage-0", 1) in router.log)
        peer = storage.hub.table.get("router-0")
        assert peer is not None and peer.connection is not None
        storage.hub.table.ended(peer, peer.connection)
        await router.until(lambda: ("down", "storage-0", 1) in router.log)


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("is_secured", [True, False])
async def test_hub_paused_link_is_not_read_and_loses_no_frame(tmp_path: Path, is_early: bool, is_secured: bool) -> None:
    """The pause covers its next connection; writing and other links continue."""

    def contexts(tier: str, node: str) -> LinkContexts | None:
        return certificates(tmp_path, tier, node) if is_secured else None

    storage = Node("storage", "storage-0", contexts=contexts("storage", "storage-0"))
    storage = early(storage) if is_early else storage
    edges = [Node("edge", name, contexts=contexts("edge", name)) for name in ("edge-0", "edge-1")]
    paused = PeerKey("edge-0", "edge", 1)

    def pause(peer: PeerKey, _: bytes) -> None:
        if peer == paused and len(storage.frames) == 1:
            storage.hub.pause(peer.node)

    storage.on_frame = pause
    async with trio.open_nursery() as nursery:
        address = await start(nursery, storage)
        for edge in edges:
            await start(nursery, edge)
            edge.hub.set_peers({"storage-0": ("storage", address, 1)})
            await edge.until(lambda edge=edge: len(edge.log) == 1)  # type: ignore[misc]
        assert edges[0].hub.send("storage-0", CONTROL, b"first")
        await storage.until(lambda: storage.frames == [b"first"])
        for number in range(3):
            assert edges[0].hub.send("storage-0", CONTROL, b"%d" % number)
        assert edges[1].hub.send("storage-0", CONTROL, b"other")
        assert storage.hub.send("edge-0", CONTROL, b"told")
        await storage.until(lambda: len(storage.frames) == 2)
        await edges[0].until(lambda: edges[0].frames == [b"told"])
        assert storage.frames == [b"first", b"other"]
        peer = storage.hub.table.get("edge-0")
        assert peer is not None and peer.connection is not None
        storage.hub.table.ended(peer, peer.connection)
        await storage.until(lambda: storage.log.count(("up", "edge-0", 1)) == 2)
        assert edges[1].hub.send("storage-0", CONTROL, b"again")
        await storage.until(lambda: storage.frames == [b"first", b"other", b"again"])
        storage.hub.go_on(paused.node)
        await storage.until(lambda: len(storage.frames) == 6)
        nursery.cancel_scope.cancel()
    assert storage.frames[3:] == [b"0", b"1", b"2"]


async def test_connection_paused_is_not_closed_for_silence(autojump_clock: trio.testing.MockClock) -> None:
    """The idle timeout restarts when reading resumes."""
    del autojump_clock
    ours, theirs = trio.testing.memory_stream_pair()
    core = LinkCore()
    core.connected(0)
    connection = LinkConnection(ours, core, lambda *_: None)  # type: ignore[arg-type]
    connection.pause()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, [connection], 0.0)
        nursery.start_soon(connection.run, b"")
        await trio.sleep(60)
        assert connection.why == "closed here"
        connection.go_on()
        while "nothing heard" not in connection.why:
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert 63 < trio.current_time() - began < 65
    await theirs.aclose()
