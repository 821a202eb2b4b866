"""SUBSCRIBE and UNSUBSCRIBE: filters become routes, then SUBACK, then retained messages.

SUBACK is sent when every edge has the routes. An ephemeral session's filters are this edge's own; a durable one's are
committed at its partition, which adds their routes.
Source: MQTT 5.0 sections 3.8 to 3.11, 4.8.2; docs/protocol.md rule 3.8.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from access.rules.rules import Grant
from conf.metrics import PowersOfTwo
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.cluster.partition_requests import PartitionRequests
from edge.node.node import EdgeNode
from edge.node.ports import ClientIO
from edge.node.slices import Slices
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from edge.subscriptions.live_message_holds import Hold, LiveMessageHolds
from edge.subscriptions.packet_bounds import ShareJoinLimit, count_filters
from edge.subscriptions.retained_reads import RetainedReads
from edge.subscriptions.session_filters import SessionFilters
from edge.subscriptions.sys_scope import is_routed
from mqtt import property_values
from mqtt.codec import decode_packet, encode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Suback, Subscribe, Unsuback, Unsubscribe
from mqtt.properties import PropertyId
from mqtt.reasons import FAILURE, ReasonCode
from mqtt.topics import parse_shared, validate_topic_filter
from wire.messages.sessions import SessionSubscription
from wire.node.route_registrar import RouteRegistrar

__all__ = ["SubscribeHandler"]

NO_SUBSCRIPTION_EXISTED = 0x11
STEPS_MAX = 10  # of an iteration, for packets and again for disconnected clients
AUTHORIZED_PER_STEP = 50
CHANGED_PER_STEP = 20  # filters added or removed in one step; a broad one is registered at the owner of every shard
CHANGED_COST = 10
FILTERS_PER_PACKET = 1_000  # beyond the limit of a session, answered one by one


class _PendingSuback:
    """A SUBSCRIBE with pending routes."""

    __slots__ = ("at", "client", "codes", "hold", "judged", "kept", "missing", "packet")

    def __init__(self, client: Client, packet: Subscribe, at: float) -> None:
        self.at = at
        self.client = client
        self.packet = packet
        self.judged = (0, 0)  # ClientRights.moment of the authorization of its filters
        self.codes: list[int] = []
        self.kept: list[tuple[SessionSubscription, bool]] = []  # granted ones, and whether they existed before
        self.hold: Hold | None = None
        self.missing: set[str] = set()


@dataclass(slots=True, frozen=True)
class _DurableSubscribe:
    """A SUBSCRIBE of a durable session, pending at its partition."""

    subscribing: "SubscribeHandler"
    item: _PendingSuback
    granted: list[SessionSubscription]

    def subscribed(self, codes: list[int], existed: list[bool], read: int) -> None:
        """Write SUBACK."""
        self.subscribing.durable_subscribed(self.item, self.granted, codes, existed, read)


@dataclass(slots=True, frozen=True)
class _DurableUnsubscribe:
    """An UNSUBSCRIBE of a durable session."""

    subscribing: "SubscribeHandler"
    client: Client
    packet: Unsubscribe

    def unsubscribed(self, codes: list[int]) -> None:
        """Write UNSUBACK."""
        self.subscribing.durable_unsubscribed(self.client, self.packet, codes)


@dataclass(slots=True, frozen=True)
class _Revoked:
    """Revoked filters, until their partition has removed them."""

    subscribing: "SubscribeHandler"
    client: Client
    names: list[str]

    def unsubscribed(self, codes: list[int]) -> None:
        """Remove them."""
        self.subscribing.durable_removed(self.client, self.names, codes)


class SubscribeHandler:
    """Handles the subscription packets of one edge; many filters, and closed connections, in slices.

    Args:
        node: This edge.
        loop: Writes responses.
        clients: The connections.
        requests: Requests to the partitions of durable sessions.
        local: Subscriptions of ephemeral sessions.
        registrar: Their routes at the owners of shards; it calls ``standing``.
        held: Live messages held for retained ones.
        retained: Reads retained messages after SUBACK.
        rights: Authorizes filters.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: ClientIO,
        clients: Clients,
        requests: PartitionRequests,
        local: EphemeralSubscriptions,
        registrar: RouteRegistrar,
        held: LiveMessageHolds,
        retained: RetainedReads,
        rights: ClientRights,
    ) -> None:
        self.times = PowersOfTwo()  # from SUBSCRIBE to SUBACK
        self._node = node
        self._loop = loop
        self._clients = clients
        self._local = local
        self._registrar = registrar
        self._held = held
        self._retained = retained
        self._rights = rights
        self._waiting: dict[str, list[_PendingSuback]] = {}  # by pending filter
        self.durable = SessionFilters(node, clients, requests)
        self._joins = ShareJoinLimit(node, loop)
        self.bound = self._joins.bound  # updates state derived from the node's limits
        self._asked = Slices(STEPS_MAX)
        self._leaving = Slices(STEPS_MAX)

    def __len__(self) -> int:
        """Return the number of pending filters."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether the next iteration must continue work."""
        return bool(len(self._asked) or len(self._leaving))

    def next_turn(self) -> None:
        """Continue pending work; called once an iteration."""
        self._asked.next_turn()
        self._leaving.next_turn()

    # --- SUBSCRIBE

    def subscribe(self, client: Client, first_byte: int, body: bytes) -> None:
        """Handle a SUBSCRIBE packet; the connection stays paused until SUBACK is written."""
        if self._refuse_too_many(client, body, 1):
            return
        packet = decode_packet(first_byte, body, client.version, self._node.packet_limits)
        assert isinstance(packet, Subscribe)
        self._charge(client, len(packet.subscriptions))
        self._asked.add(self._subscribing(_PendingSuback(client, packet, self._node.now)))

    def _refuse_too_many(self, client: Client, body: bytes, option_bytes: int) -> bool:
        """Close a connection for a packet with far more filters than a session may have: its decoding is one step."""
        most = self._node.limits.filters_per_session_max + FILTERS_PER_PACKET
        if len(body) <= most * (2 + option_bytes) or count_filters(body, client.version, option_bytes, most) <= most:
            return False
        self._node.count("filters_too_many")
        self._clients.error(client.conn, ReasonCode.QUOTA_EXCEEDED)
        return True

    def _charge(self, client: Client, filters: int) -> None:
        self._loop.charge(client.conn, filters, client.filter_interval_ns)

    def _subscribing(self, item: _PendingSuback) -> Iterator[int]:
        client, packet = item.client, item.packet
        granted: list[SessionSubscription] = []
        item.judged = self._rights.decision_version(client)
        identifier = property_values.subscription_identifier(packet.properties)
        for position, wanted in enumerate(packet.subscriptions):
            if position % AUTHORIZED_PER_STEP == 0 and position:
                yield AUTHORIZED_PER_STEP // 10
                if client.conn.closed:
                    return
            code = self._authorize(client, wanted.topic_filter, wanted.qos, len(granted), position)
            if code < FAILURE:
                code = min(wanted.qos, self._node.limits.maximum_qos)
                granted.append(
                    SessionSubscription(
                        wanted.topic_filter,
                        code,
                        # Not for shared subscriptions [MQTT-3.8.3-4].
                        wanted.no_local or (client.bridge and not wanted.topic_filter.startswith("$share/")),
                        wanted.retain_as_published or client.bridge,
                        wanted.retain_handling,
                        identifier,
                        self._node.limits.overlapping == "merged",
                    )
                )
            item.codes.append(code)
        if not granted:
            self._suback(item)
            self._loop.resume(client.conn)
        elif client.session:
            self._subscribe_durable(item, granted)
        else:
            yield from self._subscribe_ephemeral(item, granted)

    def _authorize(self, client: Client, topic_filter: str, qos: int, more: int, position: int) -> int:
        limits, bounds = self._node.limits, client.known_bounds
        try:
            shared = parse_shared(topic_filter)
            plain = shared[1] if shared is not None else topic_filter
            validate_topic_filter(plain, bytes_max=limits.topic_bytes_max, levels_max=bounds.topic_levels_max)
        except RemoteProtocolError as error:
            self._node.count(_counter_of(topic_filter, bounds.topic_levels_max))
            return _refusal(client, error.reason_code)
        if 0 < limits.filters_per_packet_max <= position:
            self._node.count("refused_filters_packet")
            return _refusal(client, ReasonCode.QUOTA_EXCEEDED)
        if shared is not None:
            self._joins.pace(client, topic_filter)
        if topic_filter not in client.subscriptions and len(client.subscriptions) + more >= bounds.filters_max:
            self._node.count("refused_filters_max")
            return _refusal(client, ReasonCode.QUOTA_EXCEEDED)
        return self._authorize_grant(client, topic_filter, qos)

    def _authorize_grant(self, client: Client, topic_filter: str, qos: int) -> int:
        """Return 0, or the code that refuses a filter; a partly granted one is added to the client's."""
        grant = self._rights.grant(client, topic_filter, min(qos, self._node.limits.maximum_qos))
        if grant is Grant.REFUSED:
            self._node.count("refused_filter_rights")
            self._rights.refused(client, "subscribe", topic_filter)
            reveal = client.policy.tell_refusals
            return _refusal(client, ReasonCode.NOT_AUTHORIZED if reveal else ReasonCode.UNSPECIFIED_ERROR)
        if grant is Grant.PARTIAL:
            client.partial.add(topic_filter)
            self._rights.judge_deliveries(client)
        else:
            client.partial.discard(topic_filter)
        return 0

    def _suback(self, item: _PendingSuback) -> None:
        client, packet, codes = item.client, item.packet, item.codes
        properties: dict[int, object] = {}
        if client.wants_reason_strings:
            wanted = zip(packet.subscriptions, codes, strict=True)
            names = [one.topic_filter for one, code in wanted if code < FAILURE and one.retain_handling < 2]
            if reason := self._retained.limits.reason(names):
                properties[PropertyId.REASON_STRING] = reason
        data = encode_packet(Suback(packet.packet_identifier, codes, properties), client.version)  # [MQTT-3.9.3-1]
        if properties and len(data) > client.conn.client_packet_max:  # [MQTT-3.9.2-1]
            data = encode_packet(Suback(packet.packet_identifier, codes, {}), client.version)
        self._loop.write(client.conn, data, needs_lease=True)
        self.times.observe(self._node.now - item.at)
        for at in [at for at, code in enumerate(codes) if code >= FAILURE]:
            topic_filter = packet.subscriptions[at].topic_filter
            self._node.journal.note("refused", f"{codes[at]:#04x}", client.client_id, topic_filter, detail="SUBSCRIBE")

    def _subscribe_durable(self, item: _PendingSuback, granted: list[SessionSubscription]) -> None:
        self.durable.subscribe(item.client, granted, _DurableSubscribe(self, item, granted))

    def durable_subscribed(
        self,
        item: _PendingSuback,
        granted: list[SessionSubscription],
        answers: list[int],
        existed: list[bool],
        read: int,
    ) -> None:
        """Write SUBACK of a durable session, and read retained messages for it.

        Args:
            item: Its SUBSCRIBE.
            granted: The filters sent to its partition.
            answers: The partition's reason code for each of these.
            existed: Whether the session had each before.
            read: The number of the retained read.
        """
        client = item.client
        results = iter(answers)
        item.codes = [_refusal(client, next(results)) if code < FAILURE else code for code in item.codes]
        revoked = self._reauthorize(item)
        self._suback(item)
        taken, before = [], []
        for subscription, code, stood in zip(granted, answers, existed, strict=True):
            if code < FAILURE and subscription.topic_filter not in revoked:
                client.subscriptions[subscription.topic_filter] = subscription
                taken.append(subscription)
                before.append(stood)
        self._loop.resume(client.conn)
        self._clients.lifecycle.subscribed(client, taken)
        self._retained.read_for_session(client, taken, before, read)

    def _subscribe_ephemeral(self, item: _PendingSuback, granted: list[SessionSubscription]) -> Iterator[int]:
        client = item.client
        existed = [subscription.topic_filter in client.subscriptions for subscription in granted]
        item.hold = self._held.begin(client, granted, existed)
        positions = [position for position, code in enumerate(item.codes) if code < FAILURE]
        for start in range(0, len(granted), CHANGED_PER_STEP):
            if start:
                yield CHANGED_COST
                if client.conn.closed:  # its added filters are removed with it
                    return
            stop = start + CHANGED_PER_STEP
            some = list(zip(granted[start:stop], existed[start:stop], positions[start:stop], strict=True))
            self._add(item, self._affordable(item, some))
        item.missing = {
            name for name in item.missing if name in client.subscriptions and not self._registrar.stands(name)
        }
        for name in item.missing:
            self._waiting.setdefault(name, []).append(item)
        if not item.missing:
            self._finish(item)

    def _affordable(
        self, item: _PendingSuback, some: list[tuple[SessionSubscription, bool, int]]
    ) -> list[tuple[SessionSubscription, bool]]:
        """Refuse the filters that would make matching too expensive; a durable session's partition checks them
        itself.
        """
        client = item.client
        verdicts = self._local.admits(client, [subscription.topic_filter for subscription, _, _ in some])
        if not all(verdicts):
            self._node.count("refused_filter_cost", verdicts.count(False))
            refused = [one for one, verdict in zip(some, verdicts, strict=True) if not verdict]
            for _, _, position in refused:
                item.codes[position] = _refusal(client, ReasonCode.QUOTA_EXCEEDED)
            self._held.unsubscribed(client, [subscription.topic_filter for subscription, _, _ in refused])
        return [(one, before) for (one, before, _), verdict in zip(some, verdicts, strict=True) if verdict]

    def _add(self, item: _PendingSuback, some: list[tuple[SessionSubscription, bool]]) -> None:
        client = item.client
        item.kept += some
        fresh = []
        for subscription, _ in some:
            name = subscription.topic_filter
            before = name in client.subscriptions
            client.subscriptions[name] = subscription
            self._local.add(client, subscription, self._node.now)
            if not is_routed(name):
                continue
            if not before:
                fresh.append(name)
            item.missing.add(name)
        self._registrar.hold(fresh, self._node.now)

    def _reauthorize(self, item: _PendingSuback) -> set[str]:
        """Authorize granted filters again before SUBACK if rules changed; return the revoked ones."""
        revoked: set[str] = set()
        if item.judged == self._rights.decision_version(item.client):
            return revoked
        item.judged = self._rights.decision_version(item.client)
        for position, wanted in enumerate(item.packet.subscriptions):
            if item.codes[position] < FAILURE:
                code = self._authorize_grant(item.client, wanted.topic_filter, wanted.qos)
                if code:
                    item.codes[position] = code
                    revoked.add(wanted.topic_filter)
        self.revoke(item.client, sorted(revoked))
        return revoked

    def revoke(self, client: Client, names: list[str]) -> None:
        """Remove filters that rules no longer grant, with their routes; authorize pending deliveries."""
        if not client.session:  # a sweep may have removed them before
            names = [name for name in names if name in client.subscriptions]
        if not names:
            return
        self._node.count("revoked_filters", len(names))
        if client.session:
            self._rights.judge_deliveries(client)
            self.durable.unsubscribe(client, names, _Revoked(self, client, names), revoked=True)
        else:
            self._clients.lifecycle.unsubscribed(client, self._remove(client, names))
            for name in names:
                self._complete_without(client, name)

    def _complete_without(self, client: Client, name: str) -> None:
        """Complete a SUBSCRIBE without a revoked filter: its route will not be added."""
        waiting = self._waiting.get(name, [])
        for item in [item for item in waiting if item.client is client]:
            waiting.remove(item)
            if not waiting:
                del self._waiting[name]
            item.missing.discard(name)
            if not item.missing:
                self._finish(item)

    def standing(self, names: list[str]) -> None:
        """Handle filters with routes at every edge."""
        for name in names:
            for item in self._waiting.pop(name, ()):
                item.missing.discard(name)
                if not item.missing:
                    self._finish(item)

    def _finish(self, item: _PendingSuback) -> None:
        client = item.client
        if client.conn.closed:
            return
        self._reauthorize(item)
        self._suback(item)
        still = [one for one in item.kept if one[0].topic_filter in client.subscriptions]
        taken = [subscription for subscription, _ in still]
        self._loop.resume(client.conn)
        self._clients.lifecycle.subscribed(client, taken)
        self._retained.read_for_connection(client, taken, [before for _, before in still], item.hold)

    # --- UNSUBSCRIBE

    def unsubscribe(self, client: Client, first_byte: int, body: bytes) -> None:
        """Handle an UNSUBSCRIBE packet."""
        if self._refuse_too_many(client, body, 0):
            return
        packet = decode_packet(first_byte, body, client.version, self._node.packet_limits)
        assert isinstance(packet, Unsubscribe)
        self._charge(client, len(packet.topic_filters))
        if not client.session:
            self._asked.add(self._unsubscribing(client, packet))
            return
        self.durable.unsubscribe(client, list(packet.topic_filters), _DurableUnsubscribe(self, client, packet))

    def durable_unsubscribed(self, client: Client, packet: Unsubscribe, codes: list[int]) -> None:
        """Write UNSUBACK of a durable session."""
        self._unsuback(client, packet, codes)
        self._loop.resume(client.conn)
        self.durable_removed(client, packet.topic_filters, codes)

    def durable_removed(self, client: Client, names: Sequence[str], codes: list[int]) -> None:
        """Remove filters that a durable session no longer has."""
        for name in names:
            client.subscriptions.pop(name, None)
        self._clients.lifecycle.unsubscribed(
            client, [name for name, code in zip(names, codes, strict=True) if not code]
        )

    def _unsuback(self, client: Client, packet: Unsubscribe, codes: list[int]) -> None:
        data = encode_packet(Unsuback(packet.packet_identifier, codes, {}), client.version)  # [MQTT-3.11.3-1]
        self._loop.write(client.conn, data, needs_lease=True)

    def _unsubscribing(self, client: Client, packet: Unsubscribe) -> Iterator[int]:
        names = packet.topic_filters
        codes = []
        for start in range(0, len(names), CHANGED_PER_STEP):
            if start:
                yield CHANGED_COST
                if client.conn.closed:
                    return
            some = names[start : start + CHANGED_PER_STEP]
            removed = set()
            for name in some:
                codes.append(0 if name in client.subscriptions and name not in removed else NO_SUBSCRIPTION_EXISTED)
                removed.add(name)
            self._clients.lifecycle.unsubscribed(client, self._remove(client, some))
        self._unsuback(client, packet, codes)
        self._loop.resume(client.conn)

    def _remove(self, client: Client, names: Sequence[str]) -> list[str]:
        gone = [name for name in dict.fromkeys(names) if client.subscriptions.pop(name, None) is not None]
        for name in gone:
            self._local.remove(client, name)
        self._held.unsubscribed(client, gone)
        self._retained.unsubscribed(client)
        self._registrar.release([name for name in gone if is_routed(name)])
        return gone

    def ended(self, client: Client) -> None:
        """Remove the subscriptions of a closed ephemeral session, in slices.

        Until then they are harmless: a closed connection receives no message, and is skipped in shared subscriptions.
        """
        self._retained.closed(client)
        if not client.session:
            self._leaving.add(self._ending(client))

    def _ending(self, client: Client) -> Iterator[int]:
        names = sorted(client.subscriptions)
        for start in range(0, len(names), CHANGED_PER_STEP):
            if start:
                yield CHANGED_COST
            some = names[start : start + CHANGED_PER_STEP]
            for name in some:
                waiting = self._waiting.get(name)
                if waiting is not None:
                    self._waiting[name] = [item for item in waiting if item.client is not client]
                    if not self._waiting[name]:
                        del self._waiting[name]
            self._remove(client, some)
        self._local.ended(client)


def _refusal(client: Client, code: int) -> int:
    """Return a code as in this client's SUBACK; 3.1.1 has only one refusal."""
    return code if code < FAILURE or client.version == 5 else FAILURE


def _counter_of(topic_filter: str, levels_max: int) -> str:
    """Return the counter of a filter beyond a limit of topic names."""
    plain = topic_filter.split("/", 2)[-1] if topic_filter.startswith("$share/") else topic_filter
    return "refused_topic_levels" if plain.count("/") >= levels_max else "refused_topic_bytes"
