"""The orders that the routers carried out last: one that comes again gets its first outcome, and is not done twice.

Part of the map's replicated state: each router has the same orders in the same sequence, and forgets the same. A
command line repeats an order for seconds; ORDERS_MAX others are carried out before that one is forgotten.
"""

import msgspec

__all__ = ["ORDERS_MAX", "MapOrderOutcome", "OrderMemory"]

ORDERS_MAX = 1_000


class MapOrderOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of an order."""

    refusal: str  # "": it was carried out
    map_epoch: int
    rebalance: int | None  # number of the newest job then


class OrderMemory:
    """The outcomes of the newest orders, by identifier."""

    def __init__(self, known: dict[str, MapOrderOutcome] | None = None) -> None:
        self.known = known if known is not None else {}  # oldest first

    def get(self, identifier: str) -> MapOrderOutcome | None:
        """Return the outcome of an order, None if it is not known."""
        return self.known.get(identifier)

    def note(self, identifier: str, outcome: MapOrderOutcome) -> None:
        """Keep an outcome; beyond ORDERS_MAX the oldest is forgotten."""
        self.known[identifier] = outcome
        while len(self.known) > ORDERS_MAX:
            del self.known[next(iter(self.known))]
