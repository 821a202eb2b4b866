"""The way to an agent's broker, from its settings: addresses, secrets, and the CONNECT of each connection.

Reads secrets, which stand in files of mode 0600. All mistakes are found here, before anything starts.
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

__all__ = ["client_id_of", "lane_options", "own_client_ids"]

KEEP_ALIVE_S = 30
EXCESS = 65_535  # above our Receive Maximum: Mosquitto 2.0 sends its whole queue after a reconnect
EXPIRY_S_MIN = 7 * 86_400
ALIASES_MAX = 64


def client_id_of(settings: FederateSettings) -> str:
    """Return the client identifier of the first connection."""
    return settings.client_id or f"stratamq-federate-{settings.agent}"


def lane_options(
    settings: FederateSettings, log_filters: Sequence[SubscriptionRequest], is_new: Callable[[], bool]
) -> list[GatewayClientOptions]:
    """Return the options of each connection to the broker: one, or two lanes for 3.1.1.

    With No Local there they come as bridges (level 0x84), and a third one as a client, whose markers both lanes get.

    Args:
        log_filters: Of the adapter; on the first connection.
        is_new: Whether the next connection begins anew: nobody knows of a session from before.
    Raises:
        UserError: A mistake, with its place.
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
                    PropertyId.TOPIC_ALIAS_MAXIMUM: ALIASES_MAX,
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
    bounds = ClientBounds(connect_timeout_s=10.0, silence_s=KEEP_ALIVE_S * 1.5, window=window, excess=EXCESS)
    client_id = client_id_of(settings)

    def lane(connect: Callable[[], Connect], filters: Sequence[SubscriptionRequest] = ()) -> GatewayClientOptions:
        hosts = settings.server_references
        return GatewayClientOptions(addresses, connect, tuple(filters), context, bounds, server_references=hosts)

    lanes = [lane(connect_as(client_id), log_filters)]
    if version != 5:
        lanes.append(lane(connect_as(f"{client_id}-b")))
    if as_bridge:
        lanes.append(lane(connect_as(f"{client_id}-m", False)))
    return lanes


def own_client_ids(settings: FederateSettings) -> list[str]:
    """Return the identifiers of all connections: what they subscribe to is nobody's wish."""
    client_id = client_id_of(settings)
    return [client_id, f"{client_id}-b", f"{client_id}-m"]
