"""Filters of a live session that exceed the response to its CONNECT: sent to its edge in pages.

The pages list the session's filters at the first request. Later changes neither shift nor repeat a filter; removed
ones are omitted. A new primary lacks that list and replies so: the edge restarts. Decision:
docs/adr/0134-filters-of-large-sessions.md.
"""

from collections import OrderedDict
from itertools import islice

from storage.state.partition import Partition
from wire.messages.sessions import FiltersListed, ListFilters

__all__ = ["LISTS_MAX", "PAGE_FILTERS", "PartitionFilterReads"]

PAGE_FILTERS = 250  # the edge authorizes a page at once: 5 to 10 us each
PAGE_BYTES = 256 * 1024  # of text; a character may take four
LISTS_MAX = 256  # sessions that are read at once; an edge reads a few. Above it the oldest read restarts


class PartitionFilterReads:
    """The sessions of one partition whose filters are being read."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._lists: OrderedDict[int, tuple[int, list[str]]] = OrderedDict()  # session -> owner_epoch, filters

    def __len__(self) -> int:
        """Return how many sessions are being read."""
        return len(self._lists)

    def list_some(self, request: ListFilters, edge: str) -> None:
        """Send the next page to an edge."""
        answer = FiltersListed(request.request)
        session = self._partition.sessions.get(request.session)
        if session is not None and session.owner_epoch == request.owner_epoch:
            if not request.skip:
                self._lists[session.number] = session.owner_epoch, list(session.made("subscriptions") or ())
                self._lists.move_to_end(session.number)
                if len(self._lists) > LISTS_MAX:
                    self._lists.popitem(last=False)
            owner_epoch, names = self._lists.get(session.number, (0, []))
            if owner_epoch == session.owner_epoch:
                held, octets, passed = session.subscriptions, PAGE_BYTES, request.skip
                for name in islice(names, request.skip, request.skip + PAGE_FILTERS):
                    if octets <= 0:
                        break
                    passed += 1
                    if name in held:
                        answer.subscriptions.append(held[name])
                        octets -= 4 * len(name)
                if passed < len(names):
                    answer.next_skip = passed
                else:
                    self._lists.pop(session.number)
            else:
                answer.again = True
        self._partition.send_control(edge, answer)
