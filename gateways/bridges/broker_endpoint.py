"""Doors of brokers from the settings of a bridge: addresses, credentials, and the CONNECT of each connection.

Reads secrets, which stand in files of mode 0600 and nowhere else. All mistakes are found here, before anything starts.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from conf.bridge_settings import BridgeSettings, MqttEndpointSettings
from conf.errors import ExitCode, UserError
from conf.private_files import check_private, read_secret
from gateways.addresses import Address, parse_address
from gateways.bridges.publishers import ASKED
from gateways.client import WINDOW_3_1_1, GatewayClientOptions
from gateways.transport import client_context
from mqtt.client_session import ClientBounds
from mqtt.packets import Connect, SubscriptionRequest, Will
from mqtt.properties import Properties, PropertyId

__all__ = ["BrokerEndpoint", "cluster_door", "remote_door"]

ALIASES_MAX = 64  # topic aliases that a broker may use towards us
EXCESS = 65_535  # above our Receive Maximum: Mosquitto 2.0 sends its whole queue; bytes are bounded by the end


@dataclass
class BrokerEndpoint:
    """One broker, and who the bridge is there.

    Attributes:
        as_bridge: CONNECT says bridge (level 0x83 or 0x84): the broker keeps our own messages away.
        will: Of the next connection.
        full_qos: Filters must be granted at their QoS, and messages of QoS 2 leave at QoS 2.
        server_references: Hosts that the broker may send this client to.
        named_filters: Those on whose topics the edge has to name publishers; None: CONNECT does not ask where it does.
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
        """Return what a client needs."""
        window = max(16, self.window_messages)
        if self.version != 5 and self.full_qos:
            window = min(self.window_messages, WINDOW_3_1_1)
        bounds = ClientBounds(
            connect_timeout_s=10.0,
            goodbye_timeout_s=1.0,
            silence_s=self.keep_alive_s * 1.5,
            window=window,
            excess=EXCESS,
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
                PropertyId.TOPIC_ALIAS_MAXIMUM: ALIASES_MAX,
            }
            if self.named_filters is not None:
                properties |= ASKED
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


def cluster_door(name: str, settings: BridgeSettings) -> BrokerEndpoint:
    """Return the cluster's door of a bridge.

    Raises:
        UserError: A mistake, with its place.
    """
    door = MqttEndpointSettings(
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
    return _door(f"bridge.{name}", "cluster", door, settings)


def remote_door(name: str, settings: BridgeSettings, remote: MqttEndpointSettings) -> BrokerEndpoint:
    """Return the other broker's door.

    Raises:
        UserError: A mistake, with its place.
    """
    return _door(f"bridge.{name}.remote", "addresses", remote, settings)


def _door(where: str, key: str, door: MqttEndpointSettings, settings: BridgeSettings) -> BrokerEndpoint:
    addresses = []
    for text in door.addresses:
        try:
            addresses.append(parse_address(text))
        except ValueError as error:
            raise UserError(f"{where}.{key}: {error}", ExitCode.USAGE) from None
    if (door.certificate is None) != (door.key is None):
        raise UserError(f"{where}: certificate and key belong together", ExitCode.USAGE)
    password = None if door.password_file is None else read_secret(where, door.password_file)
    if password is not None and not door.username:
        raise UserError(f"{where}: password_file needs username", ExitCode.USAGE)
    if door.key is not None:
        check_private(door.key, f"{where}: key")
    secure = any(address.secure for address in addresses)
    version = 5 if door.protocol == "5" else 4
    return BrokerEndpoint(
        where,
        tuple(addresses),
        door.client_id or settings.client_id,
        door.username or None,
        password,
        client_context(door.authority, door.certificate, door.key) if secure else None,
        version,
        door.clean_start,
        door.session_expiry_s,
        door.keep_alive_s,
        settings.window_messages,
        settings.packet_bytes_max,
        as_bridge=version == 4,
        server_references=door.server_references,
    )
