"""Links are read where trio would wait: a frame costs no turn of trio's loop.

A task that reads costs two of those turns for every frame, a re-armed registration and a read that finds nothing. Most
frames of a storage node concern no task at all: they are taken, written, synced and answered in the call that read
them, or that learned of the sync. So trio's ``before_io_wait`` hook waits in an epoll set of its own, of which trio's
epoll is a member, and calls the reader of each descriptor that has something. As soon as a task is ready to run, or
trio's time is over, trio has its turn. Decision: docs/adr/0171-links-are-read-early.md.
"""

import select
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager

import trio

from wire.cpu_yield import GiveWay, stay
from wire.trio_epoll import ready_tasks, trio_epoll_fd

__all__ = ["ReactorHook", "early_reads"]


class _Reader:
    """A call for one descriptor, and what that raised.

    An instrument that raises is switched off by trio, so it must not.
    """

    __slots__ = ("_call", "failure", "paused", "scope")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.paused = False
        self.scope = trio.CancelScope()
        self.failure: BaseException | None = None

    def call(self) -> None:
        """Read, unless that failed, or ended, before."""
        if self.paused or self.scope.cancel_called:
            return
        try:
            self._call()
        except BaseException as error:
            self.failure = error
            self.scope.cancel()


class ReactorHook(trio.abc.Instrument):
    """The links of one process that are read early. One of these in a process, and none beside the edge's loop.

    Args:
        trio_fd: ``trio_epoll_fd()``.
        tasks: ``ready_tasks()``.
        note: Takes how long a turn of readers lasted, and when it ended, of ``time.monotonic()``.
        give_way: Called between two pieces of a turn, by readers within theirs too.
    """

    def __init__(
        self, trio_fd: int, tasks: Sized, note: Callable[[float, float], None], give_way: GiveWay = stay
    ) -> None:
        self.give_way = give_way
        self._trio_fd = trio_fd
        self._tasks = tasks
        self._note = note
        self._epoll = select.epoll()
        self._epoll.register(trio_fd, select.EPOLLIN)
        self._token = trio.lowlevel.current_trio_token()
        self._readers: dict[int, _Reader] = {}  # by descriptor

    def close(self) -> None:
        """Give the descriptor back; no link is read any more."""
        self._epoll.close()

    async def reading(self, descriptor: int, reader: Callable[[], None]) -> None:
        """Call a reader whenever a descriptor has something to read or has ended, until cancelled.

        What the reader raises ends that, and is raised here: in trio's next turn, while other readers may go on.
        """
        made = _Reader(reader)
        self._readers[descriptor] = made
        self._epoll.register(descriptor, select.EPOLLIN)
        try:
            with made.scope:
                await trio.sleep_forever()
        finally:
            del self._readers[descriptor]
            if not made.paused:
                self._epoll.unregister(descriptor)
        if made.failure is not None:
            raise made.failure

    def pause(self, descriptor: int) -> None:
        """Read a descriptor no more, nor notice its end, until ``go_on``; one that is not read early is left alone."""
        reader = self._readers.get(descriptor)
        if reader is not None and not reader.paused:
            reader.paused = True
            self._epoll.unregister(descriptor)  # with no events asked for its end would be reported without end

    def go_on(self, descriptor: int) -> None:
        """Read a descriptor again."""
        reader = self._readers.get(descriptor)
        if reader is not None and reader.paused:
            reader.paused = False
            self._epoll.register(descriptor, select.EPOLLIN)

    def before_io_wait(self, timeout: float) -> None:
        """Read links until trio has something to do, or for as long as it would wait; once if it would not."""
        if not self._readers:
            return
        now = time.monotonic()
        ends = now + timeout
        while True:
            events = self._epoll.poll(max(0.0, ends - now))
            began = now = time.monotonic()
            trios = False
            for descriptor, _ in events:
                if descriptor == self._trio_fd:
                    trios = True
                elif descriptor in self._readers:
                    self._readers[descriptor].call()
                    self.give_way()
            if len(events) > trios:
                now = time.monotonic()
                self._note(now - began, now)
            if trios or timeout <= 0:
                return  # trio's own look finds what there is
            if self._tasks or now >= ends:
                self._token.run_sync_soon(_nothing)  # trio's wait was computed before: end it
                return


def _nothing() -> None:
    """Nothing: being called is what matters."""


@contextmanager
def early_reads(note: Callable[[float, float], None] | None, give_way: GiveWay = stay) -> Iterator[ReactorHook | None]:
    """Read links early while this runs, telling of each turn; None if not asked to, or where trio cannot be seen."""
    trio_fd, tasks = trio_epoll_fd(), ready_tasks()
    if note is None or trio_fd < 0 or tasks is None:
        yield None
        return
    reads = ReactorHook(trio_fd, tasks, note, give_way)
    trio.lowlevel.add_instrument(reads)
    try:
        yield reads
    finally:
        trio.lowlevel.remove_instrument(reads)
        reads.close()
