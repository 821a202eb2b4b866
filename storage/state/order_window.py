"""Numbered orders of one partition to one edge at a time: pending orders, in-flight orders, retries.

An edge that executes an order uses the order's number as the origin of its messages. Each receiver remembers the
numbers of a partition in a window (``wire/messages/origin_window.py``). In-flight numbers span less than that window,
so a receiver detects every repeat. An order is sent again only to another edge, after frames to its edge were lost, by
a new primary, or after the edge replied that it could not execute it. Source: docs/protocol.md rule 8.6.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["REFUSED_AGAIN_S", "OrderBounds", "OrderWindow"]

REFUSED_AGAIN_S = 1.0  # retry delay after an edge could not execute an order


class OrderBounds(NamedTuple):
    """Bounds of the orders in flight of one partition."""

    orders: int
    octets: int  # of all of them; a single order may exceed it
    span: int  # between their numbers, at most the receivers' window


class OrderWindow:
    """The orders of one partition.

    Args:
        bounds: Of the orders in flight.
        choose_edge: Returns the name of a live edge; "" if there is none.
        send: Takes number and edge; returns False if it ended the order by ``finish``.
    """

    def __init__(self, bounds: OrderBounds, choose_edge: Callable[[], str], send: Callable[[int, str], bool]) -> None:
        self._bounds = bounds
        self._choose_edge = choose_edge
        self._send = send
        self._edge = ""  # the edge for all orders: one, so that they stay in order
        self._sizes: dict[int, int] = {}  # of all, by number
        self._bytes = 0
        self._waiting: deque[int] = deque()  # ascending, above those in flight
        self._in_flight: dict[int, None] = {}  # ascending
        self._in_flight_bytes = 0
        self._begun = False

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def octets(self) -> int:
        """Bytes of all orders."""
        return self._bytes

    @property
    def in_flight(self) -> int:
        """Number of orders that were sent and have no reply."""
        return len(self._in_flight)

    @property
    def lacks_edge(self) -> bool:
        """Whether orders are pending because no edge was alive."""
        return self._begun and not self._edge and bool(self._sizes)

    # --- incoming orders

    def restore(self, number: int, size: int) -> None:
        """Restore an order from disk, in any sequence, before ``begin``."""
        self._sizes[number] = size
        self._bytes += size

    def begin(self) -> None:
        """Start sending orders: this node serves the partition from now on."""
        self._begun = True
        self._waiting = deque(sorted(self._sizes))
        self.send_some()

    def add(self, number: int, size: int) -> None:
        """Add an order; its number is above all others."""
        self.restore(number, size)
        if self._begun:
            self._waiting.append(number)

    # --- outgoing orders

    def send_some(self) -> None:
        """Send pending orders within the bounds."""
        bounds = self._bounds
        while self._begun and self._waiting and len(self._in_flight) < bounds.orders:
            number = self._waiting[0]
            if self._in_flight_bytes >= bounds.octets:
                return
            if self._in_flight and number - next(iter(self._in_flight)) >= bounds.span:
                return
            self._edge = self._edge or self._choose_edge()
            if not self._edge:
                return
            self._waiting.popleft()
            self._in_flight[number] = None
            self._in_flight_bytes += self._sizes[number]
            self._send(number, self._edge)

    def send_again(self, number: int) -> None:
        """Send an order again under the same number; if it ended meanwhile, others are sent."""
        if number in self._in_flight and self._edge and not self._send(number, self._edge):
            self.send_some()

    def is_at(self, number: int, edge: str) -> bool:
        """Return whether an order is in flight at this edge, so that its reply is valid."""
        return number in self._in_flight and edge == self._edge

    def finish(self, number: int) -> None:
        """Remove an order that was executed or expired; the caller calls ``send_some``."""
        size = self._sizes.pop(number)
        self._bytes -= size
        if number in self._in_flight:
            del self._in_flight[number]
            self._in_flight_bytes -= size
        if not self._sizes:
            self._edge = ""  # the next order chooses among the edges alive then

    # --- lost orders

    def edge_dead(self, edge: str) -> Iterator[None]:
        """Return steps that send a dead edge's orders to another one; new orders go there at once."""
        if edge != self._edge:
            return iter(())
        self._edge = ""
        return self._send_all_again(list(self._in_flight))

    def frames_lost(self, edge: str) -> None:
        """Send all in-flight orders of an edge again, because frames to it were lost."""
        if edge == self._edge:
            for _ in self._send_all_again(list(self._in_flight)):
                pass

    def edge_started(self) -> None:
        """Resume orders that waited for a live edge."""
        if self.lacks_edge:
            for _ in self._send_all_again(list(self._in_flight)):
                pass

    def _send_all_again(self, numbers: list[int]) -> Iterator[None]:
        for number in numbers:
            self._edge = self._edge or self._choose_edge()
            if not self._edge:
                return
            if number in self._in_flight:
                self._send(number, self._edge)
                yield
        self.send_some()
