"""Connections to the port of links whose HELLO was not accepted yet: few at once, so that clients keep their sockets.

How long one may stay is the loop's business (``ConnOptions.connect_timeout_ns``); here they are counted.
"""

from edge.hot.state import Conn

__all__ = ["STRANGERS_MAX", "Strangers"]

STRANGERS_MAX = 128  # at once; all nodes of a cluster that start together come within a few handshakes of each other


class Strangers:
    """Accepted connections that nobody vouches for."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def full(self) -> bool:
        """Whether the next one has to be closed at once."""
        return len(self._numbers) >= STRANGERS_MAX

    def came(self, conn: Conn) -> None:
        """A connection was accepted and attached."""
        self._numbers.add(conn.number)

    def left(self, conn: Conn) -> None:
        """It is a link from now on, or gone."""
        self._numbers.discard(conn.number)
