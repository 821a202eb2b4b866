"""Connections to an agent's broker, from its settings: addresses, secrets, and CONNECT packets.

Reads secrets from files of mode 0600. All configuration errors are found here, before a connection starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conf.errors import ExitCode, UserError
from conf.federate_settings import FederateSettings
from conf.private_files import check_private, read_secret
from gateways.addresses import parse_address
from gateways.client import WINDOW_3_1_1, GatewayClientOptions
from gateways.transport import client_context
from mqtt.client_session import ClientBounds
from mqtt.packets import Connect, SubscriptionRequest
from mqtt.properties import Properties, PropertyId

__all__ = ["build_client_options", "get_client_id", "own_client_ids"]

KEEP_ALIVE_S = 30
EXCESS_MESSAGES_MAX = (
    65_535  # accepted beyond our Receive Maximum: Mosquitto 2.0 sends its whole queue after a reconnect
)
EXPIRY_S_MIN = 7 * 86_400
TOPIC_ALIASES_MAX = 64


def get_client_id(settings: FederateSettings) -> str:
    """Return the client identifier of the first connection."""
    return settings.client_id or f"stratamq-federate-{settings.agent}"


def build_client_options(
    settings: FederateSettings, log_filters: Sequence[SubscriptionRequest], is_new: Callable[[], bool]
) -> list[GatewayClientOptions]:
    """Return the options of each connection to the broker: one, or two for 3.1.1.

    With No Local at 3.1.1 these connect as bridges (level 0x84), and a third one as a client, so that both receive its
    markers.

    Args:
      log_filters: Of the adapter; on the first connection.
      is_new: Whether the next connection uses Clean Start: no former session is known.

    Raises:
      UserError: A configuration error, with its place.
    """
    try:
        addresses = tuple(parse_address(each) for each in settings.host)
    except ValueError as error:
        raise UserError(f"federate.host: {error}", ExitCode.USAGE) from None
    context = None
    if any(each.secure for each in addresses):
        if settings.host_key is not None:
            check_private(settings.host_key, "federate.host_key")
        context = client_context(settings.host_authority, settings.host_certificate, settings.host_key)
    password = None
    if settings.password_file is not None:
        password = read_secret("federate.password_file", settings.password_file)
    version = 5 if settings.protocol == "5" else 4
    as_bridge = version == 4 and settings.no_local

    def connect_as(client_id: str, is_bridge: bool = as_bridge) -> Callable[[], Connect]:
        def connect() -> Connect:
            properties: Properties = {}
            if version == 5:
                properties = {
                    PropertyId.RECEIVE_MAXIMUM: settings.receive_maximum,
                    PropertyId.MAXIMUM_PACKET_SIZE: settings.packet_bytes_max,
                    PropertyId.TOPIC_ALIAS_MAXIMUM: TOPIC_ALIASES_MAX,
                    PropertyId.SESSION_EXPIRY_INTERVAL: max(EXPIRY_S_MIN, int(settings.hold_s)),
                }
            return Connect(
                client_id,
                is_new(),
                KEEP_ALIVE_S,
                version,
                None,
                settings.username or None,
                password,
                properties,
                bridge=is_bridge,
            )

        return connect

    window = settings.host_window
    if version != 5 and "host_window" not in settings.model_fields_set:
        window = WINDOW_3_1_1
    bounds = ClientBounds(
        connect_timeout_s=10.0, silence_s=KEEP_ALIVE_S * 1.5, window=window, excess=EXCESS_MESSAGES_MAX
    )
    client_id = get_client_id(settings)

    def connection(connect: Callable[[], Connect], filters: Sequence[SubscriptionRequest] = ()) -> GatewayClientOptions:
        hosts = settings.server_references
        return GatewayClientOptions(addresses, connect, tuple(filters), context, bounds, server_references=hosts)

    connections = [connection(connect_as(client_id), log_filters)]
    if version != 5:
        connections.append(connection(connect_as(f"{client_id}-b")))
    if as_bridge:
        connections.append(connection(connect_as(f"{client_id}-m", False)))
    return connections


def own_client_ids(settings: FederateSettings) -> list[str]:
    """Return the client identifiers of all connections: their subscriptions do not count as interest."""
    client_id = get_client_id(settings)
    return [client_id, f"{client_id}-b", f"{client_id}-m"]
