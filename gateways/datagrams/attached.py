"""A node's end at the cluster: one MQTT client, whose messages and answers become events of the node.

The session is clean. A message of the cluster is acknowledged when every subscriber has it; it is resent only on the
same connection. Our own messages are not received (No Local). While the cluster is down, QoS 1 messages are answered
*busy*, and QoS 0 messages go only to devices, counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from conf.errors import ExitCode, UserError
from conf.private_files import check_private
from conf.udp_settings import UdpSettings
from gateways.addresses import parse_address
from gateways.client import GatewayClient, GatewayClientOptions
from gateways.datagrams.messages import Code
from gateways.datagrams.node_events import (
    ClusterAnswered,
    ClusterGranted,
    ClusterMessage,
    ClusterPublish,
    DatagramReady,
    Event,
)
from gateways.transport import client_context
from mqtt.client_session import Accepted
from mqtt.packets import Connect, Publish, SubscriptionRequest
from mqtt.properties import PropertyId
from mqtt.reasons import FAILURE, ReasonCode

__all__ = ["ClusterConnection", "make_cluster_end"]

KEEP_ALIVE_S = 30
RECEIVE_MAXIMUM = 64  # below the queue bound of one device: see deliveries.py
OUTGOING_BYTES_MAX = 1024 * 1024  # unsent bytes: QoS 0 has no other bound
NO_RETAINED = 2  # Retain Handling
REFUSALS = {
    ReasonCode.NOT_AUTHORIZED: Code.NOT_AUTHORIZED,
    ReasonCode.TOPIC_NAME_INVALID: Code.NOT_AUTHORIZED,
    ReasonCode.PACKET_TOO_LARGE: Code.TOO_LARGE,
}


class ClusterConnection:
    """The user of the client.

    Attributes:
      counts: Connections and drops, by name.
      is_up: Whether it is connected.
    """

    def __init__(
        self,
        options: GatewayClientOptions,
        random: Random,
        when_event: Callable[[Event], None],
        when_lost: Callable[[], None],
    ) -> None:
        """Set up.

        Args:
          options: Of the client.
          random: For its delays.
          when_event: Receives the cluster's events.
          when_lost: Called when the connection ends.
        """
        self.counts: Counter[str] = Counter()
        self.is_up = False
        self._when_event, self._when_lost = when_event, when_lost
        self._client = GatewayClient(options, self, random, self._granted, counts=self.counts)
        self._unacknowledged: dict[int, Publish] = {}
        self._token = 0

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        await self._client.run()

    def apply(self, ready: DatagramReady) -> None:
        """Perform the node's output for the cluster."""
        for topic_filter in ready.subscribe:
            self._client.subscribe(SubscriptionRequest(topic_filter, 1, True, False, NO_RETAINED))
        for topic_filter in ready.unsubscribe:
            self._client.unsubscribe(topic_filter)
        for token in ready.done:
            packet = self._unacknowledged.pop(token, None)
            if packet is not None:
                self._client.acknowledge(packet)
        for message in ready.publish:
            self._publish(message)

    def _publish(self, message: ClusterPublish) -> None:
        client, qos = self._client, message.qos
        is_possible = (
            client.is_connected and client.outgoing_bytes < OUTGOING_BYTES_MAX and (not qos or client.has_capacity)
        )
        if is_possible and client.publish(Publish(message.topic, message.payload, qos), message.token):
            self.counts["published"] += 1
        elif qos:
            self._when_event(ClusterAnswered(message.token, Code.TOO_LARGE if is_possible else Code.BUSY))
        else:
            self.counts["dropped_away"] += 1

    # ClientUser

    def connected(self, accepted: Accepted) -> None:
        """Record the connection."""
        del accepted
        self.is_up = True
        self.counts["connected"] += 1

    def disconnected(self, reason: str) -> None:
        """Record the disconnection."""
        del reason
        self._unacknowledged.clear()
        if self.is_up:
            self.is_up = False
            self._when_lost()

    def received(self, packet: Publish) -> None:
        """Pass a message to the node."""
        self._token += 1
        if packet.qos:
            self._unacknowledged[self._token] = packet
        self._when_event(ClusterMessage(packet.topic_name, packet.payload, min(packet.qos, 1), self._token))

    def answered(self, token: int, reason_code: int) -> None:
        """Pass an answer to the node; -1: the broker has lost the message."""
        if 0 <= reason_code < FAILURE:
            refusal = None
        else:
            known = reason_code in set(ReasonCode)
            refusal = REFUSALS.get(ReasonCode(reason_code), Code.BUSY) if known else Code.BUSY
        self._when_event(ClusterAnswered(token, refusal))

    def writable(self) -> None:
        """No output is pending: a refused publisher retries after *busy*."""

    def _granted(self, topic_filter: str, is_granted: bool) -> None:
        self._when_event(ClusterGranted(topic_filter, is_granted))


def make_cluster_end(
    udp: UdpSettings, name: str, when_event: Callable[[Event], None], when_lost: Callable[[], None]
) -> ClusterConnection:
    """Return the configured cluster end.

    Raises:
      UserError: A configuration error.
    """
    try:
        addresses = tuple(parse_address(text) for text in udp.cluster)
    except ValueError as error:
        raise UserError(f"udp.cluster: {error}", ExitCode.USAGE) from None
    if udp.key is not None:
        check_private(udp.key, "udp.key")
    is_secure = any(address.secure for address in addresses)
    context = client_context(udp.authority, udp.certificate, udp.key) if is_secure else None
    client_id = udp.client_id or name

    def connect() -> Connect:
        return Connect(client_id, True, KEEP_ALIVE_S, properties={PropertyId.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM})

    options = GatewayClientOptions(addresses, connect, context=context, server_references=udp.server_references)
    return ClusterConnection(options, Random(), when_event, when_lost)
