"""The routes of a shard by who said them: versions, reports that replace, and what is left of those that are gone.

A sender is an edge or a partition. What it says carries its epoch and a version: an older one undoes nothing newer.
What a report does not name any more, and what a dead edge had, *leaves*: it stays in the answers until its turn comes,
some filters at a time, for one edge may have hundreds of thousands. Until then messages for it go where nobody wants
them: a dead edge has no link, one that was started again and a partition drop what no filter of theirs matches, and a
destination without members of a group refuses, so that another one is picked. Nobody waits for a route to go.
"""

from collections import deque
from collections.abc import Sequence

from router.routes.trie import RouteTrie, Sender, Value
from wire.messages.routes import RouteEntry

__all__ = ["SenderRoutes", "sender_of"]

VERSION_BITS = 62  # of a route_version


def sender_of(peer: str, partition: int) -> Sender:
    """Return who a message's routes are of: the edge that sent it, or the partition that it names."""
    return (peer, -1) if partition < 0 else ("", partition)


class _Leaving:
    """Filters of one sender that may have to go: all of them, or those that a report did not repeat."""

    __slots__ = ("below", "filters", "names", "sender")

    def __init__(self, sender: Sender, filters: dict[str, int], below: int | None) -> None:
        self.sender = sender
        self.filters = filters
        self.names: list[str] | None = None  # not looked at yet; None: its turn has not come
        self.below = below  # those said before this go; None: the incarnation that said them is over


class SenderRoutes:
    """Filters and their senders.

    Attributes:
        routes: How many there are, those that leave included.
        bytes: Of their names: what a report of them is long.
    """

    def __init__(self) -> None:
        self.routes = 0
        self.bytes = 0
        self._trie = RouteTrie()
        self._senders: dict[Sender, Sender] = {}  # one object of equal ones, by which equal answers are known
        self._epochs: dict[Sender, int] = {}  # sender_epoch of what is here
        self.filters: dict[Sender, dict[str, int]] = {}  # filter, $share included -> when it was said
        self._reporting: dict[Sender, tuple[int, bool]] = {}  # a report that has begun, and whether others were there
        self._leaving: deque[_Leaving] = deque()

    @property
    def coarse(self) -> int:
        """Routes that reach more topics than their filters match."""
        return self._trie.coarse

    @property
    def leaves(self) -> bool:
        """Whether ``leave_some`` has something to do."""
        return bool(self._leaving)

    def match(self, topic: str) -> list[Value]:
        """Return the destinations of a topic, in no order, duplicates included."""
        return self._trie.match(topic)

    def accept(self, sender: Sender, sender_epoch: int) -> bool:
        """Refuse a former incarnation or partition_epoch; a newer one voids what the former said only by its report."""
        known = self._epochs.get(sender, 0)
        if sender_epoch > known:
            self._epochs[sender] = sender_epoch
            self._reporting.pop(sender, None)
        return sender_epoch >= known

    def put(self, sender: Sender, routes: Sequence[RouteEntry], version: int) -> list[str]:
        """Insert routes; return the filters, without share names, of destinations that answers so far lacked."""
        filters = self.filters.get(sender)
        if filters is None:
            filters = self.filters[sender] = {}
        sender = self._senders.setdefault(sender, sender)
        said = self._said(sender, version)
        fresh = []
        for route in routes:
            topic_filter, share = route.topic_filter, route.share_name
            name = _name(route)
            known = filters.get(name)
            if known is None or known < said:
                filters[name] = said
            if share:
                value = (*sender, f"{share}/{topic_filter}", route.members)
                self._trie.add(topic_filter, (*sender, share), value)
            elif known is None:
                self._trie.add(topic_filter, sender, sender)
            if known is None:
                self.routes += 1
                self.bytes += len(name)
                fresh.append(topic_filter)
        return fresh

    def remove(self, sender: Sender, route: RouteEntry, version: int) -> bool:
        """Remove a route unless something newer was said of it; True if it was there."""
        filters = self.filters.get(sender, {})
        name = _name(route)
        known = filters.get(name)
        if known is None or known >= self._said(sender, version):
            return False
        del filters[name]
        self._drop(sender, name)
        return True

    def report_begins(self, sender: Sender, version: int) -> None:
        """The first piece of a report: what it does not name goes when its last piece has come."""
        self._reporting[sender] = (self._said(sender, version), bool(self.filters.get(sender)))

    def report_ends(self, sender: Sender, version: int) -> bool:
        """The last piece was put in place, so what is older may go; False if it ends another report."""
        said, others = self._reporting.get(sender, (-1, False))
        if said != self._said(sender, version):
            return False
        del self._reporting[sender]
        if others:
            self._leaving.append(_Leaving(sender, self.filters[sender], said))
        return True

    def sender_dead(self, sender: Sender) -> None:
        """An incarnation is over, and so is what it said; its next one may say the same at once."""
        filters = self.filters.pop(sender, None)
        if filters:
            self._leaving.append(_Leaving(sender, filters, None))
        self._epochs.pop(sender, None)
        self._reporting.pop(sender, None)

    def leave_some(self, count: int) -> list[str]:
        """Look at so many of the filters that leave, at most; return those that are gone, without share names."""
        gone = []
        while self._leaving and count > 0:
            leaving = self._leaving[0]
            filters, below = leaving.filters, leaving.below
            live = self.filters.get(leaving.sender, filters)
            if leaving.names is None:
                leaving.names = list(filters)
            start = max(0, len(leaving.names) - count)
            for name in leaving.names[start:]:
                count -= 1
                if name not in filters or (below is not None and filters[name] >= below):
                    continue
                del filters[name]
                if name in live:  # a later incarnation said it again: its destination stands in the same place
                    self._count(name)
                else:
                    self._drop(leaving.sender, name)
                gone.append(_parts(name)[1])
            del leaving.names[start:]
            if not leaving.names:
                self._leaving.popleft()
        return gone

    def _said(self, sender: Sender, version: int) -> int:
        """Return one number for an epoch and a version, which orders as the pair does."""
        return self._epochs.get(sender, 0) << VERSION_BITS | version

    def _drop(self, sender: Sender, name: str) -> None:
        share, topic_filter = _parts(name)
        self._trie.remove(topic_filter, (*sender, share) if share else sender)
        self._count(name)

    def _count(self, name: str) -> None:
        self.routes -= 1
        self.bytes -= len(name)


def _name(route: RouteEntry) -> str:
    """Return a filter as its subscriber wrote it."""
    return f"$share/{route.share_name}/{route.topic_filter}" if route.share_name else route.topic_filter


def _parts(name: str) -> tuple[str, str]:
    """Return (share name, topic filter); no ordinary filter begins with $share/ (MQTT 5.0 section 4.8.2)."""
    if not name.startswith("$share/"):
        return "", name
    share, _, topic_filter = name[7:].partition("/")
    return share, topic_filter
