"""Broker endpoints from the settings of a bridge: addresses, credentials, and the CONNECT of each connection.

Reads secrets from files of mode 0600. All configuration errors are found here, before a connection starts.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from conf.bridge_settings import BridgeSettings, MqttEndpointSettings
from conf.errors import ExitCode, UserError
from conf.private_files import check_private, read_secret
from gateways.addresses import Address, parse_address
from gateways.bridges.publishers import REQUEST_PROPERTIES
from gateways.client import WINDOW_3_1_1, GatewayClientOptions
from gateways.transport import client_context
from mqtt.client_session import ClientBounds
from mqtt.packets import Connect, SubscriptionRequest, Will
from mqtt.properties import Properties, PropertyId

__all__ = ["BrokerEndpoint", "cluster_endpoint", "remote_endpoint"]

TOPIC_ALIASES_MAX = 64  # topic aliases that a broker may use in messages to us
# accepted beyond our Receive Maximum: Mosquitto 2.0 sends its whole queue; ``MqttEnd`` bounds the bytes
EXCESS_MESSAGES_MAX = 65_535


@dataclass
class BrokerEndpoint:
    """One broker and the bridge's credentials there.

    Attributes:
      as_bridge: CONNECT uses level 0x83 or 0x84 (bridge): the broker does not send back our own messages.
      will: Of the next connection.
      full_qos: Filters must be granted at their QoS, and QoS 2 messages are published at QoS 2.
      server_references: Permitted hosts of Server References.
      named_filters: Filters whose topics need publisher names from the edge; None: CONNECT does not request them.
    """

    where: str
    addresses: tuple[Address, ...]
    client_id: str
    username: str | None
    password: bytes | None
    context: ssl.SSLContext | None
    version: int
    clean_start: bool
    session_expiry_s: int
    keep_alive_s: int
    window_messages: int
    packet_bytes_max: int
    as_bridge: bool = False
    will: Will | None = None
    full_qos: bool = False
    server_references: tuple[str, ...] = ()
    named_filters: tuple[str, ...] | None = None

    def options(self, filters: Sequence[SubscriptionRequest]) -> GatewayClientOptions:
        """Return the options of a client."""
        window = max(16, self.window_messages)
        if self.version != 5 and self.full_qos:
            window = min(self.window_messages, WINDOW_3_1_1)
        bounds = ClientBounds(
            connect_timeout_s=10.0,
            goodbye_timeout_s=1.0,
            silence_s=self.keep_alive_s * 1.5,
            window=window,
            excess=EXCESS_MESSAGES_MAX,
        )
        return GatewayClientOptions(
            self.addresses,
            self.connect,
            tuple(filters),
            self.context,
            bounds,
            server_references=self.server_references,
            full_qos=self.full_qos,
        )

    def connect(self) -> Connect:
        """Return the CONNECT of the next connection."""
        properties: Properties = {}
        if self.version == 5:
            properties = {
                PropertyId.RECEIVE_MAXIMUM: self.window_messages,
                PropertyId.MAXIMUM_PACKET_SIZE: self.packet_bytes_max,
                PropertyId.TOPIC_ALIAS_MAXIMUM: TOPIC_ALIASES_MAX,
            }
            if self.named_filters is not None:
                properties |= REQUEST_PROPERTIES
            if not self.clean_start:
                properties[PropertyId.SESSION_EXPIRY_INTERVAL] = self.session_expiry_s
        return Connect(
            self.client_id,
            self.clean_start,
            self.keep_alive_s,
            self.version,
            self.will,
            self.username,
            self.password,
            properties,
            self.as_bridge,
        )


def cluster_endpoint(name: str, settings: BridgeSettings) -> BrokerEndpoint:
    """Return a bridge's endpoint at the cluster.

    Raises:
      UserError: A configuration error, with its place.
    """
    endpoint = MqttEndpointSettings(
        addresses=settings.cluster,
        client_id=settings.client_id,
        username=settings.username,
        password_file=settings.password_file,
        authority=settings.authority,
        certificate=settings.certificate,
        key=settings.key,
        protocol=settings.protocol,
        clean_start=settings.clean_start,
        session_expiry_s=settings.session_expiry_s,
        keep_alive_s=settings.keep_alive_s,
        server_references=settings.server_references,
    )
    return _build_endpoint(f"bridge.{name}", "cluster", endpoint, settings)


def remote_endpoint(name: str, settings: BridgeSettings, remote: MqttEndpointSettings) -> BrokerEndpoint:
    """Return a bridge's endpoint at the other broker.

    Raises:
      UserError: A configuration error, with its place.
    """
    return _build_endpoint(f"bridge.{name}.remote", "addresses", remote, settings)


def _build_endpoint(where: str, key: str, endpoint: MqttEndpointSettings, settings: BridgeSettings) -> BrokerEndpoint:
    addresses = []
    for text in endpoint.addresses:
        try:
            addresses.append(parse_address(text))
        except ValueError as error:
            raise UserError(f"{where}.{key}: {error}", ExitCode.USAGE) from None
    if (endpoint.certificate is None) != (endpoint.key is None):
        raise UserError(f"{where}: set certificate and key together", ExitCode.USAGE)
    password = None if endpoint.password_file is None else read_secret(where, endpoint.password_file)
    if password is not None and not endpoint.username:
        raise UserError(f"{where}: password_file needs username", ExitCode.USAGE)
    if endpoint.key is not None:
        check_private(endpoint.key, f"{where}: key")
    secure = any(address.secure for address in addresses)
    version = 5 if endpoint.protocol == "5" else 4
    return BrokerEndpoint(
        where,
        tuple(addresses),
        endpoint.client_id or settings.client_id,
        endpoint.username or None,
        password,
        client_context(endpoint.authority, endpoint.certificate, endpoint.key) if secure else None,
        version,
        endpoint.clean_start,
        endpoint.session_expiry_s,
        endpoint.keep_alive_s,
        settings.window_messages,
        settings.packet_bytes_max,
        as_bridge=version == 4,
        server_references=endpoint.server_references,
    )
