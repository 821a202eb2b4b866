"""Operators at a storage node's core: their looks. Verbs are the service's (``storage/service.py``)."""

from collections.abc import Callable

from access.operators.verbs import operator_of
from storage.hosting.turn import Turn
from wire.looks.desk import LookDesk
from wire.looks.pace import LookBounds
from wire.looks.source import Source
from wire.messages.hello import TIER_STORAGE, PeerKey
from wire.messages.looks import Look

__all__ = ["Operators"]

STORAGE_BOUNDS = LookBounds(rows=5_000, seconds=0.002, reply_bytes=256 * 1024)


class Operators:
    """Operators of one node.

    Args:
        node: Its name.
        turn: Time, and the way out.
        sources: What each kind of look shows.
        map_epoch: Of the map as this node has it.
    """

    def __init__(self, node: str, turn: Turn, sources: dict[str, Source], map_epoch: Callable[[], int]) -> None:
        self._turn = turn
        self.desk = LookDesk(node, TIER_STORAGE, STORAGE_BOUNDS, sources, turn.tell, map_epoch)

    def take(self, peer: PeerKey, look: Look) -> None:
        """Take a look; it is answered at the end of a turn."""
        operator = operator_of(peer)
        self.desk.ask(self._turn.now, peer.node, operator.role.name.lower() if operator is not None else "", look)

    def gone(self, peer: PeerKey) -> None:
        """Forget an operator whose link ended."""
        self.desk.gone(peer.node)
