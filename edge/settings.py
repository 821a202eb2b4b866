"""What the edge core is told about bounds; plain values (the operator's model is conf/edge_settings.py)."""

from dataclasses import dataclass

__all__ = ["EdgeLimits", "ListenerPolicy"]


@dataclass(frozen=True, slots=True)
class ListenerPolicy:
    """What a listener allows; ``Client.policy``."""

    name: str = "default"
    allow_anonymous: bool = False
    protocol: str = "mqtt"  # "ws" for WebSocket; what a client meets is the same


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds and announcements of one edge."""

    keep_alive_max_s: int = 3600
    receive_maximum: int = 20
    topic_alias_maximum: int = 10
    maximum_packet_size: int = 1024 * 1024
    announce_maximum_packet_size: bool = False  # to every MQTT 5 client; else to those that send one
    response_information: str = ""  # what topics for responses begin with; "": nothing is told
    sticky_shares: bool = False  # a shared subscription's member is chosen by topic, not in turn
    session_expiry_max_s: int = 7 * 24 * 3600
    topic_levels_max: int = 32
    topic_bytes_max: int = 1024
    client_id_bytes_max: int = 256
    filters_per_session_max: int = 1000
    user_property_bytes_max: int = 128 * 1024
    retain_available: bool = True
    maximum_qos: int = 2
    retained_per_subscribe_max: int = 10_000
    retained_hold_s: float = 5.0
    connect_timeout_s: float = 10.0
    claim_gap_s: float = 0.0  # between claims of client identifiers; one that comes alone does not wait
    connections_max: int = 100_000
    connect_rate_max: float = 0.0
    unauthenticated_bytes_max: int = 64 * 1024
    sys_interval_s: int = 10
    fence_close_s: float = 10.0
    requests_max: int = 100_000  # unanswered requests to partitions, per edge
