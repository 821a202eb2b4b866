"""Query rows of the loop's Routes, subscribers of a topic at this edge, and shared subscriptions with members here."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edge.clients.client import Client
from edge.loop.broker_loop import BrokerLoop
from edge.loop.state import Route
from edge.node.node import EdgeNode
from edge.queries.windows import in_flight
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from mqtt.topics import matches, parse_shared
from wire.messages.hello import PeerKey
from wire.messages.topic_rows import ShareMemberRow
from wire.queries.clock_skew import skew
from wire.queries.ordered_keys import OrderedKeys
from wire.queries.source import Columns, Place, QueryRefused, RowScan, RowSource

__all__ = ["EdgeRouteQueries"]

MEMBERS_MAX = 100  # of a shared subscription in one row
NEAR_MAX = 20  # near misses of one topic


class EdgeRouteQueries:
    """Routes and subscribers of one edge.

    Args:
        node: This edge.
        hot: Its loop.
        local: Subscriptions of its ephemeral sessions.
        rights: Permissions of each client.
        get: A connection by its number.
    """

    def __init__(
        self,
        node: EdgeNode,
        hot: BrokerLoop,
        local: EphemeralSubscriptions,
        rights: ClientRights,
        get: Callable[[int], Client | None],
    ) -> None:
        self._node = node
        self._hot = hot
        self._local = local
        self._rights = rights
        self._get = get
        self._topics: OrderedKeys[bytes] = OrderedKeys(lambda: hot.routes)
        self._shares: OrderedKeys[bytes] = OrderedKeys(local.shares)

    def sources(self) -> dict[str, RowSource]:
        """Return the row sources of routes, matches and shares."""
        return {
            "routes": RowSource(self._routes, self._route_columns(), lambda: len(self._hot.routes)),
            "matches": RowSource(self._matches, self._match_columns()),
            "shares": RowSource(self._groups, self._share_columns()),
        }

    # --- routes

    def _routes(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        routes: Mapping[bytes, Route] = self._hot.routes
        for topic in self._topics.behind(ask.after.encode() if ask.after else None, ask.now):
            route = routes.get(topic)
            if route is not None:
                yield topic.decode(), route

    def _route_columns(self) -> Columns:
        node = self._node
        return {
            "topic": lambda route: route.topic.decode(),
            "shard": lambda route: node.map.shard_for_topic(route.topic.decode()) if node.map.shards else None,
            "node": lambda _: node.name,
            "local": lambda route: len(route.subs),
            "edges": lambda route: [_name_of(peer.key) for peer in route.edges],
            "partitions": lambda route: list(route.partitions),
            "groups": lambda route: [group.share.decode() for group in route.groups],
            "reason_code": lambda route: route.reason_code or None,
            "traced": lambda route: route.traced,
        }

    # --- matches

    def _matches(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        """Yield (client, subscription, share, reason of no delivery, QoS) of the subscribers and group members here."""
        topic = ask.where["topic"]
        if not topic or "+" in topic or "#" in topic or "\0" in topic:
            raise QueryRefused(f"{topic[:64]!r} is no topic name: no + and no # may be in it", 2)
        (after,) = ask.numbers(1)
        at, qos = 0, _number(ask.where.get("qos", "1"))
        for number, subscription, share in self._local.matching(topic):
            at += 1
            client = self._get(number)
            if at > after and client is not None:
                yield at, (client, subscription, share, self._why(client, subscription, topic, ask.where), qos)
        if ask.where.get("near"):
            for name in self._near(topic):
                at += 1
                if at > after:
                    yield at, (None, name, "", "level", qos)

    def _near(self, topic: str) -> list[str]:
        """Return filters that miss a topic by one level: longer, shorter, or with another word at one level."""
        levels = topic.split("/")
        found = []
        for name in self._local.filters():
            parts = name.split("/")
            near = len(parts) == len(levels) and sum(a not in (b, "+") for a, b in zip(parts, levels, strict=True)) == 1
            near = near or (parts[:-1] == levels) or (levels[:-1] == parts)
            if near and not matches(name, topic):
                found.append(name)
                if len(found) >= NEAR_MAX:
                    break
        return found

    def _why(self, client: Client, subscription: Any, topic: str, where: Mapping[str, str]) -> str:
        """Return why a subscriber does not get a message, "" if it does."""
        conn = client.conn
        if conn.closed:
            return "closed"
        if subscription.no_local and where.get("from") == client.client_id:
            return "no_local"
        if not self._rights.may_receive(client, topic, subscription.qos):
            return "access"
        size = where.get("bytes", "")
        if size.isdecimal() and int(size) + len(topic) + 8 > conn.client_packet_max:
            return "size"
        if conn.lagging and min(subscription.qos, _number(where.get("qos", "1"))) == 0:
            return "slow"
        return ""

    def _match_columns(self) -> Columns:
        name = self._node.name
        return {
            "client_id": lambda match: match[0].client_id if match[0] is not None else None,
            "filter": lambda match: _plain_filter(match[1]),
            "qos": lambda match: match[1].qos if match[0] is not None else None,
            "effective_qos": lambda match: min(match[1].qos, match[4]) if match[0] is not None else None,
            "share": lambda match: match[2].partition("/")[0],
            "no_local": lambda match: match[1].no_local if match[0] is not None else None,
            "retain_as_published": lambda match: match[1].retain_as_published if match[0] is not None else None,
            "retain_handling": lambda match: match[1].retain_handling if match[0] is not None else None,
            "identifier": lambda match: match[1].identifier if match[0] is not None else None,
            "online": lambda match: not match[0].conn.closed if match[0] is not None else None,
            "node": lambda _: name,
            "durable": lambda _: False,
            "partition": lambda match: match[0].partition if match[0] is not None else None,
            "window": lambda match: match[0].conn.window if match[0] is not None else None,
            "inflight": lambda match: in_flight(match[0].conn) if match[0] is not None else None,
            "turn": lambda match: self._local.turn(match[2].encode()) == match[0].number if match[2] else None,
            "why": lambda match: match[3],
        }

    # --- shared subscriptions

    def _groups(self, ask: RowScan) -> Iterator[tuple[Place, Any]]:
        for share in self._shares.behind(ask.after.encode() if ask.after else None, ask.now):
            if self._local.members(share):
                yield share.decode(), (share, ask.where)

    def _share_columns(self) -> Columns:
        name, local = self._node.name, self._local
        return {
            "group": lambda group: group[0].decode().split("/", 1)[0],
            "filter": lambda group: group[0].decode().split("/", 1)[1],
            "members": lambda group: local.members(group[0]),
            "online": lambda group: sum(1 for one in local.member_clients(group[0]) if not one.conn.closed),
            "queued": lambda group: sum(_waiting(one) for one in local.member_clients(group[0])),
            "queued_most": lambda group: max((_waiting(one) for one in local.member_clients(group[0])), default=0),
            "skew": lambda group: skew([_waiting(one) for one in local.member_clients(group[0])]),
            "delivered": lambda group: local.counts(group[0])[0],
            "redispatched": lambda group: local.counts(group[0])[1],
            "partition": lambda _: -1,
            "node": lambda _: name,
            "who": self._who,
        }

    def _who(self, group: tuple[bytes, Mapping[str, str]]) -> list[ShareMemberRow] | None:
        """Return the members of the one shared subscription that a query names."""
        share, where = group
        if f"{where.get('group')}/{where.get('filter')}" != share.decode():
            return None
        clients = self._local.member_clients(share)[:MEMBERS_MAX]
        return [
            ShareMemberRow(client.client_id, not client.conn.closed, _waiting(client), node=self._node.name)
            for client in clients
        ]


def _waiting(client: Client) -> int:
    outbound = client.conn.outbound
    return in_flight(client.conn) + (len(outbound.pending) if outbound is not None and outbound.pending else 0)


def _name_of(key: object) -> str:
    return key.node if isinstance(key, PeerKey) else ""


def _plain_filter(subscription: Any) -> str:
    if isinstance(subscription, str):
        return subscription
    shared = parse_shared(subscription.topic_filter)
    return shared[1] if shared is not None else str(subscription.topic_filter)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 1
