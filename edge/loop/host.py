"""Trio and the loop in one thread.

*Inverse*: the loop blocks in its own epoll set, which contains trio's epoll descriptor, inside trio's
``before_io_wait`` hook. *Nested*: if trio's epoll is inaccessible, or under a mock clock, a trio task waits for the
loop's epoll; this costs one more wakeup per iteration. Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import trio

from edge.loop.loop import Loop

__all__ = ["LoopFailed", "host"]


class LoopFailed(RuntimeError):
    """The loop raised: an internal bug that ends every connection of this process."""


class _Inverse(trio.abc.Instrument):
    """Runs iterations in place of trio's wait. It must not raise: trio disables an instrument that does."""

    def __init__(self, loop: Loop, scope: trio.CancelScope) -> None:
        self.loop = loop
        self.scope = scope
        self.failure: BaseException | None = None
        self.token = trio.lowlevel.current_trio_token()

    def before_io_wait(self, timeout: float) -> None:
        if self.failure is not None:
            return
        try:
            if self.loop.run(timeout):
                self.token.run_sync_soon(_wake)  # trio has computed its own wait already: end it
        except BaseException as error:
            self.failure = error
            self.token.run_sync_soon(self.scope.cancel)


def _wake() -> None:
    """Wake trio; the call itself has no effect."""


async def host(loop: Loop, trio_fd: int) -> None:
    """Run the loop until cancelled.

    Args:
        loop: Created by ``Loop(hot, trio_fd)``.
        trio_fd: ``trio_epoll_fd()`` for inverse, -1 for nested.
    Raises:
        LoopFailed: With the cause; never ignored, all connections are dead.
    """
    if trio_fd < 0:
        await _nested(loop)
        return
    with trio.CancelScope() as scope:
        instrument = _Inverse(loop, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            await trio.sleep_forever()  # until cancelled: the hook does the work
        finally:
            trio.lowlevel.remove_instrument(instrument)
    if instrument.failure is not None:
        raise LoopFailed("the event loop raised an exception") from instrument.failure


async def _nested(loop: Loop) -> None:
    while True:
        with trio.move_on_after(loop.patience_s()):
            await trio.lowlevel.wait_readable(loop.epoll_fd)
        try:
            loop.run(0)
        except Exception as error:
            raise LoopFailed("the event loop raised an exception") from error
        await trio.lowlevel.checkpoint()
