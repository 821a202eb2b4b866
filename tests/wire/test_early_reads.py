"""Links that are read where trio would wait: nobody waits for trio, and trio waits for nobody."""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.patience import PATIENCE_S
from tests.wire.test_service import CONTROL, Node, certificates, linked
from wire.links.early_reads import EarlyReads, early_reads
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


class Turns:
    """Notes turns; counts those of trio's loop."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def note(self, seconds: float, _: float) -> None:
        self.noted.append(seconds)


@asynccontextmanager
async def reading(*readers: tuple[socket.socket, Callable[[], None]]) -> AsyncIterator[Turns]:
    """Have descriptors read early while the block lasts."""
    turns = Turns()
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


async def test_what_concerns_no_task_costs_no_turn_of_trio() -> None:
    """A thousand questions are answered while trio's loop turns a few times."""
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


async def test_a_task_that_a_reader_wakes_runs_at_once() -> None:
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


async def test_timers_ring_while_links_are_read_all_the_time() -> None:
    """A link that always has something to read leaves no task behind."""
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


async def test_links_are_read_while_tasks_never_rest() -> None:
    with pair() as (ours, theirs):
        data: list[bytes] = []
        async with reading((ours, lambda: data.append(ours.recv(100)))):
            theirs.send(b"x")
            with trio.fail_after(PATIENCE_S):
                while not data:
                    await trio.lowlevel.checkpoint()
        assert data == [b"x"]


async def test_what_a_reader_raises_ends_its_own_link() -> None:
    """It is raised where the link is served, and the others are read on."""
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


def test_without_trios_epoll_tasks_read() -> None:
    async def main() -> EarlyReads | None:
        with early_reads(lambda *_: None) as reads:
            return reads

    assert trio.run(main, clock=trio.testing.MockClock()) is None


def test_the_tasks_that_run_next_can_be_seen_in_the_supported_version() -> None:
    """Without them a task that a reader wakes would wait for the next deadline."""

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


async def test_a_hub_that_reads_early_takes_all_frames_in_order(tmp_path: Path) -> None:
    """Small ones, those of several TLS records, and those behind a broken connection."""
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


async def test_a_hub_that_reads_early_sees_a_peer_go(tmp_path: Path) -> None:
    router = early(Node("router", "router-0", contexts=certificates(tmp_path, "router", "router-0")))
    storage = Node("storage", "storage-0", contexts=certificates(tmp_path, "storage", "storage-0"))
    async with linked(router, storage):
        await router.until(lambda: ("up", "storage-0", 1) in router.log)
        peer = storage.hub.table.get("router-0")
        assert peer is not None and peer.connection is not None
        storage.hub.table.ended(peer, peer.connection)
        await router.until(lambda: ("down", "storage-0", 1) in router.log)
