"""Results of the last orders: a repeated order gets its first result and has no second effect.

Part of the replicated map state, so every router holds and drops the same orders. A command line repeats an order for
seconds; an order is dropped only after ORDERS_MAX later ones.
"""

import msgspec

__all__ = ["ORDERS_MAX", "MapOrderOutcome", "OrderMemory"]

ORDERS_MAX = 1_000


class MapOrderOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of an order."""

    refusal: str  # "": applied
    map_epoch: int
    rebalance: int | None  # number of the newest job at that time


class OrderMemory:
    """The outcomes of the newest orders, by identifier."""

    def __init__(self, known: dict[str, MapOrderOutcome] | None = None) -> None:
        self.known = known if known is not None else {}  # oldest first

    def get(self, identifier: str) -> MapOrderOutcome | None:
        """Return the result of an order, None if it is unknown."""
        return self.known.get(identifier)

    def note(self, identifier: str, outcome: MapOrderOutcome) -> None:
        """Store a result; beyond ORDERS_MAX the oldest is dropped."""
        self.known[identifier] = outcome
        while len(self.known) > ORDERS_MAX:
            del self.known[next(iter(self.known))]
