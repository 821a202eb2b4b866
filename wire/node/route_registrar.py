"""Registers one sender's filters at the owners of their shards, and reports when a filter's routes are confirmed.

The sender is an edge (partition -1) or a partition. A filter is *confirmed* when every shard it belongs to has answered
AddRoutes; all holders wait for that, whichever requested it. When an owner changes, reports and pending requests go to
the new one. Sans-IO. Rules: docs/protocol.md section 3.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice

from mqtt.topics import parse_shared
from wire.links.roster import is_shard_owner
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control
from wire.messages.pieces import pieces
from wire.messages.routes import AddRoutes, RemoveRoutes, RouteEntry, RoutesAdded, SenderReport

__all__ = ["REPEAT_S", "RouteRegistrar", "by_shard", "is_of_owner", "route_entry", "sender_report"]

REPEAT_S = 0.5  # repeat interval of an unanswered AddRoutes, under its number: either answer counts
REPEATS_PER_TICK = 20
FLAPPING_S = 10.0  # a wildcard filter released twice within this time is kept for as long
FLAPPING_MAX = 1_000  # of those; more are removed at once
REMOVED_MAX = 1_000  # remembered filters that were removed
REPORT_ROUTES_MAX = 250  # filters in one piece of a report: about 1 ms of the shard's owner
PLACED_AT_ONCE = 250  # routes placed per step, for a report or a new jurisdiction
LISTED_STEPS = 100  # cost of listing a sender's filters: 1 to 2 ms for 100 000, the whole budget of an iteration
ROUTES_PER_STEP = 25  # of such work: tens of microseconds
ROUTES_PER_REQUEST = 100
REMOVED_PER_TICK = 640  # routes
REMOVED_AT_ONCE = 10  # filters between two counts of their routes
ROUTES_ASKED_MAX = 1_280  # unanswered by one owner: some ms of its time, which delay the next request on this link


def route_entry(name: str, members: int) -> RouteEntry:
    """Return the route entry of a filter, $share included; members: of a shared subscription at this sender."""
    shared = parse_shared(name)
    return RouteEntry(name) if shared is None else RouteEntry(shared[1], shared[0], members)


def by_shard(cluster_map: ClusterMap, names: list[str]) -> dict[int, list[str]]:
    """Return the filters of each shard; a broad one belongs to several."""
    placed: dict[int, list[str]] = {}
    known: dict[str, list[int]] = {}
    for name in names:
        for shard in _shards_of(cluster_map, name, known):
            placed.setdefault(shard, []).append(name)
    return placed


def _shards_of(cluster_map: ClusterMap, name: str, known: dict[str, list[int]]) -> list[int]:
    """Return the shards of a filter; ``known`` caches them by first level, which decides without delegations."""
    head, _, _ = name.partition("/")
    if head == "$share" or cluster_map.delegations:
        shared = parse_shared(name)
        return cluster_map.shards_for_filter(name if shared is None else shared[1])
    found = known.get(head)
    if found is None:
        found = known[head] = cluster_map.shards_for_filter(head)
    return found


def is_of_owner(cluster_map: ClusterMap, shard: int, answer: RoutesAdded) -> bool:
    """Return whether an answer is about the requested shard, under its epoch in the map."""
    shards = cluster_map.shards
    return answer.shard == shard < len(shards) and shards[shard].epoch == answer.shard_epoch


def sender_report(
    cluster_map: ClusterMap,
    partition: int,
    sender_epoch: int,
    version: int,
    holders: Mapping[str, int],
    shards: Set[int],
) -> Iterator[tuple[int, SenderReport] | None]:
    """Make one sender's report to the owners of some shards in steps; the loop runs in between.

    It covers the filters that are held at its first step. A filter released later is left out, because its removal, at
    a later route_version, may have been sent already. AddRoutes covers a filter held later.

    Args:
        cluster_map: The current one; a change of jurisdictions requires a new report.
        partition: -1 for an edge.
        sender_epoch: The edge's incarnation, or the partition_epoch.
        version: route_version of the report.
        holders: Live view of the filters, with the number of their holders.
        shards: Live view of the shards to report to; a removed one gets no further pieces.

    Yields:
        A shard and the next piece of its report, None after other work; a shard without filters gets an empty one.
    """
    placed: dict[int, list[str]] = {}
    known: dict[str, list[int]] = {}
    routes = 0
    names = list(holders)
    if len(names) > PLACED_AT_ONCE:
        yield None
    for name in names:
        places = _shards_of(cluster_map, name, known)
        for shard in places:
            if shard in shards:
                placed.setdefault(shard, []).append(name)
        routes += len(places)
        if routes >= PLACED_AT_ONCE:
            routes = 0
            known.clear()
            yield None
    for shard in sorted(shards):
        cut = pieces(placed.pop(shard, []), REPORT_ROUTES_MAX)
        piece: list[str] | None = next(cut, [])
        first = True
        while piece is not None and shard in shards:
            after = next(cut, None)
            entries = [route_entry(name, holders[name]) for name in piece if name in holders]
            yield shard, SenderReport(partition, sender_epoch, version, entries, first, after is None)
            piece, first = after, False


class _RouteRequest:
    """A request to one shard's owner, sent or unsent."""

    __slots__ = ("again_at", "names", "open", "owner", "shard")

    def __init__(self, shard: int, names: list[str], owner: str) -> None:
        self.shard = shard
        self.names = names
        self.owner = owner
        self.open = 0  # number of routes sent; 0: not yet
        self.again_at = float("inf")


class RouteRegistrar:
    """Filters of one sender.

    An owner gets a bounded number of routes at a time: a client's 1 000 broad filters have 64 000 routes, and this
    sender's other requests queue behind them. So an owner must answer before it gets more new routes. Removals, which
    have no answer, are limited per tick.

    Args:
        partition: -1 for an edge.
        sender_epoch: The edge's incarnation, or the partition_epoch.
        tell: Sends to a router.
        cluster_map: Returns the current map.
        on_standing: Receives the filters that became confirmed.
    """

    def __init__(
        self,
        partition: int,
        sender_epoch: int,
        tell: Callable[[str, Control], object],
        cluster_map: Callable[[], ClusterMap],
        on_standing: Callable[[list[str]], None],
    ) -> None:
        self._partition = partition
        self._sender_epoch = sender_epoch
        self._tell = tell
        self._map = cluster_map
        self._on_confirmed = on_standing
        self._holders: dict[str, int] = {}  # filter, $share included -> number of holders
        self._confirmed: set[str] = set()
        self._pending: dict[str, dict[int, int]] = {}  # filter -> unanswered shard -> request, 0: not sent yet
        self._requests: dict[int, _RouteRequest] = {}  # by request
        self._open: dict[str, int] = {}  # owner -> routes sent that it has not answered
        self._unsent: dict[str, deque[int]] = {}  # owner -> unsent requests
        self._version = 0
        self._leaving: dict[str, None] = {}  # removed, but not sent to the owners yet
        self._removal_budget = REMOVED_PER_TICK
        self._removed: dict[str, float] = {}  # removed wildcard filters, oldest first -> time
        self._flapping: dict[str, float] = {}  # kept without holders, oldest first -> end
        self._now = 0.0
        self._request = max(partition, 0) << 32  # an answer names its partition
        self._jurisdictions = 0  # number of changes of jurisdiction

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def waits(self) -> bool:
        """Whether an owner has not answered, or a filter without holders is kept."""
        return bool(self._requests or self._flapping or self._leaving)

    def stands(self, name: str) -> bool:
        """True if all shards of the filter have confirmed its route."""
        return name in self._confirmed

    def hold(self, names: list[str], now: float) -> list[str]:
        """Hold filters; return those that are not confirmed yet."""
        self._now = now
        fresh = []
        for name in names:
            self._holders[name] = self._holders.get(name, 0) + 1
            self._leaving.pop(name, None)
            if self._flapping.pop(name, None) is not None:
                self._removed[name] = now
            if name not in self._confirmed and name not in self._pending:
                fresh.append(name)
        self._request_all(fresh, now)
        return [name for name in names if name not in self._confirmed]

    def release(self, names: list[str]) -> None:
        """Release filters; a route without holders is removed lazily.

        A new route of a wildcard filter invalidates the edges' cached routes of all matching topics. So a filter that
        is released again soon is kept for a while, although its messages then come here without a receiver.
        """
        removed = []
        for name in names:
            self._holders[name] -= 1
            if self._holders[name] == 0:
                del self._holders[name]
                if self._note_removal(name):
                    self._flapping[name] = self._now + FLAPPING_S
                    self._holders[name] = 0
                else:
                    removed.append(name)
        self._drop(removed)

    def _note_removal(self, name: str) -> bool:
        """Record a removal; return whether the filter was removed recently, and is therefore kept."""
        if ("+" not in name and "#" not in name) or name.startswith("$share/") or name not in self._confirmed:
            return False
        before = self._removed.pop(name, None)
        self._removed[name] = self._now
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        if len(self._flapping) >= FLAPPING_MAX:
            return False
        return before is not None and self._now - before < FLAPPING_S

    def _drop(self, removed: list[str]) -> None:
        """Forget filters at once, and send removals to their owners within this tick's limit."""
        for name in removed:
            self._pending.pop(name, None)  # so a late answer cannot confirm the filter for a later holder
        self._confirmed.difference_update(removed)
        self._leaving.update(dict.fromkeys(removed))
        leaving: list[str] = []
        while self._leaving and self._removal_budget > 0:
            batch = list(islice(self._leaving, REMOVED_AT_ONCE))
            for name in batch:
                del self._leaving[name]
            self._removal_budget -= sum(map(len, by_shard(self._map(), batch).values()))
            leaving += batch
        self._remove(leaving)

    def _remove(self, removed: list[str]) -> None:
        entries = {name: self._entry(name) for name in removed}
        for shard, left in sorted(by_shard(self._map(), removed).items()):
            placement = self._map().shards[shard]
            for piece in pieces(left, REMOVED_PER_TICK):
                self._version += 1
                routes = [entries[name] for name in piece]
                removal = RemoveRoutes(
                    shard, placement.epoch, self._partition, self._sender_epoch, self._version, routes
                )
                self._tell(placement.owner, removal)

    def _entry(self, name: str) -> RouteEntry:
        return route_entry(name, self._holders.get(name, 0))

    def _request_all(self, names: list[str], now: float) -> None:
        for shard, batch in sorted(by_shard(self._map(), names).items()):
            self._request_shard(shard, batch, now)

    def _request_shard(self, shard: int, names: list[str], now: float) -> None:
        owner = self._map().shards[shard].owner
        for piece in pieces(names, ROUTES_PER_REQUEST):
            self._request += 1
            for name in piece:
                self._pending.setdefault(name, {})[shard] = self._request
            self._requests[self._request] = _RouteRequest(shard, piece, owner)
            self._unsent.setdefault(owner, deque()).append(self._request)
        self._send_more(owner, now)

    def _send_more(self, owner: str, now: float) -> None:
        """Send queued requests within the owner's limit."""
        unsent = self._unsent.get(owner)
        while unsent and self._open.get(owner, 0) < ROUTES_ASKED_MAX:
            request = unsent.popleft()
            pending_request = self._requests.get(request)
            if pending_request is None:
                continue
            pending_request.names = self._waiting_names(request)
            if not pending_request.names:  # released meanwhile
                del self._requests[request]
                continue
            pending_request.open = len(pending_request.names)
            pending_request.again_at = now + REPEAT_S
            self._open[owner] = self._open.get(owner, 0) + pending_request.open
            self._send(request)

    def _waiting_names(self, request: int) -> list[str]:
        """Return the filters that wait for the answer to a request."""
        pending_request = self._requests[request]
        pending = self._pending
        return [
            name
            for name in pending_request.names
            if name in pending and pending[name].get(pending_request.shard) == request
        ]

    def _forget_request(self, request: int) -> _RouteRequest:
        """Remove a request that was answered, or that moves to another owner."""
        pending_request = self._requests.pop(request)
        if pending_request.open:
            self._open[pending_request.owner] -= pending_request.open
            if not self._open[pending_request.owner]:
                del self._open[pending_request.owner]
        return pending_request

    def _send(self, request: int) -> None:
        pending_request = self._requests[request]
        placement = self._map().shards[pending_request.shard]
        self._version += 1
        entries = [self._entry(name) for name in self._waiting_names(request)]
        self._tell(
            placement.owner,
            AddRoutes(
                request,
                pending_request.shard,
                placement.epoch,
                self._partition,
                self._sender_epoch,
                self._version,
                entries,
            ),
        )

    def tick(self, now: float) -> None:
        """Repeat unanswered requests, a few at a time, and remove filters whose keeping time has ended."""
        self._now = now
        due = (request for request, pending_request in self._requests.items() if pending_request.again_at <= now)
        for request in list(islice(due, REPEATS_PER_TICK)):
            self._requests[request].again_at = now + REPEAT_S
            self._send(request)
        expired = [name for name, until in islice(self._flapping.items(), REPEATS_PER_TICK) if until <= now]
        for name in expired:
            del self._flapping[name], self._holders[name]
        self._removal_budget = REMOVED_PER_TICK
        self._drop(expired)

    def placement_changed(self, shards: set[int], now: float) -> None:
        """Send pending requests of these shards to their new owners or epochs."""
        again: list[tuple[int, list[str]]] = []
        for request, pending_request in list(self._requests.items()):
            if pending_request.shard not in shards:
                continue
            if pending_request.open:
                again.append((pending_request.shard, self._waiting_names(request)))
                self._forget_request(request)
            else:
                pending_request.owner = self._map().shards[pending_request.shard].owner
        self._unsent = {}
        for request, pending_request in self._requests.items():
            if not pending_request.open:
                self._unsent.setdefault(pending_request.owner, deque()).append(request)
        for shard, names in again:
            self._request_shard(shard, names, now)
        for owner in sorted(self._unsent):
            self._send_more(owner, now)

    def jurisdiction_changed(self) -> Iterator[int]:
        """Mark all filters as unconfirmed, because they belong to other shards now.

        The returned iterator requests them at their new shards and yields the number of steps used.
        """
        self._requests.clear()
        self._open.clear()
        self._unsent.clear()
        former, self._pending = self._pending, {}
        former_confirmed, self._confirmed = self._confirmed, set()
        self._jurisdictions += 1
        return self._request_everywhere(self._jurisdictions, former, former_confirmed)

    def _request_everywhere(
        self, number: int, former: dict[str, dict[int, int]], former_confirmed: set[str]
    ) -> Iterator[int]:
        yield LISTED_STEPS  # reports to the new owners go first
        placed: dict[int, list[str]] = {}
        known: dict[str, list[int]] = {}
        routes = 0
        for name in list(self._holders):
            former.pop(name, None)  # freeing all at once exceeds the time budget
            former_confirmed.discard(name)
            if name in self._pending or name in self._confirmed or name not in self._holders:
                continue  # requested by a later holder, or released
            places = _shards_of(self._map(), name, known)
            self._pending[name] = dict.fromkeys(places, 0)
            for shard in places:
                placed.setdefault(shard, []).append(name)
            routes += len(places)
            if routes >= PLACED_AT_ONCE:
                yield 1 + routes // ROUTES_PER_STEP
                if number != self._jurisdictions:
                    return
                routes = 0
                known.clear()
        for shard, names in sorted(placed.items()):
            for piece in pieces(names, ROUTES_PER_REQUEST):
                self._request_shard(
                    shard, [name for name in piece if self._pending.get(name, {}).get(shard) == 0], self._now
                )
                yield 1 + len(piece) // ROUTES_PER_STEP
                if number != self._jurisdictions:
                    return

    def report(self, shards: Set[int]) -> Iterator[tuple[int, SenderReport] | None]:
        """Return the report to the owners of some shards, pending filters included; see ``sender_report``."""
        self._version += 1
        return sender_report(self._map(), self._partition, self._sender_epoch, self._version, self._holders, shards)

    def added(self, router: str, answer: RoutesAdded) -> bool:
        """Process an owner's answer: no edge has a cached route without these filters any more.

        Returns:
            False: this router does not own the requested shard in the map; the state is unchanged.
        """
        pending_request = self._requests.get(answer.request)
        if pending_request is None:
            return True
        if not is_shard_owner(self._map(), router, pending_request.shard):
            return False
        if answer.sender_epoch != self._sender_epoch or not is_of_owner(self._map(), pending_request.shard, answer):
            return True
        answered = self._waiting_names(answer.request)
        self._forget_request(answer.request)
        confirmed = []
        for name in answered:
            pending = self._pending[name]
            del pending[pending_request.shard]
            if not pending:
                del self._pending[name]
                self._confirmed.add(name)
                confirmed.append(name)
        self._send_more(pending_request.owner, self._now)
        if confirmed:
            self._on_confirmed(confirmed)
        return True
