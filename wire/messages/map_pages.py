"""The whole map in pages: cut by a router, requested one after the other, joined by a node that follows it.

A page is a part of the map's encoding, which is the same at every router for one epoch. A page that does not continue
the previous one is ignored, and one at offset 0 restarts; steps that arrive meanwhile wait for the last page. Both
sides are bounded: a map in pages is at most MAP_BYTES_MAX, a router keeps the bytes of ENCODED_MAX epochs. Rules:
docs/adr/0019.
"""

from zlib import crc32

import msgspec

from wire.decoding import strictly
from wire.messages.cluster_map import ClusterMap, MapDelta
from wire.messages.nodes import MapPage
from wire.messages.ranges import MAP_PAGE_BYTES

__all__ = ["MAP_BYTES_MAX", "STEPS_MAX", "MapPages", "MapReader", "map_pages"]

MAP_BYTES_MAX = 128 * 1024 * 1024  # router/map/command_bounds.py keeps all maps below it
ENCODED_MAX = 4  # epochs with pages in use; beyond it the slowest reader restarts
STEPS_MAX = 256  # waiting for the last page, each at most a page long; beyond it the reader restarts

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decode = strictly(msgspec.msgpack.Decoder(ClusterMap).decode, "map")


def _page(epoch: int, data: bytes, crc: int, offset: int, page_bytes: int = MAP_PAGE_BYTES) -> MapPage:
    return MapPage(epoch, offset, len(data), crc, data[offset : offset + page_bytes])


def map_pages(cluster_map: ClusterMap) -> list[MapPage]:
    """Return all pages of a map."""
    data = _encoder.encode(cluster_map)
    crc = crc32(data)
    return [_page(cluster_map.epoch, data, crc, offset) for offset in range(0, len(data), MAP_PAGE_BYTES)]


class MapPages:
    """A router's side: the encodings of recent maps."""

    def __init__(self, page_bytes: int = MAP_PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._encoded: dict[int, tuple[bytes, int]] = {}  # epoch -> bytes, checksum; the least recently used first

    def clear(self) -> None:
        """Drop all encodings: the map was replaced."""
        self._encoded.clear()

    def first(self, cluster_map: ClusterMap) -> MapPage:
        """Return the first page of the current map."""
        if cluster_map.epoch not in self._encoded:
            data = _encoder.encode(cluster_map)
            self._encoded[cluster_map.epoch] = (data, crc32(data))
            while len(self._encoded) > ENCODED_MAX:
                del self._encoded[next(iter(self._encoded))]
        return self._cut(cluster_map.epoch, 0)

    def page(self, cluster_map: ClusterMap, epoch: int, offset: int) -> MapPage:
        """Return the requested page, or the first one of the current map if it is unavailable."""
        known = self._encoded.get(epoch)
        if known is None or not 0 <= offset < len(known[0]):
            return self.first(cluster_map)
        return self._cut(epoch, offset)

    def _cut(self, epoch: int, offset: int) -> MapPage:
        data, crc = self._encoded[epoch] = self._encoded.pop(epoch)
        return _page(epoch, data, crc, offset, self._page_bytes)


class MapReader:
    """A node's side: the pages received so far, and the steps after them."""

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None  # epoch, size, checksum of the map that is being read
        self._data = bytearray()
        self._steps: list[MapDelta] = []

    @property
    def reading(self) -> bool:
        """True between the first page and the last."""
        return self._of is not None

    @property
    def wanted(self) -> tuple[int, int]:
        """Return epoch and offset of the next page to request."""
        assert self._of is not None
        return self._of[0], len(self._data)

    def forget(self) -> None:
        """Drop all pages and steps."""
        self._of = None
        self._data = bytearray()
        self._steps = []

    def take(self, page: MapPage) -> ClusterMap | None:
        """Add a page; return the map once it is complete, with the waiting steps applied.

        A page of another map, or a repeated one, has no effect.

        Raises:
            ValueError: Pages are missing or invalid; all of them are dropped.
        """
        of = page.epoch, page.size, page.crc
        if page.offset == 0:
            self.forget()
            self._of = of
        elif of != self._of or page.offset < len(self._data):
            return None
        if page.offset != len(self._data) or not page.data or len(self._data) + len(page.data) > page.size:
            self.forget()
            raise ValueError("a page is missing, or is none")
        if page.size > MAP_BYTES_MAX:
            self.forget()
            raise ValueError(f"a map of {page.size} bytes")
        self._data += page.data
        return self._whole(of) if len(self._data) == page.size else None

    def keep(self, delta: MapDelta) -> bool:
        """Keep a step until the map before it is complete; False if too many wait."""
        self._steps.append(delta)
        return len(self._steps) <= STEPS_MAX

    def _whole(self, of: tuple[int, int, int]) -> ClusterMap:
        data, steps = bytes(self._data), self._steps
        self.forget()
        if crc32(data) != of[2]:
            raise ValueError("the pages are not of one map")
        cluster_map = _decode(data)  # Unreadable is a ValueError
        shards = len(cluster_map.shards)
        if cluster_map.base_shards > shards or any(rule.shard >= shards for rule in cluster_map.delegations):
            raise ValueError(f"a map of {shards} shards that counts on more")
        for step in steps:  # ValueError if one does not fit
            if step.epoch == cluster_map.epoch + 1:
                cluster_map.apply(step)
        return cluster_map
