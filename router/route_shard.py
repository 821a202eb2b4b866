"""One route shard at its owner: filters and their destinations, and which edges hold cached answers.

``AddRoutes`` is acknowledged when no edge can still use an answer that lacks the new routes: every edge that cached a
matching topic has dropped it, or is dead. Routes are soft state of the delivery nodes, so a new owner first collects:
a report of every live edge and every partition, and every live edge's cached topics, which it answers like questions
("a registration is a resolution"). Sans-IO. Rules: docs/adr/0003-cluster-map-leases-completion.md.
"""

from collections import OrderedDict
from collections.abc import Iterable

from mqtt.topic_index import TopicIndex
from mqtt.topic_trie import TopicTrie
from wire.messages import (
    AddRoutes,
    Control,
    Destinations,
    GroupDestinations,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    ReportRoutes,
    Resolve,
    Resolved,
    RouteEntry,
    RoutesAdded,
    SenderReport,
)

__all__ = ["RouteShard"]

INVALIDATE_FILTERS_MAX = 1_000  # in one message

Sender = tuple[str, int]  # (edge name, -1) or ("", partition)
RouteKey = tuple[str, int, str]  # sender, share name


class _Waiting:
    """An AddRoutes that waits for invalidations."""

    __slots__ = ("numbers", "peer", "reply")

    def __init__(self, peer: str, reply: RoutesAdded, numbers: set[int]) -> None:
        self.peer = peer
        self.reply = reply
        self.numbers = numbers


class RouteShard:
    """The routes of one shard, at one shard_epoch."""

    def __init__(
        self, number: int, epoch: int, edges: Iterable[str], partitions: Iterable[int], cached_topics_max: int
    ) -> None:
        """Begin to own a shard.

        Args:
            number: Of the shard.
            epoch: shard_epoch; messages at another one never come here.
            edges: Live edges when the epoch began: each must report its filters and its cached topics.
            partitions: Partitions that were ever placed: each must be reported.
            cached_topics_max: Bound of the table of cached topics.
        """
        self.number = number
        self.epoch = epoch
        self.routes = 0
        self._trie = TopicTrie()
        self._versions: dict[Sender, int] = {}  # sender_epoch of what is here
        self._filters: dict[Sender, dict[tuple[str, str], int]] = {}  # (filter, share) -> route_version
        self._cached: TopicIndex[set[str]] = TopicIndex()
        self._oldest: OrderedDict[str, None] = OrderedDict()
        self._cached_max = cached_topics_max
        self._unreported: set[Sender] = {(edge, -1) for edge in edges} | {("", partition) for partition in partitions}
        self._unregistered: set[str] = set(edges)
        self._held: list[tuple[str, Resolve]] = []
        self._held_adds: list[tuple[str, AddRoutes]] = []
        self._invalidations: dict[int, set[str]] = {}  # number -> edges that have not acknowledged
        self._unsettled: dict[tuple[Sender, str, str], set[int]] = {}  # route -> its invalidations under way
        self._waiting: list[_Waiting] = []
        self._next_invalidation = 0
        self._sends: list[tuple[str, Control]] = []

    # --- what the owner asks

    @property
    def collecting(self) -> bool:
        """True until everybody has reported; questions wait."""
        return bool(self._unreported)

    def missing(self) -> list[str]:
        """Return who has not reported or registered, for the status page."""
        reported = [edge if edge else f"partition {partition}" for edge, partition in sorted(self._unreported)]
        return reported + [f"topics of {edge}" for edge in sorted(self._unregistered)]

    @property
    def cached_topics(self) -> int:
        """Topics that some edge holds an answer for."""
        return len(self._cached)

    def take_sends(self) -> list[tuple[str, Control]]:
        """Return (node, message) to send, in order."""
        sends, self._sends = self._sends, []
        return sends

    # --- questions

    def resolve(self, edge: str, request: Resolve) -> None:
        """Answer topics, and note that the edge now caches them."""
        if self.collecting:
            self._held.append((edge, request))
            return
        answers = [self.destinations(topic) for topic in request.topics]
        for topic in request.topics:
            holders = self._cached.get(topic)
            if holders is None:
                self._cached.add(topic, {edge})
                self._oldest[topic] = None
            else:
                holders.add(edge)
        self._sends.append((edge, Resolved(request.request, self.number, self.epoch, answers)))
        if request.kept:
            self._unregistered.discard(edge)
            self._retry_adds()
        self._trim()

    def destinations(self, topic: str) -> Destinations:
        """Return where a topic's messages must go."""
        edges: set[str] = set()
        partitions: set[int] = set()
        groups: dict[str, GroupDestinations] = {}
        for sender, share, topic_filter, members in self._trie.match(topic):
            edge, partition = sender
            if not share:
                if edge:
                    edges.add(edge)
                else:
                    partitions.add(partition)
                continue
            group = groups.setdefault(f"{share}/{topic_filter}", GroupDestinations(f"{share}/{topic_filter}"))
            if edge:
                group.edges.append((edge, members))
            else:
                group.partitions.append((partition, members))
        for group in groups.values():
            group.edges.sort()
            group.partitions.sort()
        return Destinations(sorted(edges), sorted(partitions), [groups[name] for name in sorted(groups)])

    def _trim(self) -> None:
        """Keep the table of cached topics within its bound: drop the oldest at its edges, then here."""
        excess = len(self._oldest) - self._cached_max
        if excess <= 0:
            return
        names = [next(iter(self._oldest))]
        for name in self._oldest:
            if len(names) > excess:
                break
            names.append(name)
        self._invalidate(names, set())

    # --- registrations

    def add(self, peer: str, request: AddRoutes) -> None:
        """Add routes; the answer leaves when every matching cached answer is gone."""
        if self.collecting or self._unregistered:
            self._held_adds.append((peer, request))
            return
        sender = _sender(peer, request.partition)
        if not self._accept(sender, request.sender_epoch):
            return
        changed = []
        for route in request.routes:
            if self._put(sender, route, request.route_version):
                changed.append(route)
        if changed:
            numbers: set[int] = set()
            self._invalidate([route.topic_filter for route in changed], numbers)
            for route in changed:
                if numbers:
                    self._unsettled[sender, route.topic_filter, route.share_name] = set(numbers)
        waits: set[int] = set()
        for route in request.routes:  # a route that was here already may still have its invalidation under way
            waits |= self._unsettled.get((sender, route.topic_filter, route.share_name), set())
        reply = RoutesAdded(request.request, self.number, self.epoch)
        if waits:
            self._waiting.append(_Waiting(peer, reply, waits))
        else:
            self._sends.append((peer, reply))

    def remove(self, peer: str, request: RemoveRoutes) -> None:
        """Remove routes, unless a newer add of the same sender came first; lazily, nobody waits."""
        sender = _sender(peer, request.partition)
        if not self._accept(sender, request.sender_epoch):
            return
        filters = self._filters.get(sender, {})
        gone = []
        for route in request.routes:
            version = filters.get((route.topic_filter, route.share_name))
            if version is not None and version < request.route_version:
                self._drop(sender, route.topic_filter, route.share_name)
                gone.append(route.topic_filter)
        if gone:
            self._invalidate(gone, set())

    def report(self, peer: str, request: ReportRoutes) -> None:
        """Take whole reports: each replaces everything older of its sender."""
        for report in request.reports:
            self._report(_sender(peer, report.partition), report)
        self._retry()

    def _report(self, sender: Sender, report: SenderReport) -> None:
        if not self._accept(sender, report.sender_epoch):
            return
        if report.first:
            for (topic_filter, share), version in list(self._filters.get(sender, {}).items()):
                if version <= report.route_version:
                    self._drop(sender, topic_filter, share)
        for route in report.routes:
            self._put(sender, route, report.route_version)
        if report.last:
            self._unreported.discard(sender)

    def _accept(self, sender: Sender, sender_epoch: int) -> bool:
        """Refuse a former incarnation or partition_epoch; a newer one voids what the former said only by its report."""
        known = self._versions.get(sender, 0)
        if sender_epoch < known:
            return False
        if sender_epoch > known:  # its versions count from the beginning again
            filters = self._filters.get(sender, {})
            for name in filters:
                filters[name] = 0
            self._versions[sender] = sender_epoch
        return True

    def _put(self, sender: Sender, route: RouteEntry, version: int) -> bool:
        """Insert a route; True if it is a destination that answers so far lacked."""
        filters = self._filters.setdefault(sender, {})
        name = (route.topic_filter, route.share_name)
        known = name in filters
        filters[name] = max(version, filters.get(name, 0))
        key = (*sender, route.share_name)
        self._trie.add(route.topic_filter, key, (sender, route.share_name, route.topic_filter, route.members))
        if not known:
            self.routes += 1
        return not known

    def _drop(self, sender: Sender, topic_filter: str, share: str) -> None:
        del self._filters[sender][topic_filter, share]
        self._trie.remove(topic_filter, (*sender, share))
        self._unsettled.pop((sender, topic_filter, share), None)
        self.routes -= 1

    # --- invalidation

    def _invalidate(self, topic_filters: list[str], numbers: set[int]) -> None:
        """Ask every edge that caches a matching topic to drop it; add the numbers of what must be acknowledged."""
        for start in range(0, len(topic_filters), INVALIDATE_FILTERS_MAX):
            piece = topic_filters[start : start + INVALIDATE_FILTERS_MAX]
            holders: set[str] = set()
            for topic_filter in piece:
                for topic, edges in list(self._cached.match(topic_filter)):
                    holders |= edges
                    self._cached.remove(topic)
                    self._oldest.pop(topic, None)
            if not holders:
                continue
            self._next_invalidation += 1
            number = self._next_invalidation
            self._invalidations[number] = set(holders)
            numbers.add(number)
            for edge in sorted(holders):
                self._sends.append((edge, Invalidate(number, self.number, piece)))

    def invalidated(self, edge: str, answer: Invalidated) -> None:
        """An edge has dropped what an invalidation named."""
        edges = self._invalidations.get(answer.number)
        if edges is None:
            return
        edges.discard(edge)
        if not edges:
            self._settle(answer.number)

    def _settle(self, number: int) -> None:
        del self._invalidations[number]
        for name in [name for name, numbers in self._unsettled.items() if number in numbers]:
            self._unsettled[name].discard(number)
            if not self._unsettled[name]:
                del self._unsettled[name]
        waiting = []
        for item in self._waiting:
            item.numbers.discard(number)
            if item.numbers:
                waiting.append(item)
            else:
                self._sends.append((item.peer, item.reply))
        self._waiting = waiting

    # --- the map

    def edge_dead(self, edge: str) -> None:
        """The map declares an edge dead: its routes and cached answers are gone, nobody waits for it."""
        sender: Sender = (edge, -1)
        gone = []
        for topic_filter, share in list(self._filters.get(sender, {})):
            self._drop(sender, topic_filter, share)
            gone.append(topic_filter)
        self._filters.pop(sender, None)
        self._versions.pop(sender, None)
        self._unreported.discard(sender)
        self._unregistered.discard(edge)
        self._held = [(peer, request) for peer, request in self._held if peer != edge]
        self._held_adds = [(peer, request) for peer, request in self._held_adds if peer != edge]
        for number in [number for number, edges in self._invalidations.items() if edge in edges]:
            self.invalidated(edge, Invalidated(number, self.number))
        if gone:
            self._invalidate(gone, set())
        self._retry()

    def _retry(self) -> None:
        """Answer what waited for the reports."""
        if self.collecting:
            return
        held, self._held = self._held, []
        for edge, request in held:
            self.resolve(edge, request)
        self._retry_adds()

    def _retry_adds(self) -> None:
        if self.collecting or self._unregistered:
            return
        held, self._held_adds = self._held_adds, []
        for peer, request in held:
            self.add(peer, request)


def _sender(peer: str, partition: int) -> Sender:
    return (peer, -1) if partition < 0 else ("", partition)
