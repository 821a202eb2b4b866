"""Route registrations of a node's partitions at the owners of shards, bounded in flight for the whole node.

A client's 1 000 broad filters are 64 000 routes, and other requests to their owner would queue behind them. So an
owner must acknowledge new routes before it gets more. Removals have no acknowledgement; each tick sends some.
Partitions are served round-robin. One that waits for its own commit does not block the others, because each may always
have one request in flight.
"""

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from wire.messages.pieces import pieces
from wire.node.route_registrar import REMOVED_PER_TICK, ROUTES_ASKED_MAX, ROUTES_PER_REQUEST

__all__ = ["REMOVAL_TICK_S", "RouteWindow", "UnsentRoutes"]

REMOVAL_TICK_S = 0.02
REMOVED_SHARE = 100  # each tick sends at least this fraction of the pending removals, so the backlog stays bounded
BROAD_ROUTES = 64  # of a filter that belongs to every shard, with the default number of shards


class Routes(Protocol):
    """Routes of one partition."""

    @property
    def leaving(self) -> int:
        """Number of filters to be removed."""

    def request_next(self, owner: str) -> bool:
        """Send one pending request to this owner; return False if no other is pending."""

    def remove_some(self) -> int:
        """Remove some filters; return the number of their routes."""


class UnsentRoutes:
    """New routes of one partition that were not sent to their owners yet, by shard."""

    def __init__(self) -> None:
        self._names: dict[int, dict[str, None]] = {}
        self._shards: dict[str, dict[int, None]] = {}  # owner -> its shards of those, round-robin

    def add(self, owner: str, shard: int, names: list[str]) -> None:
        """Add routes of a shard to be sent to its owner."""
        self._names.setdefault(shard, {}).update(dict.fromkeys(names))
        self._shards.setdefault(owner, {}).setdefault(shard)

    def discard(self, shard: int, name: str) -> None:
        """Remove a route that is not needed any more."""
        self._names.get(shard, {}).pop(name, None)

    def take(self, owner: str) -> tuple[int, list[str]]:
        """Return the routes of the owner's next request and their shard; none if none are pending."""
        shards = self._shards.get(owner, {})
        while shards:
            shard = next(iter(shards))
            del shards[shard]
            waiting = self._names.pop(shard, {})
            names = next(pieces(list(islice(waiting, ROUTES_PER_REQUEST)), ROUTES_PER_REQUEST), [])
            for name in names:
                del waiting[name]
            if waiting:
                self._names[shard] = waiting
                shards[shard] = None
            if names:
                return shard, names
        self._shards.pop(owner, None)
        return 0, []

    def waits_for(self, owner: str) -> bool:
        """Return whether routes may be pending for this owner."""
        return owner in self._shards

    def move(self, shards: set[int], owner_of: Callable[[int], str]) -> list[str]:
        """Move these shards to their new owners; return all owners with pending routes."""
        for kept in self._shards.values():
            for shard in shards & kept.keys():
                del kept[shard]
        for shard in sorted(shards & self._names.keys()):
            self._shards.setdefault(owner_of(shard), {})[shard] = None
        return list(self._shards)


class RouteWindow:
    """Unacknowledged routes by owner, partitions that wait for acknowledgements, and partitions with removals."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, int]] = {}  # owner -> partition -> its unacknowledged routes
        self._in_flight: dict[str, int] = {}  # owner -> unacknowledged routes of all partitions
        self._waiting: dict[str, dict[int, None]] = {}  # owner -> partitions, round-robin
        self._leaving: dict[int, None] = {}  # partitions, round-robin
        self._may_leave = 0
        self._next_tick = float("-inf")

    def has_capacity(self, owner: str, partition: int) -> bool:
        """Return whether a partition may send an owner another request."""
        return self._in_flight.get(owner, 0) < ROUTES_ASKED_MAX or partition not in self._open.get(owner, ())

    def sent(self, owner: str, partition: int, routes: int) -> None:
        """Record that a partition sent routes to an owner."""
        opened = self._open.setdefault(owner, {})
        opened[partition] = opened.get(partition, 0) + routes
        self._in_flight[owner] = self._in_flight.get(owner, 0) + routes

    def settled(self, owner: str, partition: int, routes: int) -> None:
        """Record that the owner acknowledged routes, or that the request was cancelled."""
        opened = self._open[owner]
        opened[partition] -= routes
        if not opened[partition]:
            del opened[partition]
        self._in_flight[owner] -= routes
        if not opened:
            del self._open[owner], self._in_flight[owner]

    def wait(self, owner: str, partition: int) -> None:
        """Record that a partition has more routes for an owner than the window allows."""
        self._waiting.setdefault(owner, {}).setdefault(partition)

    def leave(self, partition: int) -> None:
        """Record that a partition has routes to remove."""
        self._leaving.setdefault(partition)

    def forget(self, partition: int) -> None:
        """Remove a partition that is not served here any more."""
        for owner, opened in list(self._open.items()):
            if partition in opened:
                self.settled(owner, partition, opened[partition])
        for waiting in self._waiting.values():
            waiting.pop(partition, None)
        self._leaving.pop(partition, None)

    @property
    def deadline(self) -> float:
        """Seconds at which more removals may be sent; infinity if none are pending."""
        return self._next_tick if self._leaving else float("inf")

    def resume(self, now: float, routes_of: Callable[[int], Routes]) -> None:
        """Send new routes up to the owners' windows; remove as many as this tick allows."""
        for owner in list(self._waiting):
            self._ask_more(owner, routes_of)
        if not self._leaving or now < self._next_tick:
            return
        if self._may_leave <= 0:
            waiting = sum(routes_of(partition).leaving for partition in self._leaving)
            self._may_leave = max(REMOVED_PER_TICK, waiting // REMOVED_SHARE * BROAD_ROUTES)
        left = min(self._may_leave, REMOVED_PER_TICK)  # of this iteration
        self._may_leave -= left
        while self._leaving and left > 0:
            partition = next(iter(self._leaving))
            del self._leaving[partition]
            routes = routes_of(partition)
            left -= routes.remove_some()
            if routes.leaving:
                self._leaving[partition] = None
        if self._may_leave <= 0 or not self._leaving:
            self._may_leave = 0
            self._next_tick = now + REMOVAL_TICK_S

    def _ask_more(self, owner: str, routes_of: Callable[[int], Routes]) -> None:
        waiting = self._waiting[owner]
        for partition in list(waiting):  # those without requests in flight first
            if partition not in self._open.get(owner, ()) and not routes_of(partition).request_next(owner):
                del waiting[partition]
        while waiting and self._in_flight.get(owner, 0) < ROUTES_ASKED_MAX:
            partition = next(iter(waiting))
            del waiting[partition]
            if routes_of(partition).request_next(owner):
                waiting[partition] = None
        if not waiting:
            del self._waiting[owner]
