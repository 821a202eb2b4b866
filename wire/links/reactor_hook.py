"""Reads links in Trio's I/O wait: a frame costs no iteration of Trio's loop.

A reading task costs two iterations per frame, a re-armed registration and a read without data. Most frames of a storage
node need no task: the call that read them, or that completed the sync, also writes and answers them. Therefore Trio's
``before_io_wait`` hook waits in its own epoll set, which contains Trio's epoll, and calls the reader of each ready
descriptor. The hook returns to Trio as soon as a task is ready or Trio's timeout expires. Decision:
docs/adr/0171-links-are-read-early.md.
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
    """A callback for one descriptor, and the error that it raised.

    It catches all errors: Trio disables an instrument that raises.
    """

    __slots__ = ("_call", "failure", "paused", "scope")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.paused = False
        self.scope = trio.CancelScope()
        self.failure: BaseException | None = None

    def call(self) -> None:
        """Call the reader, unless it failed, ended or is paused."""
        if self.paused or self.scope.cancel_called:
            return
        try:
            self._call()
        except BaseException as error:
            self.failure = error
            self.scope.cancel()


class ReactorHook(trio.abc.Instrument):
    """Descriptors of one process that are read early. At most one per process, and none beside the edge's loop.

    Args:
        trio_fd: ``trio_epoll_fd()``.
        tasks: ``ready_tasks()``.
        note: Receives the duration of an iteration of readers and its end, of ``time.monotonic()``.
        give_way: Yields the CPU; called after each reader, and inside readers.
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
        """Close the epoll set; no link is read afterwards."""
        self._epoll.close()

    async def reading(self, descriptor: int, reader: Callable[[], None]) -> None:
        """Call a reader whenever a descriptor is readable or has ended, until cancelled.

        An error of the reader ends this call, which raises it in Trio's next iteration; other readers may run before.
        """
        entry = _Reader(reader)
        self._readers[descriptor] = entry
        self._epoll.register(descriptor, select.EPOLLIN)
        try:
            with entry.scope:
                await trio.sleep_forever()
        finally:
            del self._readers[descriptor]
            if not entry.paused:
                self._epoll.unregister(descriptor)
        if entry.failure is not None:
            raise entry.failure

    def pause(self, descriptor: int) -> None:
        """Stop reading a descriptor, and noticing its end, until ``go_on``; ignores one that is not read early."""
        reader = self._readers.get(descriptor)
        if reader is not None and not reader.paused:
            reader.paused = True
            self._epoll.unregister(descriptor)  # without requested events epoll would report a hangup on each poll

    def go_on(self, descriptor: int) -> None:
        """Resume reading a descriptor."""
        reader = self._readers.get(descriptor)
        if reader is not None and reader.paused:
            reader.paused = False
            self._epoll.register(descriptor, select.EPOLLIN)

    def before_io_wait(self, timeout: float) -> None:
        """Read links until Trio has work or its timeout expires; once if the timeout is 0."""
        if not self._readers:
            return
        now = time.monotonic()
        ends = now + timeout
        while True:
            events = self._epoll.poll(max(0.0, ends - now))
            began = now = time.monotonic()
            trio_ready = False
            for descriptor, _ in events:
                if descriptor == self._trio_fd:
                    trio_ready = True
                elif descriptor in self._readers:
                    self._readers[descriptor].call()
                    self.give_way()
            if len(events) > trio_ready:
                now = time.monotonic()
                self._note(now - began, now)
            if trio_ready or timeout <= 0:
                return  # trio's own poll finds the events
            if self._tasks or now >= ends:
                self._token.run_sync_soon(_no_op)  # trio's wait was computed before: end it
                return


def _no_op() -> None:
    """Do nothing; the call alone wakes Trio."""


@contextmanager
def early_reads(note: Callable[[float, float], None] | None, give_way: GiveWay = stay) -> Iterator[ReactorHook | None]:
    """Read links early inside this context; yields None if ``note`` is None or Trio's internals are unavailable."""
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
