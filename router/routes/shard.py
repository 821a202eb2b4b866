"""One route shard at its owner: filters with their destinations, and the edges that cache answers.

``AddRoutes`` is acknowledged when no edge can use an answer without the new routes: every edge that cached a matching
topic has dropped it, or is dead. Routes are soft state of the delivery nodes, so a new owner first collects a report
of every live edge and partition. It also collects every live edge's cached topics and answers them like requests: a
registration is a resolution. Sans-IO. Rules: docs/protocol.md section 3.
"""

from collections import deque
from collections.abc import Iterable

from router.routes.answers import AnswerTable
from router.routes.cached_topics import CachedTopics, Invalidation
from router.routes.held_messages import SenderMessages
from router.routes.sender_routes import SenderRoutes, sender_of
from router.routes.sweep import FilterSearch
from router.routes.trie import Sender
from wire.messages.control import Control
from wire.messages.pieces import pieces
from wire.messages.routes import (
    AddRoutes,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    ReportRoutes,
    Resolve,
    Resolved,
    RoutesAdded,
    SenderReport,
)

__all__ = ["RouteShard"]

INVALIDATE_FILTERS_MAX = 1_000  # in one message
VISITS_AT_ONCE = 300  # cached topics visited when a message arrives; later iterations visit the others
LEAVING_AT_ONCE = 100  # topics of a completed invalidation that the last acknowledgement removes
YOUNG_S = 1.0  # minimum age for eviction; otherwise an edge with more topics than the table would resolve endlessly
YOUNG_MAX = 10_000  # topics above the table's bound that may stay for that
FORGOTTEN_AT_ONCE = 400  # evicted topics; more than one request adds, so that the table shrinks
REPEAT_S = 1.0  # before an unacknowledged invalidation is repeated: a full link may have refused it


class _Waiter:
    """An AddRoutes that waits for invalidations to be acknowledged."""

    __slots__ = ("left", "peer", "reply")

    def __init__(self, peer: str, reply: RoutesAdded, left: int) -> None:
        self.peer = peer
        self.reply = reply
        self.left = left


class RouteShard:
    """The routes of one shard, at one shard_epoch.

    States only advance; another shard_epoch is another object, which starts at the first state.

    ===========  ================================================  =============================================
    state        meaning                                           transition
    ===========  ================================================  =============================================
    collecting   a sender has not reported; requests and           each sender's last report, or an edge's death
                 AddRoutes wait in order, no answers
    registering  all have reported, an edge has not received the   ``Invalidated`` for the order after its
                 answer to its cached topics; requests are         answer, or its death
                 answered, AddRoutes wait
    serving      all edges are registered; AddRoutes is answered   the map assigns the shard elsewhere
                 when no order for a matching topic is open
    ===========  ================================================  =============================================
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        edges: Iterable[str],
        partitions: Iterable[int],
        cached_topics_max: int,
        now: float = 0.0,
    ) -> None:
        """Start owning a shard.

        Args:
            number: Of the shard.
            epoch: shard_epoch; messages at another one never reach this object.
            edges: Live edges at the start: each must report its filters and its cached topics.
            partitions: Placed partitions: each must be reported.
            cached_topics_max: Bound of the table of cached topics.
            now: Seconds.
        """
        self.number = number
        self.epoch = epoch
        self.steps = 0  # cost so far, some microseconds each; the caller limits them per iteration
        self.answers_shortened = 0  # answers with omitted group destinations
        self.now = now  # set by the owner before each message
        self._began = now
        self.sender_routes = SenderRoutes()
        self._removed: list[str] = []  # removed filters, request_key cached topics must be invalidated
        self.cached = CachedTopics()
        self._cached_max = cached_topics_max
        self._unreported: set[Sender] = {(edge, -1) for edge in edges} | {("", partition) for partition in partitions}
        self.unregistered: set[str] = set(edges)
        self._held: SenderMessages[Resolve] = SenderMessages()
        self._held_adds: SenderMessages[AddRoutes | RemoveRoutes] = SenderMessages()
        self._invalidations: dict[int, Invalidation[_Waiter]] = {}
        self._next_invalidation = 0
        self._searches: deque[FilterSearch[_Waiter]] = deque()
        self._completed: deque[Invalidation[_Waiter]] = deque()  # completed, with topics to remove
        self._sends: list[tuple[str, Control]] = []

    # --- state for the owner

    @property
    def collecting(self) -> bool:
        """True until all senders have reported; requests wait."""
        return bool(self._unreported)

    @property
    def waits(self) -> bool:
        """True while a report or the acknowledgement of an invalidation is missing."""
        return bool(self._unreported or self.unregistered or self._invalidations)

    def missing(self) -> list[str]:
        """Return the missing reports, registrations and acknowledgements, for the status page."""
        reported = [edge if edge else f"partition {partition}" for edge, partition in sorted(self._unreported)]
        dropping = {edge for item in self._invalidations.values() for edge in item.edges}
        reported += [f"topics of {edge}" for edge in sorted(self.unregistered)]
        return reported + [f"invalidations at {edge}" for edge in sorted(dropping)]

    def find_unanswered(self, now: float, patience_s: float) -> tuple[set[str], set[int]]:
        """Return the edges and partitions that are awaited for longer than ``patience_s``."""
        edges = {edge for item in self._invalidations.values() if now - item.since > patience_s for edge in item.edges}
        if now - self._began <= patience_s:
            return edges, set()
        edges |= {edge for edge, partition in self._unreported if partition < 0} | self.unregistered
        return edges, {partition for _, partition in self._unreported if partition >= 0}

    def take_dropped(self) -> int:
        """Return the number of queued messages dropped since the last call."""
        dropped = self._held.dropped + self._held_adds.dropped
        self._held.dropped = self._held_adds.dropped = 0
        return dropped

    @property
    def cached_topics(self) -> int:
        """Number of topics that edges cache answers for."""
        return len(self.cached)

    def take_sends(self) -> list[tuple[str, Control]]:
        """Return (node, message) to send, in order."""
        sends, self._sends = self._sends, []
        return sends

    @property
    def coarse_routes(self) -> int:
        """Number of routes that reach more topics than their filters match, because exact ones cost too much."""
        return self.sender_routes.coarse

    @property
    def routes(self) -> int:
        """Number of routes."""
        return self.sender_routes.routes

    @property
    def bytes(self) -> int:
        """Total length of the filters' names, as in a report."""
        return self.sender_routes.bytes

    # --- resolution

    def resolve(self, edge: str, request: Resolve) -> None:
        """Answer the first topics that fit a frame, and record that the edge caches them."""
        if self.collecting or self._held:
            if request.kept:  # a repeated registration replaces the former: only the last answer is used
                self._held.drop(lambda peer, item: peer == edge and item.kept)
            self._held.append(edge, request)
            return
        self._resolve(edge, request)

    def _resolve(self, edge: str, request: Resolve) -> None:
        assert not self.collecting, "an answer while somebody has not reported"
        table = AnswerTable()
        for topic in request.topics:
            table.add(self.sender_routes.match(topic))
            if table.is_full:
                break
        self.steps += table.steps
        self.answers_shortened += table.shortened
        self.cached.hold(edge, request.topics[: len(table.answers)], self.now)
        answer = Resolved(request.request, self.epoch, table.destinations, table.answers)
        self._sends.append((edge, answer))
        if request.kept and edge in self.unregistered:
            # The edge is registered once it received the answer: its acknowledgement of this order proves that.
            self._order([edge], [], []).registers = edge
        self._bound_cached()

    def _bound_cached(self) -> None:
        """Invalidate the oldest topics beyond the table's bound."""
        excess = len(self.cached) - self._cached_max
        if excess <= 0:
            return
        until = self.now - YOUNG_S if excess <= YOUNG_MAX else self.now
        self._invalidate(self.cached.oldest(min(excess, FORGOTTEN_AT_ONCE), until))

    # --- registrations

    def add(self, peer: str, request: AddRoutes) -> None:
        """Add routes; the reply is sent when every matching cached answer is invalidated."""
        if self._must_hold_adds or self._held_adds:
            self._held_adds.append(peer, request)
        else:
            self._add(peer, request)

    def _add(self, peer: str, request: AddRoutes) -> None:
        sender = sender_of(peer, request.partition)
        if not self.sender_routes.accept(sender, request.sender_epoch):
            return
        fresh = self.sender_routes.put(sender, request.routes, request.route_version)
        self.steps += len(request.routes)
        reply = RoutesAdded(request.request, self.number, self.epoch, request.sender_epoch)
        asked = [route.topic_filter for route in request.routes]
        if self._takes_long(asked):
            self._start_search(fresh, asked, _Waiter(peer, reply, 0), request.request)
            return
        # An answer without one of these routes may still be in flight to any edge.
        waits: list[Invalidation[_Waiter]] = self.cached.leaving(asked)
        waits += [item for item in self._order_all(fresh) if item not in waits]
        if not waits:
            self._sends.append((peer, reply))
            return
        waiter = _Waiter(peer, reply, len(waits))
        for item in waits:
            item.waiters.append(waiter)

    def remove(self, peer: str, request: RemoveRoutes) -> None:
        """Remove routes, unless the same sender added them later; cached answers are invalidated lazily.

        A removal queues behind pending adds, which may name the same route.
        """
        if self._held_adds:
            self._held_adds.append(peer, request)
        else:
            self._remove(peer, request)

    def _remove(self, peer: str, request: RemoveRoutes) -> None:
        sender = sender_of(peer, request.partition)
        if not self.sender_routes.accept(sender, request.sender_epoch):
            return
        remove, version = self.sender_routes.remove, request.route_version
        self.steps += len(request.routes)
        self._invalidate([route.topic_filter for route in request.routes if remove(sender, route, version)])

    def report(self, peer: str, request: ReportRoutes) -> None:
        """Apply whole reports: each replaces all older routes of its sender."""
        for report in request.reports:
            self._report(sender_of(peer, report.partition), report)
        self._retry()

    def _report(self, sender: Sender, report: SenderReport) -> None:
        routes, version = self.sender_routes, report.route_version
        if not routes.accept(sender, report.sender_epoch):
            return
        if report.first:
            routes.report_begins(sender, version)
        fresh = routes.put(sender, report.routes, version)
        self.steps += 1 + len(report.routes)
        if report.last and routes.report_ends(sender, version):
            # Only now, with all remaining routes in place: no answer may lack them.
            self._unreported.discard(sender)
        self._invalidate(fresh)
        if report.last and not self._searches:
            self._remove_leaving(LEAVING_AT_ONCE)

    # --- invalidation

    def _invalidate(self, topic_filters: list[str]) -> list[Invalidation[_Waiter]]:
        """Order edges to drop the matching topics that they cache; return the open invalidations."""
        if topic_filters and len(self.cached) and self._takes_long(topic_filters):
            self._start_search(topic_filters, [], None)
            return []
        return self._order_all(topic_filters)

    def _order_all(self, topic_filters: list[str]) -> list[Invalidation[_Waiter]]:
        orders: list[Invalidation[_Waiter]] = []
        if not topic_filters or not len(self.cached):
            return orders
        for piece in pieces(topic_filters, INVALIDATE_FILTERS_MAX):
            holders, topics = self.cached.take(piece)
            if holders:
                orders.append(self._order(holders, piece, topics))
        return orders

    def _takes_long(self, topic_filters: list[str]) -> bool:
        """Whether cached topics are searched in slices; while a search runs, all later ones are, to keep the order."""
        if self._searches:
            return True
        if not self.cached.is_large(VISITS_AT_ONCE // max(1, len(topic_filters))):
            return False
        wild = sum("+" in topic_filter or "#" in topic_filter for topic_filter in topic_filters)
        return wild > 0 and self.cached.is_large(VISITS_AT_ONCE // wild)

    def _start_search(self, fresh: list[str], asked: list[str], waiter: _Waiter | None, request: int = 0) -> None:
        """Search cached topics in slices, the first now; the order is sent when all topics are found."""
        request_key = None if waiter is None else (waiter.peer, request)
        if request_key is not None and not fresh and any(search.request == request_key for search in self._searches):
            return  # a repeated request: one reply is enough
        first = not self._searches
        for piece in list(pieces(fresh, INVALIDATE_FILTERS_MAX)) or [[]]:
            item: Invalidation[_Waiter] = Invalidation(set(), piece, [], self.now)
            if waiter is not None:
                waiter.left += 1
            self._searches.append(FilterSearch(self.cached, item, asked, waiter, request_key))
        if first:
            self.run_slice(VISITS_AT_ONCE)

    @property
    def has_slices(self) -> bool:
        """Whether ``run_slice`` has work."""
        if self._searches or self._completed or self._removed or self.sender_routes.has_leaving:
            return True
        return bool((self._held and not self.collecting) or (self._held_adds and not self._must_hold_adds))

    def run_slice(self, visits: int) -> int:
        """Do one slice of work; return the number of visited topics and filters."""
        done = self._process_held(visits)
        while self._searches and done < visits:
            search = self._searches[0]
            done += search.step(visits - done)
            if search.ended:
                self._searches.popleft()
                self._complete_search(search)
        while self._completed and done < visits:
            left = self.cached.remove_leaving(self._completed[0], visits - done)
            done += max(1, left)
            if not self._completed[0].topics:
                self._completed.popleft()
        if not self._searches:  # searches have waiting requests, so they come first
            done += self._remove_leaving(visits - done)
        return done

    def _remove_leaving(self, count: int) -> int:
        """Remove some leaving routes, and invalidate their cached topics in large batches, since a scan is costly."""
        if count <= 0:
            return 0
        self._removed += self.sender_routes.remove_some(count)
        if len(self._removed) >= INVALIDATE_FILTERS_MAX or not self.sender_routes.has_leaving:
            removed, self._removed = self._removed, []
            self._invalidate(removed)
        return count

    def _complete_search(self, search: "FilterSearch[_Waiter]") -> None:
        item, waiter = search.item, search.waiter
        item.edges = search.holders & self.cached.live_edges()
        item.since = item.sent = self.now
        if item.edges:
            self._next_invalidation += 1
            self._invalidations[self._next_invalidation] = item
            for edge in sorted(item.edges):
                order = Invalidate(self._next_invalidation, self.number, self.epoch, item.topic_filters)
                self._sends.append((edge, order))
        else:
            self._release(item)
        if waiter is not None:
            waits = [other for other in (item, *search.meets.values()) if other.edges]
            for other in waits:
                other.waiters.append(waiter)
            waiter.left += len(waits)
            self._count_down(waiter)

    def _release(self, item: Invalidation[_Waiter]) -> None:
        """Complete an invalidation: no edge holds its topics."""
        item.is_complete = True
        for waiter in item.waiters:
            self._count_down(waiter)
        if self.cached.remove_leaving(item, LEAVING_AT_ONCE) == LEAVING_AT_ONCE:
            self._completed.append(item)

    def _count_down(self, waiter: _Waiter) -> None:
        waiter.left -= 1
        assert waiter.left >= 0, "an unknown invalidation was acknowledged"
        if not waiter.left:
            assert not self._must_hold_adds, "only a serving shard acknowledges routes"
            self._sends.append((waiter.peer, waiter.reply))

    def _order(self, edges: list[str], topic_filters: list[str], topics: list[str]) -> Invalidation[_Waiter]:
        self._next_invalidation += 1
        item: Invalidation[_Waiter] = Invalidation(set(edges), topic_filters, topics, self.now)
        self._invalidations[self._next_invalidation] = item
        self.cached.mark_leaving(item)
        for edge in edges:
            self._sends.append((edge, Invalidate(self._next_invalidation, self.number, self.epoch, topic_filters)))
        return item

    def invalidated(self, edge: str, answer: Invalidated) -> None:
        """Process an edge's acknowledgement of an invalidation."""
        item = self._invalidations.get(answer.number)
        if item is None:
            return
        item.edges.discard(edge)
        if not item.edges:
            self._settle(answer.number)

    def _settle(self, number: int) -> None:
        item = self._invalidations.pop(number)
        assert not item.edges, "a completed invalidation has no edges left"
        self._release(item)
        if item.registers:
            self.unregistered.discard(item.registers)
            self._retry()

    def tick(self, now: float) -> None:
        """Repeat unacknowledged invalidations."""
        self.now = now
        for number, item in self._invalidations.items():
            if now - item.sent < REPEAT_S:
                continue
            item.sent = now
            for edge in sorted(item.edges):
                self._sends.append((edge, Invalidate(number, self.number, self.epoch, item.topic_filters)))

    # --- the map

    def edge_dead(self, edge: str) -> None:
        """Drop a dead edge's routes and cached topics, and every wait for it."""
        self.sender_routes.sender_dead(sender_of(edge, -1))
        self._unreported.discard(sender_of(edge, -1))
        self.unregistered.discard(edge)
        self.cached.remove_edge(edge)
        for held in (self._held, self._held_adds):
            held.drop(lambda peer, _: peer == edge)
        for number in [number for number, item in self._invalidations.items() if edge in item.edges]:
            self.invalidated(edge, Invalidated(number, self.number, self.epoch))
        self._retry()

    @property
    def _must_hold_adds(self) -> bool:
        return self.collecting or bool(self.unregistered)

    def _retry(self) -> None:
        """Process queued messages that can be answered now."""
        self._process_held(VISITS_AT_ONCE)

    def _process_held(self, steps: int) -> int:
        """Process some queued messages in order."""
        began = self.steps
        while self._held and not self.collecting and self.steps - began < steps:
            self._resolve(*self._held.popleft())
        while self._held_adds and not self._must_hold_adds and self.steps - began < steps:
            peer, request = self._held_adds.popleft()
            if isinstance(request, AddRoutes):
                self._add(peer, request)
            else:
                self._remove(peer, request)
        return self.steps - began
