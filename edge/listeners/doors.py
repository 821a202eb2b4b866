"""All listeners of one edge together: open while clients are let in, shut while they are refused.

The loop accepts on them. Decides nothing: when they open and shut is ``edge/drain.py``.
"""

from collections.abc import Callable, Sequence

from edge.hot.loop import Loop
from edge.listeners.listeners import Listener

__all__ = ["ListenerDoors"]


class ListenerDoors:
    """The listeners.

    Args:
        listening: Each of them.
        loop: Accepts.
        accept: Takes a connection (listener, descriptor, address).
    """

    def __init__(self, listening: Sequence[Listener], loop: Loop, accept: Callable[[object, int, str], None]) -> None:
        self._listening, self._loop, self._accept = listening, loop, accept

    def open(self) -> None:
        """Take connections.

        Raises:
            UserError: Another process took an address meanwhile.
        """
        for listener in self._listening:
            listener.open()
            self._loop.listen(listener.socket, listener)

    def shut(self) -> None:
        """Refuse connections; the addresses stay ours, and whoever the kernel has taken already is served."""
        for listener in self._listening:
            self._loop.forget_listener(listener.socket)
            listener.shut(self._accept)
        self._loop.kick()
