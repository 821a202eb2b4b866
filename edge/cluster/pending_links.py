"""Connections to the edge's link port before their HELLO is accepted: places of one `AdmissionPool`.

The loop bounds their time (``ConnOptions.connect_timeout_ns``); this module decides which of them stay.
"""

from collections.abc import Callable, Iterable

from conf.admission import POOLS, AdmissionPool, AdmissionSlot, KnownAddresses
from edge.loop.state import LoopConnection

__all__ = ["PendingLinks"]


class PendingLinks:
    """Accepted connections that have not authenticated.

    Args:
        has_received: Returns whether a connection has received a byte.

    Attributes:
        pool: Their places.
        known: Addresses of nodes of the map, of seeds, and of peers with accepted certificates.
    """

    def __init__(self, has_received: Callable[[LoopConnection], bool]) -> None:
        self.known = KnownAddresses()
        self.pool: AdmissionPool[LoopConnection | None] = AdmissionPool(
            POOLS["edge_links"], self.known.knows, lambda conn: conn is not None and has_received(conn)
        )
        self._places: dict[
            int, tuple[AdmissionSlot[LoopConnection | None], str]
        ] = {}  # by number of the connection; and its address

    def admit(
        self, now: float, address: str
    ) -> tuple[AdmissionSlot[LoopConnection | None] | None, LoopConnection | None]:
        """Return the place of a new connection, None if it is refused, and the connection to close for it."""
        place, displaced = self.pool.admit(now, address, None)
        return place, displaced.owner if displaced is not None else None

    def attached(self, place: AdmissionSlot[LoopConnection | None], conn: LoopConnection, address: str) -> None:
        """Register the connection of a place."""
        place.owner = conn
        self._places[conn.number] = place, address

    def authenticated(self, conn: LoopConnection, name: str, now: float) -> None:
        """Free the place of a connection that became a link.

        Args:
            conn: It may have been dialled by this edge, and have no place.
            name: Of its certificate, "" without one.
            now: Seconds.
        """
        place, address = self._places.pop(conn.number, (None, ""))
        if place is not None:
            place.leave()
            self.known.add(name, address, now)

    def ended(self, conn: LoopConnection) -> None:
        """Free the place of a closed connection."""
        place, _ = self._places.pop(conn.number, (None, ""))
        if place is not None:
            place.leave()

    def take_silent(self, now: float) -> Iterable[LoopConnection]:
        """Return the connections that sent no byte in time; the caller closes them."""
        return [place.owner for place in self.pool.take_silent(now) if place.owner is not None]
