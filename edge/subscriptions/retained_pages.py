"""Pages of retained messages that wait to be delivered: some in a turn, one page of each client in turn.

A wildcard brings thousands of messages at once, and each costs the edge more than a live one. Taken as they come, those
of a client that subscribes again and again stand between everybody else's messages. A page that nothing waits for is
taken at once. A page whose client has no room for all of it waits for that client alone.

Bounded: with more than ``BYTES_MAX`` waiting a page is taken at once, and what its client has no room for is put back:
it is read again later. So is what a client without room would hold beyond ``CLIENT_BYTES_MAX``.
"""

from collections import OrderedDict, deque
from typing import Protocol

from edge.clients.client import Client

__all__ = ["MESSAGE_BYTES", "RetainedPage", "RetainedPages"]

MESSAGES_PER_TURN = 50
BYTES_MAX = 16 * 1024 * 1024
CLIENT_BYTES_MAX = 256 * 1024  # of pages that wait for the room of one client, or one page
MESSAGE_BYTES = 500  # what a message takes besides its payload, about
PAGE_MESSAGES = 1  # what a page costs besides its messages


class RetainedPage(Protocol):
    """A page on its way to a client."""

    @property
    def client(self) -> Client:
        """The client that waits for it."""

    @property
    def count(self) -> int:
        """How many messages are left in it."""

    @property
    def size(self) -> int:
        """Bytes that they take, about."""

    def take(self) -> bool:
        """Deliver as much as the client has room for; False if some are left, and ``resume`` follows."""

    def put_back(self) -> None:
        """Keep nothing of the rest: it is read again when the client has room."""


class _Stalled:
    """Pages of a client without room."""

    __slots__ = ("bytes", "pages")

    def __init__(self) -> None:
        self.pages: deque[tuple[RetainedPage, int]] = deque()
        self.bytes = 0


class RetainedPages:
    """The waiting pages of one edge."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Client, deque[tuple[RetainedPage, int]]] = OrderedDict()
        self._stalled: dict[Client, _Stalled] = {}
        self._bytes = 0  # of all of them
        self._taken = 0  # messages in this turn

    def __len__(self) -> int:
        """Return how many clients have pages that the next turn goes on with."""
        return len(self._waiting)

    def has(self, client: Client) -> bool:
        """Return whether pages of a client are here."""
        return client in self._waiting or client in self._stalled

    def is_stalled(self, client: Client) -> bool:
        """Return whether a client has no room for its pages."""
        return client in self._stalled

    @property
    def stalled(self) -> int:
        """How many clients have pages here and no room for them."""
        return len(self._stalled)

    @property
    def held_bytes(self) -> int:
        """Bytes of all pages here, about."""
        return self._bytes

    def put(self, page: RetainedPage) -> None:
        """Have a page delivered, now or in a later turn."""
        if page.client in self._stalled:
            self._stall(page)
        elif self._bytes >= BYTES_MAX or (not self._waiting and self._taken < MESSAGES_PER_TURN):
            self._take(page)
        else:
            size = page.size
            self._waiting.setdefault(page.client, deque()).append((page, size))
            self._bytes += size

    def _take(self, page: RetainedPage) -> None:
        before = page.count
        whole = page.take()
        self._taken += PAGE_MESSAGES + (before if whole else before - page.count)
        if not whole:
            self._stall(page, first=True)

    def _stall(self, page: RetainedPage, *, first: bool = False) -> None:
        size = page.size
        stalled = self._stalled.get(page.client)
        if self._bytes + size > BYTES_MAX or (stalled is not None and stalled.bytes + size > CLIENT_BYTES_MAX):
            page.put_back()
            return
        if stalled is None:
            stalled = self._stalled[page.client] = _Stalled()
        if first:
            stalled.pages.appendleft((page, size))
        else:
            stalled.pages.append((page, size))
        stalled.bytes += size
        self._bytes += size
        if first:  # nothing else of the client is tried before it has room
            for other, octets in self._waiting.pop(page.client, ()):
                self._bytes -= octets
                self._stall(other)

    def resume(self, client: Client) -> None:
        """Go on with a client's pages: it has room, or wants some of them no more."""
        stalled = self._stalled.pop(client, None)
        if stalled is not None:
            self._waiting.setdefault(client, deque()).extend(stalled.pages)

    def next_turn(self) -> None:
        """Take what this turn has left for them."""
        while self._waiting and self._taken < MESSAGES_PER_TURN:
            client, pages = next(iter(self._waiting.items()))
            page, size = pages.popleft()
            if pages:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            self._bytes -= size
            self._take(page)
        self._taken = 0
