"""A whole view in pages: cut by a router, requested one by one, joined by a node.

As with the map (``wire/messages/map_pages.py``), a page holds bytes of the encoded view at one policy_epoch. A page at
offset 0 restarts the transfer, one that does not continue it is ignored, and steps are queued until the last page.
Unlike the map, two routers may encode a view differently, so all pages come from one router; the checksum detects a
mixture. A view below the node's epoch is refused, because it would restore removed rights.
"""

from zlib import crc32

import msgspec

from access.policy.step import PolicyStep
from access.policy.view import PolicyView, ViewReading
from wire.messages.ranges import MAP_PAGE_BYTES

__all__ = ["STEPS_MAX", "VIEW_PAGES_BYTES_MAX", "PolicyPage", "PolicyPages", "PolicyReader"]

VIEW_PAGES_BYTES_MAX = 64 * 1024 * 1024  # access/policy/bounds.py bounds every view below it
ENCODED_MAX = 4  # epochs whose pages nodes may still be reading
AT_ONCE_BYTES = 64 * 1024  # a smaller view is decoded in the iteration of its last page
STEPS_MAX = 256  # queued until the last page; beyond it, reading restarts


class PolicyPage(msgspec.Struct, frozen=True):
    """Bytes of a view from ``offset`` on; size and checksum are of the whole view."""

    epoch: int
    offset: int
    size: int
    checksum: int
    data: bytes


class PolicyPages:
    """A router's side: cuts pages from encoded views."""

    def __init__(self, page_bytes: int = MAP_PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._encoded: dict[int, tuple[bytes, int]] = {}  # epoch -> bytes, checksum; least recently used first

    def clear(self) -> None:
        """Remove all: the policy was replaced."""
        self._encoded.clear()

    def has(self, epoch: int) -> bool:
        """Return whether the view of an epoch is encoded."""
        return epoch in self._encoded

    def put(self, epoch: int, data: bytes) -> None:
        """Store the encoding of an epoch; evict the least recently used one if there are too many."""
        self._encoded[epoch] = data, crc32(data)
        while len(self._encoded) > ENCODED_MAX:
            del self._encoded[next(iter(self._encoded))]

    def page(self, epoch: int, offset: int) -> PolicyPage | None:
        """Return a page, None if the epoch or offset is unknown: the node then starts with the newest."""
        known = self._encoded.get(epoch)
        if known is None or not 0 <= offset < len(known[0]):
            return None
        data, checksum = self._encoded[epoch] = self._encoded.pop(epoch)
        return PolicyPage(epoch, offset, len(data), checksum, data[offset : offset + self._page_bytes])


class PolicyReader:
    """A node's side: the received pages, and the steps after them."""

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None  # epoch, size, checksum of the view in transfer
        self._data = bytearray()
        self._checksum = 0  # of the received bytes
        self._reading: ViewReading | None = None  # set when all pages were received
        self._steps: list[PolicyStep] = []

    @property
    def wanted(self) -> tuple[int, int] | None:
        """Epoch and offset of the next page, None if no page is needed."""
        return None if self._of is None or self._reading is not None else (self._of[0], len(self._data))

    @property
    def is_reading(self) -> bool:
        """Whether steps must wait for a view."""
        return self._of is not None

    @property
    def is_whole(self) -> bool:
        """Whether all pages were received, so that ``advance`` can continue."""
        return self._reading is not None

    def forget(self) -> None:
        """Restart."""
        self._of = None
        self._data = bytearray()
        self._checksum = 0
        self._reading = None
        self._steps = []

    def take(self, page: PolicyPage, epoch: int) -> PolicyView | None:
        """Add a page; return the view if this was the last page and one slice decodes it (see ``advance``).

        A page of another view, or a repeated one, is ignored.

        Args:
            epoch: The node's own.

        Raises:
            ValueError: Pages are missing, or form an invalid or older view; the transfer is reset.
        """
        of = page.epoch, page.size, page.checksum
        if page.offset == 0:
            self.forget()
            self._of = of
        elif of != self._of or page.offset < len(self._data) or self._reading is not None:
            return None
        wrong = page.offset != len(self._data) or not page.data or len(self._data) + len(page.data) > page.size
        if wrong or page.size > VIEW_PAGES_BYTES_MAX or page.epoch < epoch:
            self.forget()
            raise ValueError(f"a page is missing or none, or is of epoch {page.epoch} behind {epoch}")
        self._data += page.data
        self._checksum = crc32(page.data, self._checksum)
        if len(self._data) < page.size:
            return None
        try:
            if self._checksum != page.checksum:
                raise ValueError("the pages are not of one view")
            self._reading = ViewReading(self._data)  # Unreadable is a ValueError
        except ValueError:
            self.forget()
            raise
        return self.advance() if page.size <= AT_ONCE_BYTES else None

    def advance(self) -> PolicyView | None:
        """Decode one slice of a completely received view; return it with the queued steps when it is finished.

        Raises:
            ValueError: The view is invalid or another one; the transfer is reset.
        """
        reading, of, steps = self._reading, self._of, self._steps
        if reading is None or of is None:
            return None
        try:
            if not reading.advance():
                return None
            view = reading.view
            if view.epoch != of[0]:
                raise ValueError("the view is of another epoch than its pages")
            for step in steps:  # ValueError if one does not fit
                if step.epoch == view.epoch + 1:
                    view.apply(step)
        except ValueError:
            self.forget()
            raise
        self.forget()
        return view

    def keep(self, step: PolicyStep) -> bool:
        """Queue a step until the view before it is complete; False if the queue is full."""
        self._steps.append(step)
        return len(self._steps) <= STEPS_MAX
