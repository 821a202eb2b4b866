"""SUBSCRIBE and UNSUBSCRIBE: filters become routes, then SUBACK, then retained messages.

SUBACK leaves when the routes stand at every edge. An ephemeral session's filters are this edge's own; a durable one's
are committed at its partition, which adds their routes. Source: MQTT 5.0 sections 3.8 to 3.11, 4.8.2; docs/adr/0003.
"""

from typing import TYPE_CHECKING

from edge.client import Client
from edge.held_live import Hold
from edge.partition_requests import RequestsFull
from mqtt.codec import Limits, decode_packet, encode_packet
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Suback, Subscribe, Unsuback, Unsubscribe
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode
from mqtt.topics import parse_shared, validate_topic_filter
from wire.messages import (
    Control,
    SessionSubscribed,
    SessionUnsubscribed,
    SubscribeSession,
    Subscription,
    UnsubscribeSession,
)

if TYPE_CHECKING:
    from edge.core import EdgeCore

__all__ = ["SubscribeDesk"]

NO_SUBSCRIPTION_EXISTED = 0x11


class SubscribeDesk:
    """Handles the subscription packets of one edge."""

    def __init__(self, edge: "EdgeCore") -> None:
        self._edge = edge
        self._limits = Limits(
            maximum_packet_size=edge.limits.maximum_packet_size,
            user_properties_bytes_max=edge.limits.user_property_bytes_max,
            from_client=True,
        )
        self._waiting: list[tuple[Client, Subscribe, list[int], list[bool], Hold | None, set[str]]] = []

    # --- SUBSCRIBE

    def subscribe(self, client: Client, first_byte: int, body: bytes) -> None:
        """A SUBSCRIBE packet; the connection stays parked until SUBACK was written."""
        packet = decode_packet(first_byte, body, client.version, self._limits)
        assert isinstance(packet, Subscribe)
        identifiers = packet.properties.get(PropertyId.SUBSCRIPTION_IDENTIFIER)
        identifier = int(identifiers[0]) if isinstance(identifiers, list) else 0
        codes: list[int] = []
        granted: list[Subscription] = []
        for wanted in packet.subscriptions:
            code = self._judge(client, wanted.topic_filter, len(granted))
            if code < 0x80:
                code = min(wanted.qos, self._edge.limits.maximum_qos)
                granted.append(
                    Subscription(
                        wanted.topic_filter,
                        code,
                        wanted.no_local,
                        wanted.retain_as_published,
                        wanted.retain_handling,
                        identifier,
                    )
                )
            codes.append(code)
        if not client.session:
            codes, granted = self._affordable(client, codes, granted)
        if not granted:
            self._suback(client, packet, codes)
            self._edge.hot.resume(client.conn)
        elif client.session:
            self._subscribe_durable(client, packet, codes, granted)
        else:
            self._subscribe_ephemeral(client, packet, codes, granted)

    def _judge(self, client: Client, topic_filter: str, more: int) -> int:
        limits = self._edge.limits
        try:
            shared = parse_shared(topic_filter)
            plain = shared[1] if shared is not None else topic_filter
            validate_topic_filter(plain, bytes_max=limits.topic_bytes_max, levels_max=limits.topic_levels_max)
        except RemoteProtocolError as error:
            return _refusal(client, error.reason_code)
        if (
            topic_filter not in client.subscriptions
            and len(client.subscriptions) + more >= limits.filters_per_session_max
        ):
            return _refusal(client, ReasonCode.QUOTA_EXCEEDED)
        return 0

    def _affordable(
        self, client: Client, codes: list[int], granted: list[Subscription]
    ) -> tuple[list[int], list[Subscription]]:
        """Refuse the filters that would make matching too expensive; a durable session's partition does so itself."""
        verdicts = self._edge.ephemeral.admits(client, [subscription.topic_filter for subscription in granted])
        if all(verdicts):
            return codes, granted
        self._edge.count("refused_filter_cost", verdicts.count(False))
        refusal = _refusal(client, ReasonCode.QUOTA_EXCEEDED)
        results = iter(verdicts)
        codes = [code if code >= 0x80 or next(results) else refusal for code in codes]
        return codes, [subscription for subscription, verdict in zip(granted, verdicts, strict=True) if verdict]

    def _suback(self, client: Client, packet: Subscribe, codes: list[int]) -> None:
        data = encode_packet(Suback(packet.packet_identifier, codes, {}), client.version)  # [MQTT-3.9.3-1]
        self._edge.hot.write(client.conn, data, needs_lease=True)

    def _subscribe_durable(
        self, client: Client, packet: Subscribe, codes: list[int], granted: list[Subscription]
    ) -> None:
        edge = self._edge
        request = SubscribeSession(
            edge.requests.next_number(), client.partition, 0, client.session, client.owner_epoch, granted
        )

        def subscribed(answer: Control) -> None:
            if client.conn.closed or not isinstance(answer, SessionSubscribed):
                return
            if not len(granted) == len(answer.reason_codes) == len(answer.existed):
                edge.error(client.conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
                return
            results = iter(answer.reason_codes)
            self._suback(client, packet, [_refusal(client, next(results)) if code < 0x80 else code for code in codes])
            taken, existed = [], []
            for subscription, code, before in zip(granted, answer.reason_codes, answer.existed, strict=True):
                if code < 0x80:
                    client.subscriptions[subscription.topic_filter] = subscription
                    taken.append(subscription)
                    existed.append(before)
            edge.hot.resume(client.conn)
            edge.retained.read_for_session(client, taken, existed, request.request)

        try:
            edge.requests.ask(request, subscribed, edge.now)
        except RequestsFull:
            self._suback(client, packet, [_refusal(client, ReasonCode.QUOTA_EXCEEDED)] * len(codes))
            edge.hot.resume(client.conn)

    def _subscribe_ephemeral(
        self, client: Client, packet: Subscribe, codes: list[int], granted: list[Subscription]
    ) -> None:
        edge = self._edge
        existed = [subscription.topic_filter in client.subscriptions for subscription in granted]
        fresh = []
        hold = edge.held.begin(client, granted, existed)
        for subscription, before in zip(granted, existed, strict=True):
            client.subscriptions[subscription.topic_filter] = subscription
            edge.ephemeral.add(client, subscription)
            if not before and not subscription.topic_filter.startswith("$SYS"):
                fresh.append(subscription.topic_filter)
        missing = set(edge.registrar.hold(fresh, edge.now))
        names = {
            subscription.topic_filter for subscription in granted if not subscription.topic_filter.startswith("$SYS")
        }
        missing |= {name for name in names if not edge.registrar.stands(name)}
        waiting = (client, packet, codes, existed, hold, missing)
        if missing:
            self._waiting.append(waiting)
        else:
            self._finish(client, packet, codes, existed, hold)

    def standing(self, names: list[str]) -> None:
        """These filters' routes stand everywhere now."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            client, packet, codes, existed, hold, missing = item
            if client.conn.closed:
                continue
            missing.difference_update(names)
            if missing:
                self._waiting.append(item)
            else:
                self._finish(client, packet, codes, existed, hold)

    def _finish(
        self, client: Client, packet: Subscribe, codes: list[int], existed: list[bool], hold: Hold | None
    ) -> None:
        self._suback(client, packet, codes)
        granted = [
            subscription
            for wanted, code in zip(packet.subscriptions, codes, strict=True)
            if code < 0x80 and (subscription := client.subscriptions.get(wanted.topic_filter)) is not None
        ]
        self._edge.hot.resume(client.conn)
        if len(granted) != len(existed):
            if hold is not None:
                self._edge.held.end(hold)
        else:
            self._edge.retained.read_for_connection(client, granted, existed, hold)

    # --- UNSUBSCRIBE

    def unsubscribe(self, client: Client, first_byte: int, body: bytes) -> None:
        """An UNSUBSCRIBE packet."""
        edge = self._edge
        packet = decode_packet(first_byte, body, client.version, self._limits)
        assert isinstance(packet, Unsubscribe)
        if not client.session:
            codes = []
            for name in packet.topic_filters:
                codes.append(0 if name in client.subscriptions else NO_SUBSCRIPTION_EXISTED)
                self._remove(client, name)
            self._unsuback(client, packet, codes)
            edge.hot.resume(client.conn)
            return
        request = UnsubscribeSession(
            edge.requests.next_number(),
            client.partition,
            0,
            client.session,
            client.owner_epoch,
            list(packet.topic_filters),
        )

        def unsubscribed(answer: Control) -> None:
            if client.conn.closed or not isinstance(answer, SessionUnsubscribed):
                return
            for name in packet.topic_filters:
                client.subscriptions.pop(name, None)
            self._unsuback(client, packet, answer.reason_codes)
            edge.hot.resume(client.conn)

        try:
            edge.requests.ask(request, unsubscribed, edge.now)
        except RequestsFull:
            edge.error(client.conn, ReasonCode.SERVER_BUSY)

    def _unsuback(self, client: Client, packet: Unsubscribe, codes: list[int]) -> None:
        data = encode_packet(Unsuback(packet.packet_identifier, codes, {}), client.version)  # [MQTT-3.11.3-1]
        self._edge.hot.write(client.conn, data, needs_lease=True)

    def _remove(self, client: Client, name: str) -> None:
        if client.subscriptions.pop(name, None) is not None:
            self._edge.ephemeral.remove(client, name)
            self._edge.held.unsubscribed(client, name)
            if not name.startswith("$SYS"):
                self._edge.registrar.release([name])

    def ended(self, client: Client) -> None:
        """The connection of an ephemeral session is gone, its subscriptions with it."""
        if not client.session:
            for name in sorted(client.subscriptions):
                self._remove(client, name)
            self._edge.ephemeral.ended(client)


def _refusal(client: Client, code: int) -> int:
    """Return a code as this client's SUBACK has it; 3.1.1 knows one refusal."""
    return code if code < 0x80 or client.version == 5 else 0x80
