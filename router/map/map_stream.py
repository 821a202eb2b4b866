"""The map as a stream: the followers of a router, and the step or page that each receives.

A node starts with the pages of a whole map and then gets every step. A step larger than a page is replaced by the first
page of the map after it, and the node requests the others. Sans-IO. Rules: docs/protocol.md section 2.
"""

from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.control import Control, encode_control
from wire.messages.hello import PeerKey
from wire.messages.map_pages import MapPages
from wire.messages.nodes import FollowMap, MapStep

__all__ = ["MapStream"]


class MapStream:
    """Followers of one router's map, and the encoded pages for them."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._followers: dict[str, int] = {}  # node -> incarnation of its link
        self._pages = MapPages(page_bytes)

    def follow(self, node: str, incarnation: int, message: FollowMap, cluster_map: ClusterMap) -> Control:
        """Add a follower, or process its request for a page; return the page."""
        self._followers[node] = incarnation
        if message.page_of < 0:
            return self._pages.first(cluster_map)
        return self._pages.page(cluster_map, message.page_of, message.offset)

    def link_down(self, peer: PeerKey) -> None:
        """Remove a follower whose link ended, unless a newer incarnation follows."""
        if self._followers.get(peer.node) == peer.incarnation:
            del self._followers[peer.node]

    def step(self, delta: MapDelta, cluster_map: ClusterMap) -> list[tuple[str, bytes]]:
        """Return (node, control message) for a step that the map contains already; encoded once for all nodes."""
        assert delta.epoch == cluster_map.epoch, "a step is told after the map has it"
        data = encode_control(MapStep(delta)) if self._followers else b""
        if len(data) > self._page_bytes:
            data = encode_control(self._pages.first(cluster_map))
        return [(node, data) for node in sorted(self._followers)]

    def replaced(self, cluster_map: ClusterMap) -> list[tuple[str, Control]]:
        """Return (node, first page) after the whole map was replaced."""
        self._pages.clear()
        return [(node, self._pages.first(cluster_map)) for node in sorted(self._followers)]
