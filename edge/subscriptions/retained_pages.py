"""Queue of retained pages for delivery: bounded work an iteration, round robin by client.

A wildcard can match thousands of retained messages, and each costs the edge more than a live one. Without a queue a
client that subscribes repeatedly would delay all other messages. A page is delivered at once while the queue is empty.
A page that its client cannot accept whole waits for that client alone.

Bounded: beyond ``BYTES_MAX`` a page is delivered at once, and its unaccepted rest is read again later. The same applies
to pages of one client beyond ``CLIENT_BYTES_MAX``.
"""

from collections import OrderedDict, deque
from typing import Protocol

from edge.clients.client import Client

__all__ = ["MESSAGE_BYTES", "RetainedPage", "RetainedPages"]

MESSAGES_PER_ITERATION = 50
BYTES_MAX = 16 * 1024 * 1024
CLIENT_BYTES_MAX = 256 * 1024  # of pages that one client cannot accept, or one page
MESSAGE_BYTES = 500  # approximate memory of a message besides its payload
PAGE_MESSAGES = 1  # cost of a page besides its messages


class RetainedPage(Protocol):
    """A page for a client."""

    @property
    def client(self) -> Client:
        """The receiving client."""

    @property
    def count(self) -> int:
        """Number of messages left in it."""

    @property
    def size(self) -> int:
        """Their approximate memory in bytes."""

    def take(self) -> bool:
        """Deliver as much as the client accepts; False if some are left, and ``resume`` follows."""

    def put_back(self) -> None:
        """Discard the rest: it is read again when the client accepts more."""


class _StalledPages:
    """Pages of a client that accepts no more output."""

    __slots__ = ("bytes", "pages")

    def __init__(self) -> None:
        self.pages: deque[tuple[RetainedPage, int]] = deque()
        self.bytes = 0


class RetainedPages:
    """The queued pages of one edge."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Client, deque[tuple[RetainedPage, int]]] = OrderedDict()
        self._stalled: dict[Client, _StalledPages] = {}
        self._bytes = 0  # of all of them
        self._taken = 0  # messages in this iteration

    def __len__(self) -> int:
        """Return the number of clients with pages for the next iteration."""
        return len(self._waiting)

    def has(self, client: Client) -> bool:
        """Return whether pages of a client are queued."""
        return client in self._waiting or client in self._stalled

    def is_stalled(self, client: Client) -> bool:
        """Return whether a client accepts no more of its pages."""
        return client in self._stalled

    @property
    def stalled(self) -> int:
        """Number of clients with stalled pages."""
        return len(self._stalled)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all pages in bytes."""
        return self._bytes

    def put(self, page: RetainedPage) -> None:
        """Deliver a page, now or in a later iteration."""
        if page.client in self._stalled:
            self._stall(page)
        elif self._bytes >= BYTES_MAX or (not self._waiting and self._taken < MESSAGES_PER_ITERATION):
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
            stalled = self._stalled[page.client] = _StalledPages()
        if first:
            stalled.pages.appendleft((page, size))
        else:
            stalled.pages.append((page, size))
        stalled.bytes += size
        self._bytes += size
        if first:  # other pages of the client wait too
            for other, octets in self._waiting.pop(page.client, ()):
                self._bytes -= octets
                self._stall(other)

    def resume(self, client: Client) -> None:
        """Continue with a client's pages: it accepts more, or removed some subscriptions."""
        stalled = self._stalled.pop(client, None)
        if stalled is not None:
            self._waiting.setdefault(client, deque()).extend(stalled.pages)

    def next_turn(self) -> None:
        """Deliver pages within the rest of this iteration's budget."""
        while self._waiting and self._taken < MESSAGES_PER_ITERATION:
            client, pages = next(iter(self._waiting.items()))
            page, size = pages.popleft()
            if pages:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            self._bytes -= size
            self._take(page)
        self._taken = 0
