"""A whole view in pages: cut by a router, asked for one after the other, put together by a node.

As with the map (``wire/messages/map_pages.py``): a page is bytes of the encoded view at one policy_epoch; one at
offset 0 begins anew, one that does not continue what is there is left out, and steps that come meanwhile wait for the
last page. Unlike the map, the encodings of two routers may differ, so a page is only asked of the router that sent
the first; the checksum finds a mixture. A view of a lower epoch than the node has is refused: rights that were taken
would come back.
"""

from zlib import crc32

import msgspec

from access.policy.step import PolicyStep
from access.policy.view import PolicyView, ViewReading
from wire.messages.ranges import MAP_PAGE_BYTES

__all__ = ["STEPS_MAX", "VIEW_PAGES_BYTES_MAX", "PolicyPage", "PolicyPages", "PolicyReader"]

VIEW_PAGES_BYTES_MAX = 64 * 1024 * 1024  # access/policy/bounds.py keeps every view below it
ENCODED_MAX = 4  # epochs of which some node may still be reading pages
AT_ONCE_BYTES = 64 * 1024  # a view that is read in the turn of its last page
STEPS_MAX = 256  # that wait for the last page; with more, reading begins anew


class PolicyPage(msgspec.Struct, frozen=True):
    """Bytes of a view from ``offset`` on; size and checksum are of the whole view."""

    epoch: int
    offset: int
    size: int
    checksum: int
    data: bytes


class PolicyPages:
    """A router's side: the encodings from which pages are cut."""

    def __init__(self, page_bytes: int = MAP_PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._encoded: dict[int, tuple[bytes, int]] = {}  # epoch -> bytes, checksum; the least recently used first

    def clear(self) -> None:
        """Forget all: another policy took the place of the one before."""
        self._encoded.clear()

    def has(self, epoch: int) -> bool:
        """Return whether the view of an epoch is encoded already."""
        return epoch in self._encoded

    def put(self, epoch: int, data: bytes) -> None:
        """Keep the encoding of an epoch; of too many, the one goes that was used longest ago."""
        self._encoded[epoch] = data, crc32(data)
        while len(self._encoded) > ENCODED_MAX:
            del self._encoded[next(iter(self._encoded))]

    def page(self, epoch: int, offset: int) -> PolicyPage | None:
        """Return a page, None if there is none of that epoch and offset: the node begins with the newest."""
        known = self._encoded.get(epoch)
        if known is None or not 0 <= offset < len(known[0]):
            return None
        data, checksum = self._encoded[epoch] = self._encoded.pop(epoch)
        return PolicyPage(epoch, offset, len(data), checksum, data[offset : offset + self._page_bytes])


class PolicyReader:
    """A node's side: the pages that came so far, and the steps behind them."""

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None  # epoch, size, checksum of the view that is being read
        self._data = bytearray()
        self._checksum = 0  # of what came so far
        self._reading: ViewReading | None = None  # all pages are there
        self._steps: list[PolicyStep] = []

    @property
    def wanted(self) -> tuple[int, int] | None:
        """Return epoch and offset of the next page, None if nothing is being read, or all pages are there."""
        return None if self._of is None or self._reading is not None else (self._of[0], len(self._data))

    @property
    def is_reading(self) -> bool:
        """Whether steps have to wait for a view."""
        return self._of is not None

    @property
    def is_whole(self) -> bool:
        """Whether all pages are there, and ``advance`` has something to do."""
        return self._reading is not None

    def forget(self) -> None:
        """Begin anew."""
        self._of = None
        self._data = bytearray()
        self._checksum = 0
        self._reading = None
        self._steps = []

    def take(self, page: PolicyPage, epoch: int) -> PolicyView | None:
        """Take a page; return the view, if this was the last page and one slice makes it (see ``advance``).

        A page of another view, or one that was taken before, changes nothing.

        Args:
            epoch: The node's own.
        Raises:
            ValueError: Pages are missing, make no view, or make an older one; what was read is forgotten.
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
        """Read one slice of a view whose pages are all there; return it, with the steps that came, once it is read.

        Raises:
            ValueError: It is none, or another one; it is forgotten.
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
        """Keep a step until the view before it is whole; False if too many wait."""
        self._steps.append(step)
        return len(self._steps) <= STEPS_MAX
