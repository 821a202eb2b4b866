"""All orders of one partition to edges: its wills, and copies that ended members of shared groups left."""

from storage.messages.redispatch import RedispatchQueue
from storage.sessions.wills import Wills

__all__ = ["EdgeOrders"]


class EdgeOrders:
    """Orders of both kinds together; ``storage/state/order_window.py`` has the rules."""

    def __init__(self, wills: Wills, redispatches: RedispatchQueue) -> None:
        self._wills = wills
        self._redispatches = redispatches

    def __bool__(self) -> bool:
        return bool(self._wills.firing or len(self._redispatches))

    @property
    def lack_edge(self) -> bool:
        """Whether some wait because no edge was alive."""
        return self._wills.lacks_edge or self._redispatches.lacks_edge

    def serve(self) -> None:
        """Begin to send: this node serves the partition from now on."""
        self._wills.serve()
        self._redispatches.serve()

    def edge_came(self) -> None:
        """Send those that waited because no edge was alive."""
        self._wills.edge_came()
        self._redispatches.edge_came()

    def frames_lost(self, edge: str) -> None:
        """Send those again whose frames to an edge were lost."""
        self._wills.frames_lost(edge)
        self._redispatches.frames_lost(edge)
