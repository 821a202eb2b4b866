"""The routes of a shard by sender: versions, reports that replace older routes, and lazy removal.

A sender is an edge or a partition. Its messages carry its epoch and a version, so an older message never undoes a newer
one. Routes that a report omits, and those of a dead edge, are *leaving*: they stay in the answers until they are
removed in slices, because one edge may have hundreds of thousands. Messages to them are harmless: a
dead edge has no link, a restarted edge or a partition drops messages without a matching filter. A destination without
group members refuses, so that another is picked. No request waits for a removal.
"""

from collections import deque
from collections.abc import Sequence

from router.routes.trie import RouteTrie, Sender, Value
from wire.messages.routes import RouteEntry

__all__ = ["SenderRoutes", "sender_of"]

VERSION_BITS = 62  # of a route_version


def sender_of(peer: str, partition: int) -> Sender:
    """Return the sender of a message's routes: the sending edge, or the named partition."""
    return (peer, -1) if partition < 0 else ("", partition)


class _Leaving:
    """Filters of one sender to remove: all, or those that a report did not repeat."""

    __slots__ = ("below", "filters", "names", "sender")

    def __init__(self, sender: Sender, filters: dict[str, int], below: int | None) -> None:
        self.sender = sender
        self.filters = filters
        self.names: list[str] | None = None  # remaining names; None: not started
        self.below = below  # remove routes of older versions; None: remove all, the incarnation ended


class SenderRoutes:
    """Filters and their senders.

    Attributes:
        routes: Number of routes, including leaving ones.
        bytes: Total length of their names, as in a report.
    """

    def __init__(self) -> None:
        self.routes = 0
        self.bytes = 0
        self._trie = RouteTrie()
        self._senders: dict[Sender, Sender] = {}  # interned, so that equal answers have the same objects
        self._epochs: dict[Sender, int] = {}  # sender_epoch of the stored routes
        self.filters: dict[Sender, dict[str, int]] = {}  # filter, $share included -> its version
        self._reporting: dict[Sender, tuple[int, bool]] = {}  # version of a started report, older routes existed
        self._leaving: deque[_Leaving] = deque()

    @property
    def coarse(self) -> int:
        """Number of routes that reach more topics than their filters match."""
        return self._trie.coarse

    @property
    def has_leaving(self) -> bool:
        """Whether ``remove_some`` has work."""
        return bool(self._leaving)

    def match(self, topic: str) -> list[Value]:
        """Return the destinations of a topic, unordered, with duplicates."""
        return self._trie.match(topic)

    def accept(self, sender: Sender, sender_epoch: int) -> bool:
        """Refuse a former incarnation or partition_epoch; a newer one replaces old routes only by its report."""
        known = self._epochs.get(sender, 0)
        if sender_epoch > known:
            self._epochs[sender] = sender_epoch
            self._reporting.pop(sender, None)
        return sender_epoch >= known

    def put(self, sender: Sender, routes: Sequence[RouteEntry], version: int) -> list[str]:
        """Insert routes; return the filters, without share names, of destinations that earlier answers lack."""
        filters = self.filters.get(sender)
        if filters is None:
            filters = self.filters[sender] = {}
        sender = self._senders.setdefault(sender, sender)
        version_number = self._ordered_version(sender, version)
        fresh = []
        for route in routes:
            topic_filter, share = route.topic_filter, route.share_name
            name = _name(route)
            known = filters.get(name)
            if known is None or known < version_number:
                filters[name] = version_number
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
        """Remove a route unless a newer message named it; True if it existed."""
        filters = self.filters.get(sender, {})
        name = _name(route)
        known = filters.get(name)
        if known is None or known >= self._ordered_version(sender, version):
            return False
        del filters[name]
        self._drop(sender, name)
        return True

    def report_begins(self, sender: Sender, version: int) -> None:
        """Start a report: routes that it omits are removed after its last piece."""
        self._reporting[sender] = (self._ordered_version(sender, version), bool(self.filters.get(sender)))

    def report_ends(self, sender: Sender, version: int) -> bool:
        """Complete a report, so that older routes may leave; False if another report was started."""
        version_number, others = self._reporting.get(sender, (-1, False))
        if version_number != self._ordered_version(sender, version):
            return False
        del self._reporting[sender]
        if others:
            self._leaving.append(_Leaving(sender, self.filters[sender], version_number))
        return True

    def sender_dead(self, sender: Sender) -> None:
        """Remove the routes of an ended incarnation; its next one may add the same at once."""
        filters = self.filters.pop(sender, None)
        if filters:
            self._leaving.append(_Leaving(sender, filters, None))
        self._epochs.pop(sender, None)
        self._reporting.pop(sender, None)

    def remove_some(self, count: int) -> list[str]:
        """Check at most ``count`` leaving filters; return the removed ones, without share names."""
        removed = []
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
                if name in live:  # a later incarnation added it again, at the same place in the trie
                    self._count(name)
                else:
                    self._drop(leaving.sender, name)
                removed.append(_parts(name)[1])
            del leaving.names[start:]
            if not leaving.names:
                self._leaving.popleft()
        return removed

    def _ordered_version(self, sender: Sender, version: int) -> int:
        """Combine epoch and version into one number with the same order as the pair."""
        return self._epochs.get(sender, 0) << VERSION_BITS | version

    def _drop(self, sender: Sender, name: str) -> None:
        share, topic_filter = _parts(name)
        self._trie.remove(topic_filter, (*sender, share) if share else sender)
        self._count(name)

    def _count(self, name: str) -> None:
        self.routes -= 1
        self.bytes -= len(name)


def _name(route: RouteEntry) -> str:
    """Return a filter in its subscription syntax."""
    return f"$share/{route.share_name}/{route.topic_filter}" if route.share_name else route.topic_filter


def _parts(name: str) -> tuple[str, str]:
    """Return (share name, topic filter); no ordinary filter starts with $share/ (MQTT 5.0 section 4.8.2)."""
    if not name.startswith("$share/"):
        return "", name
    share, _, topic_filter = name[7:].partition("/")
    return share, topic_filter
