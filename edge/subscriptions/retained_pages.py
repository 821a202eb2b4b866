"""Pages of retained messages that wait to be judged and delivered: some in a turn, one page of each client in turn.

A wildcard brings thousands of messages at once, and each costs the edge more than a live one. Taken as they come, those
of a client that subscribes again and again stand between everybody else's messages. A page that nothing waits for is
taken at once. Bounded: with more than ``BYTES_MAX`` waiting a page is taken at once as well, so that the link waits.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from edge.clients.client import Client
from wire.messages.retained import RetainedPage

__all__ = ["RetainedPages"]

MESSAGES_PER_TURN = 50
BYTES_MAX = 16 * 1024 * 1024
MESSAGE_BYTES = 500  # what a message takes besides its payload, about
PAGE_MESSAGES = 1  # what a page costs besides its messages

Take = Callable[[], None]


class RetainedPages:
    """The waiting pages of one edge."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Client, deque[tuple[Take, int, int]]] = OrderedDict()
        self._bytes = 0
        self._taken = 0  # messages in this turn

    def __len__(self) -> int:
        """Return how many clients have pages here."""
        return len(self._waiting)

    def put(self, client: Client, page: RetainedPage, take: Take) -> None:
        """Have a page taken, now or in a later turn.

        Args:
            client: Who waits for it.
            page: What came.
            take: Judges and delivers it, or sees that nobody wants it any more.
        """
        messages = PAGE_MESSAGES + len(page.messages)
        if self._bytes >= BYTES_MAX or (not self._waiting and self._taken < MESSAGES_PER_TURN):
            self._taken += messages
            take()
            return
        size = sum(MESSAGE_BYTES + len(message.payload) for message in page.messages)
        self._waiting.setdefault(client, deque()).append((take, messages, size))
        self._bytes += size

    def next_turn(self) -> None:
        """Take what this turn has left for them."""
        while self._waiting and self._taken < MESSAGES_PER_TURN:
            client, pages = next(iter(self._waiting.items()))
            take, messages, size = pages.popleft()
            if pages:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            self._bytes -= size
            self._taken += messages
            take()
        self._taken = 0
