"""All orders of one partition to edges: its wills, and redispatched copies of shared groups."""

from storage.state.order_window import OrderWindow

__all__ = ["EdgeOrders"]


class EdgeOrders:
    """Orders of both kinds together; ``storage/state/order_window.py`` has the rules."""

    def __init__(self, *windows: OrderWindow) -> None:
        self._windows = windows

    def __bool__(self) -> bool:
        return any(len(window) for window in self._windows)

    @property
    def lack_edge(self) -> bool:
        """Whether orders are pending because no edge was alive."""
        return any(window.lacks_edge for window in self._windows)

    def serve(self) -> None:
        """Start sending orders: this node serves the partition from now on."""
        for window in self._windows:
            window.begin()

    def edge_started(self) -> None:
        """Send the orders that waited for a live edge."""
        for window in self._windows:
            window.edge_started()

    def frames_lost(self, edge: str) -> None:
        """Send an edge's orders again, because frames to it were lost."""
        for window in self._windows:
            window.frames_lost(edge)
