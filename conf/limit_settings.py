"""Settings of limits: for one address, one client or all clients of a listener.

Each setting has a reader; ``conf/edge_settings.py`` includes both models.
"""

from pydantic import BaseModel, Field, model_validator

__all__ = ["PACKET_BYTES_MAX", "EdgeAbuseLimits", "ListenerLimits"]

PACKET_BYTES_MAX = (8 << 20) - (320 << 10)  # with its partitions and share it fits into one frame between nodes (8 MiB)


class ListenerLimits(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge.listeners.<name>]``: rates and counts of its clients."""

    accept_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="accepted connections per second, 0: no limit; more are queued by address for at most 5 s",
    )
    accept_rate_address_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="those of one address (IPv6: /64), 0: no limit; not for PROXY senders",
    )
    connections_listener_max: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="open connections, 0: no separate limit; more are closed before their handshake",
    )
    connections_address_max: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="those of one address (IPv6: /64), 0: no limit; not for PROXY senders",
    )
    publish_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e7,
        description="messages per second read from one client here, 0: the edge's; the rest stays unread",
    )
    byte_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e12,
        description="bytes per second read from one client here, 0: no limit; the rest stays unread",
    )
    publish_rate_address_max: float = Field(
        default=0.0,
        ge=0,
        le=1e7,
        description=(
            "those of all clients of one address (IPv6: /64) here together, 0: no limit; not for PROXY senders"
        ),
    )
    byte_rate_address_max: float = Field(
        default=0.0,
        ge=0,
        le=1e12,
        description="bytes per second read from these together, 0: no limit; the rest stays unread",
    )
    subscribe_rate_address_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description=(
            "filters per second that these subscribe and unsubscribe together, 0: no limit; beyond it they are not read"
        ),
    )
    subscribe_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description=(
            "filters per second that one client here may subscribe and unsubscribe, 0: no limit; beyond it it "
            "is not read"
        ),
    )
    daily_bytes_max: int = Field(
        default=0,
        ge=0,
        le=1 << 50,
        description="bytes that one user sends here on a day of UTC, 0: no limit; then 0x97 until midnight",
    )
    inflight_max: int = Field(
        default=0,
        ge=0,
        le=65535,
        description=(
            "in-flight QoS 1/2 messages in each direction per client, at most and 0: the edge's; sent to MQTT 5 clients"
        ),
    )
    packet_bytes_max: int = Field(
        default=0,
        ge=0,
        le=PACKET_BYTES_MAX,
        description=(
            "bytes of a client's packet, at most and 0: the edge's maximum_packet_size; sent to MQTT 5 clients"
        ),
    )
    topic_levels_max: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="levels of a topic of one client here, at most and 0: the edge's; deeper ones get 0x90 or 0x8F",
    )
    keep_alive_max_s: int = Field(
        default=0,
        ge=0,
        le=65535,
        description=(
            "s; a longer Keep Alive, or none, is lowered to this here, at most and 0: the edge's; sent to MQTT "
            "5 clients"
        ),
    )
    filters_max: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="subscriptions of one session, at most and 0: the edge's filters_per_session_max; more get 0x97",
    )
    connections_user_max: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="clients of one user at this edge at once, 0: no limit; more get 0x97",
    )
    connect_rate_user_max: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="CONNECTs per second of one user at this edge, 0: no limit; more get 0x9F",
    )
    sessions_user_max: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="stored sessions of one user, 0: storage.sessions_per_user_max in each partition; more get 0x97",
    )
    retained_user_max: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="retained topics of one user, 0: storage.retained_per_user_max in each partition; more get 0x97",
    )
    retained_bytes_user_max: int = Field(
        default=0,
        ge=0,
        le=1 << 50,
        description="bytes of the retained payloads of one user, 0: no limit per user; more get 0x97",
    )
    queue_messages_max: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="messages queued for a session, at most and 0: storage.queue_messages_max; see queue_full",
    )
    queue_bytes_max: int = Field(
        default=0,
        ge=0,
        le=1 << 40,
        description="bytes queued for a session, at most and 0: storage.queue_bytes_max; see queue_full",
    )
    proxy_identity: bool = Field(
        default=False,
        description=("a certificate that a sender in proxy_trusted verified (PROXY v2, its CN) identifies the client"),
    )

    @model_validator(mode="after")
    def _identity_of_headers(self) -> "ListenerLimits":
        if self.proxy_identity and getattr(self, "proxy_protocol", "none") not in ("v2", "any"):
            raise ValueError('proxy_identity needs proxy_protocol = "v2" or "any"')
        return self


class EdgeAbuseLimits(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge]``: takeovers, flapping, failed logins, wills."""

    failed_logins_max: int = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description=("wrong credentials of one address within a minute, 0: no limit; then refused here for 5 minutes"),
    )
    flapping_ends_max: int = Field(
        default=15,
        ge=0,
        le=1_000_000,
        description=(
            "closed connections of one client ID from one address within a minute, 0: no limit; then 0x9F for 5 minutes"
        ),
    )
    takeovers_max: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="takeovers of one client ID within a minute, 0: no limit; then 0x9F for a delay that doubles",
    )
    will_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="wills per second that this edge publishes, 0: no limit; more are delayed",
    )
    packet_timeout_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="s from the first byte of a packet to its last, 0: no limit; slower clients are closed (0x8D)",
    )
    packet_rate_min: int = Field(
        default=64,
        ge=0,
        le=1_000_000,
        description=("bytes per second of a packet that began at least 10 s ago; slower clients are closed (0x8D)"),
    )
