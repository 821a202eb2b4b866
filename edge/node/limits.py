"""Bounds of the edge core; plain values (the operator's model is conf/edge_settings.py)."""

from dataclasses import dataclass

from conf.edge_settings import EdgeSettings
from mqtt.limits import PACKET_BYTES_MAX, Limits

__all__ = ["EdgeLimits", "ListenerPolicy"]

DEFAULT = EdgeSettings()  # one default per setting, and its description: conf/edge_settings.py


@dataclass(frozen=True, slots=True)
class ListenerPolicy:
    """Permissions of a listener's clients; ``Client.policy``."""

    name: str = "default"
    allow_anonymous: bool = False
    protocol: str = "mqtt"  # "ws" for WebSocket; clients are handled alike
    publish_rate_max: float = 0.0
    byte_rate_max: float = 0.0
    subscribe_rate_max: float = 0.0
    daily_bytes_max: int = 0
    inflight_max: int = 0
    packet_bytes_max: int = 0
    topic_levels_max: int = 0
    keep_alive_max_s: int = 0
    filters_max: int = 0
    connections_user_max: int = 0
    connect_rate_user_max: int = 0
    sessions_user_max: int = 0
    retained_user_max: int = 0
    retained_bytes_user_max: int = 0
    queue_messages_max: int = 0
    queue_bytes_max: int = 0
    tell_refusals: bool = True
    proxy_identity: bool = False  # the certificate in a verified PROXY header names the client
    unmetered: tuple[str, ...] = ()  # networks exempt from limits per address


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds and announcements of one edge."""

    keep_alive_max_s: int = DEFAULT.keep_alive_max_s
    receive_maximum: int = DEFAULT.receive_maximum
    topic_alias_maximum: int = DEFAULT.topic_alias_maximum
    maximum_packet_size: int = DEFAULT.maximum_packet_size
    announce_maximum_packet_size: bool = DEFAULT.announce_maximum_packet_size
    response_information: str = DEFAULT.response_information
    recheck_retained_source: bool = True
    sticky_shares: bool = False  # a shared subscription's member is chosen by topic, not round robin
    overlapping: str = DEFAULT.overlapping
    session_expiry_max_s: int = DEFAULT.session_expiry_max_s
    topic_levels_max: int = DEFAULT.topic_levels_max
    topic_bytes_max: int = DEFAULT.topic_bytes_max
    client_id_bytes_max: int = DEFAULT.client_id_bytes_max
    filters_per_packet_max: int = DEFAULT.filters_per_packet_max
    share_join_rate_max: float = DEFAULT.share_join_rate_max
    filters_per_session_max: int = DEFAULT.filters_per_session_max
    user_property_bytes_max: int = DEFAULT.user_property_bytes_max
    user_properties_max: int = DEFAULT.user_properties_max
    retain_available: bool = DEFAULT.retain_available
    maximum_qos: int = DEFAULT.maximum_qos
    retained_per_subscribe_max: int = DEFAULT.retained_per_subscribe_max
    retained_hold_s: float = DEFAULT.retained_hold_s
    retained_rate_max: float = DEFAULT.retained_rate_max
    connect_timeout_s: float = DEFAULT.connect_timeout_s
    connect_packet_timeout_s: float = DEFAULT.connect_packet_timeout_s
    claim_gap_s: float = 0.0  # between claims of client identifiers; a single one does not wait
    connections_max: int = DEFAULT.connections_max
    memory_max: int = DEFAULT.memory_max
    routes_bytes_max: int = DEFAULT.routes_bytes_max
    session_rate: float = DEFAULT.session_rate
    session_burst: int = DEFAULT.session_burst
    publish_rate_max: float = DEFAULT.publish_rate_max
    connect_rate_max: float = DEFAULT.connect_rate_max
    unauthenticated_bytes_max: int = DEFAULT.unauthenticated_bytes_max
    sys_interval_s: int = DEFAULT.sys_interval_s
    publisher_properties: tuple[str, ...] = DEFAULT.publisher_properties
    events: bool = DEFAULT.events
    events_rate_max: float = DEFAULT.events_rate_max
    fence_close_s: float = DEFAULT.fence_close_s
    failed_logins_max: int = DEFAULT.failed_logins_max
    flapping_ends_max: int = DEFAULT.flapping_ends_max
    takeovers_max: int = DEFAULT.takeovers_max
    will_rate_max: float = DEFAULT.will_rate_max
    requests_max: int = 100_000  # unanswered requests to partitions, per edge

    def of_packets(self) -> Limits:
        """Return the bounds of a client's packets."""
        return Limits(
            maximum_packet_size=self.maximum_packet_size,
            user_properties_bytes_max=self.user_property_bytes_max,
            user_properties_max=self.user_properties_max or PACKET_BYTES_MAX,
            from_client=True,
        )
