"""Routes of a router's shards, and the resolution of one topic."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mqtt.topics import parse_shared
from router.routes.shard import RouteShard
from router.routes.trie import Sender, Value
from wire.messages.cluster_map import ClusterMap
from wire.messages.topic_rows import ShareRow
from wire.queries.ordered_keys import OrderedKeys
from wire.queries.source import USAGE, Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["RouterRouteQueries"]

BETWEEN = "\0"  # separates sender and filter: no topic filter contains it
NAMES_MAX = 1_000  # of edges or partitions in one row


class _Filter(NamedTuple):
    """A filter of one sender."""

    shard: int
    sender: Sender
    name: str


class _Topic(NamedTuple):
    """A topic at the owner of its shard."""

    topic: str
    shard: RouteShard
    found: list[Value]


class RouterRouteQueries:
    """The routes of one router.

    Args:
        node: Its name.
        shards: Its owned shards.
        cluster_map: Its current map.
    """

    def __init__(
        self, node: str, shards: Callable[[], Mapping[int, RouteShard]], cluster_map: Callable[[], ClusterMap]
    ) -> None:
        self._node = node
        self._shards = shards
        self._map = cluster_map
        self._filters: dict[tuple[int, int, Sender], OrderedKeys[str]] = {}  # by shard, its epoch, and sender

    def sources(self) -> dict[str, RowSource]:
        """Return the sources for routes and for one topic."""
        return {
            "routes": RowSource(self._routes, self._route_columns(), self._total),
            "resolve": RowSource(self._resolve, self._resolve_columns()),
        }

    def _total(self) -> int:
        return sum(shard.routes for shard in self._shards().values())

    # --- routes

    def _routes(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        """Yield filters by shard, sender and name, which is the cursor too; a sender is "edge/partition"."""
        after_shard, rest = ask.number_and_text()
        who, colon, after = rest.partition(BETWEEN)
        if rest and not colon:
            raise QueryRefused(f"{ask.after[:64]!r} is no place in this list: begin anew without one", USAGE)
        shards = self._shards()
        for number in sorted(shards):
            if number < after_shard:
                continue
            shard = shards[number]
            senders = sorted((f"{sender[0]}/{sender[1]}", sender) for sender in shard.sender_routes.filters)
            for text, sender in senders:
                if number == after_shard and text < who:
                    continue
                behind = after if (number, text) == (after_shard, who) else None
                filters = shard.sender_routes.filters.get(sender, {})
                for name in self._keys(shard, sender).behind(behind, ask.now):
                    if name in filters:
                        yield (number, f"{text}{BETWEEN}{name}"), _Filter(number, sender, name)
        if not ask.after:
            self._forget_lost()

    def _keys(self, shard: RouteShard, sender: Sender) -> OrderedKeys[str]:
        key = (shard.number, shard.epoch, sender)
        known = self._filters.get(key)
        if known is None:
            known = self._filters[key] = OrderedKeys(lambda: list(shard.sender_routes.filters.get(sender, ())))
        return known

    def _forget_lost(self) -> None:
        shards = self._shards()
        for number, epoch, sender in list(self._filters):
            shard = shards.get(number)
            if shard is None or shard.epoch != epoch or sender not in shard.sender_routes.filters:
                del self._filters[number, epoch, sender]

    def _route_columns(self) -> Columns:
        return {
            "filter": lambda one: (parse_shared(one.name) or ("", one.name))[1],
            "group": lambda one: (parse_shared(one.name) or ("", ""))[0],
            "shard": lambda one: one.shard,
            "node": lambda _: self._node,
            "edges": lambda one: [one.sender[0]] if one.sender[1] < 0 else [],
            "partitions": lambda one: [one.sender[1]] if one.sender[1] >= 0 else [],
        }

    # --- one topic

    def _resolve(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        topic = ask.where["topic"]
        if set("+#\0") & set(topic):
            raise QueryRefused(f"{topic[:64]!r} is no topic name: no + and no # may be in it", USAGE)
        cluster_map = self._map()
        if not cluster_map.shards:
            raise QueryRefused("the cluster has no map yet", 4)
        number = cluster_map.shard_for_topic(topic)
        shard = self._shards().get(number)
        if shard is None:
            owner = cluster_map.shards[number].owner
            raise QueryRefused(f"topic {topic[:64]!r} is of shard {number}: its owner is {owner or 'none'}")
        yield 1, _Topic(topic, shard, shard.sender_routes.match(topic))

    def _resolve_columns(self) -> Columns:
        return {
            "topic": lambda one: one.topic,
            "shard": lambda one: one.shard.number,
            "route_key": lambda one: self._key_of(one.topic)[0],
            "pinned": lambda one: self._key_of(one.topic)[1],
            "owner": lambda _: self._node,
            "shard_epoch": lambda one: one.shard.epoch,
            "state": lambda one: _state(one.shard),
            "missing": lambda one: one.shard.missing()[:NAMES_MAX],
            "edges": lambda one: _plain(one.found, 0),
            "partitions": lambda one: _plain(one.found, 1),
            "groups": lambda one: _groups(one.found),
            "cached_at": _cached_at,
            "invalidating": lambda one: _invalidating(one.shard.cached.leaving([one.topic])),
        }

    def _key_of(self, topic: str) -> tuple[str, bool]:
        cluster_map = self._map()
        levels = topic.split("/")
        depth, pinned = cluster_map.jurisdiction(levels)
        return "/".join(levels[:depth]), pinned >= 0


def _plain(found: list[Value], which: int) -> list[Any]:
    """Return the edges (0) or partitions (1) among the destinations without a share name."""
    return sorted({value[which] for value in found if len(value) == 2 and (value[1] >= 0) == bool(which)})[:NAMES_MAX]


def _cached_at(one: _Topic) -> list[str]:
    cached = one.shard.cached
    return sorted(cached.edges_of(cached.held_topics.get(one.topic) or 0))


def _invalidating(orders: list[Any]) -> list[str]:
    return sorted({edge for order in orders for edge in order.edges})


def _state(shard: RouteShard) -> str:
    if shard.collecting:
        return "collecting"
    return "registering" if shard.unregistered else "serving"


def _groups(found: list[Value]) -> list[ShareRow]:
    """Return the groups that match a topic, a row for each destination with members."""
    rows = []
    for value in found:
        if len(value) == 4:
            edge, partition, share, members = value
            group, _, topic_filter = share.partition("/")
            rows.append(
                ShareRow(group, topic_filter, members, partition=partition, node=edge if partition < 0 else None)
            )
    return sorted(rows, key=lambda row: (row.group, row.filter, row.node or "", row.partition))
