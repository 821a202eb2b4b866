"""Settings of the connection tier: listeners, and all bounds of clients.

Defaults follow those of other brokers; raising a bound costs memory and weakens no guarantee. Sources: MQTT 5.0
sections 3.1.2.11 and 3.2.2.3; docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from conf.limit_settings import PACKET_BYTES_MAX, EdgeAbuseLimits, ListenerLimits
from conf.login_settings import EdgeLogin, ListenerLogin
from conf.node_settings import NAME_PATTERN, named_tables, split_list
from conf.rules_settings import EdgeRules, ListenerRules

__all__ = ["EdgeSettings", "ListenerSettings"]

KIB = 1024
MIB = 1024 * KIB

LISTENER_BOUNDS = {  # bounds of a listener, which may only be narrower than the edge's
    "packet_bytes_max": "maximum_packet_size",
    "topic_levels_max": "topic_levels_max",
    "keep_alive_max_s": "keep_alive_max_s",
    "filters_max": "filters_per_session_max",
    "publish_rate_max": "publish_rate_max",
}
ADVERTISE_CHARS_MAX = 96  # the maximum in gossip


class ListenerSettings(ListenerLogin, ListenerRules, ListenerLimits, frozen=True, extra="forbid"):
    """One address that MQTT clients connect to: table ``[edge.listeners.<name>]``."""

    name: str = Field(pattern=NAME_PATTERN, max_length=32, description="the table's name; label in metrics and logs")
    bind: str = Field(default="127.0.0.1", description="address; 0.0.0.0 or [::] for all interfaces")
    port: int = Field(ge=0, le=65535, description="TCP port; 0: chosen by the system and printed")
    advertise: str = Field(
        default="",
        description=(
            "host:port that clients use if it differs from the bound one (container, NAT); port 0: the bound one"
        ),
    )
    protocol: Literal["mqtt", "ws"] = Field(
        default="mqtt", description="MQTT over TCP, or over WebSocket (subprotocol mqtt)"
    )
    tls: bool = Field(default=True, description="TLS 1.2 or newer; false is plain TCP")
    certificate: Path | None = Field(default=None, description="PEM chain shown to clients; needed with tls")
    key: Path | None = Field(default=None, description="PEM private key; not readable by every user")
    client_ca: Path | None = Field(
        default=None, description="PEM; a client certificate that is presented is verified against it"
    )
    require_client_certificate: bool = Field(
        default=False, description="refuse clients without a certificate; needs client_ca"
    )
    allow_anonymous: bool = Field(
        default=False, description="accept clients with neither certificate nor accepted credentials"
    )
    proxy_protocol: Literal["none", "v1", "v2", "any"] = Field(
        default="none",
        description=("PROXY header expected before TLS and MQTT; then every connection must send one, including LOCAL"),
    )
    path: str = Field(
        default="/mqtt",
        pattern=r"^(/[^?#]*)?$",
        description="of a WebSocket; another one gets 404; empty: any path",
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description='pages that may open a WebSocket ("https://app.example"); none: those of the scheme, port and host '
        "of the listener itself (loopback, its address, advertise, names in its certificate); behind a "
        "proxy that ends TLS, list its pages",
    )
    packets_per_frame: Literal["one", "many"] = Field(
        default="one",
        description="MQTT packets in a WebSocket frame to a client; many: packets sent together share one, 2 to 4 "
        "bytes less each; paho C and others read the second one late",
    )
    proxy_trusted: tuple[str, ...] = Field(
        default=("127.0.0.0/8", "::1/128"),
        description=("networks whose PROXY headers are trusted, without limits per address; others cannot connect"),
    )
    backlog: int = Field(default=1024, ge=1, le=65535, description="connections the kernel queues before accept")
    tls_session_tickets: int = Field(
        default=0,
        ge=0,
        le=2,
        description=("TLS 1.3 tickets per handshake; each costs a tenth of it, and is valid at this edge process only"),
    )

    @field_validator("advertise")
    @classmethod
    def _reachable(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and (not host or not port.isdecimal() or int(port) > 65535 or len(value) > ADVERTISE_CHARS_MAX):
            raise ValueError(f"needs host:port of at most {ADVERTISE_CHARS_MAX} characters")
        if host in ("0.0.0.0", "[::]", "::"):
            raise ValueError("clients cannot reach a wildcard address: use the host's name")
        return value

    @field_validator("proxy_trusted")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ip_network(network)  # its ValueError has the reason
        return value

    @model_validator(mode="after")
    def _certificates(self) -> "ListenerSettings":
        if self.tls and (self.certificate is None or self.key is None):
            raise ValueError("tls needs certificate and key (or tls = false)")
        if self.require_client_certificate and (not self.tls or self.client_ca is None):
            raise ValueError("require_client_certificate needs tls and client_ca")
        return self


class EdgeSettings(EdgeLogin, EdgeRules, EdgeAbuseLimits, frozen=True, extra="forbid"):
    """Section ``edge``."""

    listeners: tuple[ListenerSettings, ...] = Field(
        default=(), description="where clients connect; none: no client can connect"
    )

    # --- limits of clients
    connect_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="s from accept to an accepted CONNECT, including handshakes and login"
    )
    connect_packet_timeout_s: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="s from the end of TLS, or from accept, to a complete CONNECT, 0: no separate bound",
    )
    keep_alive_max_s: int = Field(
        default=3600,
        ge=1,
        le=65535,
        description=(
            "s; a longer Keep Alive, or none, is lowered to this (MQTT 5 clients get Server Keep Alive); "
            "higher detects dead clients later"
        ),
    )
    receive_maximum: int = Field(
        default=20,
        ge=1,
        le=65535,
        description="in-flight QoS 1/2 messages from a client; higher is memory per client",
    )
    receive_excess_messages_max: int = Field(
        default=1000,
        ge=0,
        le=65535,
        description=("in-flight messages above receive_maximum that an MQTT 5 client may send, as after a reconnect"),
    )
    receive_excess_bytes_max: int = Field(
        default=MIB,
        ge=KIB,
        le=256 * MIB,
        description=(
            "bytes of those that storage or subscribers have not acknowledged; above it the client is not read"
        ),
    )
    receive_excess_wait_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="s that messages above receive_maximum wait only for the client's PUBRELs; then 0x93",
    )
    topic_alias_maximum: int = Field(default=10, ge=0, le=65535, description="topic aliases per client and direction")
    maximum_packet_size: int = Field(
        default=MIB + 64 * KIB,  # a payload of 1 MiB with its topic and properties
        ge=KIB,
        le=PACKET_BYTES_MAX,
        description=(
            "bytes of a packet from a client; larger ones close the connection (0x95); a listener may have fewer"
        ),
    )
    announce_maximum_packet_size: bool = Field(
        default=True,
        description="send it to every MQTT 5 client; false: only to those that send their own limit",
    )
    drain_rate: int = Field(
        default=200,
        ge=1,
        le=100_000,
        description=(
            "clients/s that `stratamq node drain` disconnects; higher empties sooner, and loads other edges more"
        ),
    )
    session_expiry_max_s: int = Field(
        default=7 * 86400,
        ge=0,
        le=0xFFFFFFFF,
        description="s a session may outlive its connection; longer requests are lowered to this",
    )
    topic_levels_max: int = Field(default=32, ge=1, le=1024, description="levels of a topic name or filter")
    topic_bytes_max: int = Field(default=KIB, ge=1, le=65535, description="bytes of a topic name or filter")
    client_id_bytes_max: int = Field(default=256, ge=23, le=65535, description="bytes of a client identifier")
    filters_per_session_max: int = Field(default=1000, ge=1, le=1_000_000, description="subscriptions of one session")
    filters_per_packet_max: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="filters of one SUBSCRIBE that are granted, 0: the session's bound; more get 0x97",
    )
    share_join_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description=("clients per second that join one shared group here, 0: no limit; beyond it a client is not read"),
    )
    user_property_bytes_max: int = Field(
        default=8 * KIB,
        ge=0,
        le=MIB,
        description="bytes of all user properties of one packet or will: more is 0x97; `stratamq up` allows 128 KiB",
    )
    user_properties_max: int = Field(
        default=0,
        ge=0,
        le=MIB,
        description="user properties of one packet or will, 0: as many as their bytes allow; more is 0x97",
    )
    retain_available: bool = Field(default=True, description="accept retained messages; announced to MQTT 5 clients")
    maximum_qos: int = Field(default=2, ge=0, le=2, description="highest QoS of a PUBLISH; announced to MQTT 5 clients")
    retained_per_subscribe_max: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="retained messages per filter; beyond it an event, and a reason in the next SUBACK",
    )
    retained_hold_s: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description=("s that live messages of a new subscription wait for its retained ones; of a stored session: 5 s"),
    )
    retained_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="retained messages per second read for one client, 0: no limit; more of them are delayed",
    )

    response_information: str = Field(
        default="",
        max_length=1024,
        pattern=r"^[^#+\x00]*$",
        description="prefix of response topics, followed by the client identifier; sent on request; none: never",
    )
    overlapping: Literal["copies", "merged"] = Field(
        default="copies",
        description="a message that several subscriptions of a session match: a copy for each Subscription Identifier "
        "and one for those without, or one copy with all identifiers; for later subscriptions",
    )
    shared_subscriptions: Literal["round_robin", "sticky"] = Field(
        default="round_robin",
        description=("member for a message of a shared subscription: round robin, or always the same one for a topic"),
    )
    scram_users_file: Path | None = Field(
        default=None,
        description="users of MQTT 5's method SCRAM-SHA-256, mode 0600, one a line, with scram_secret_file; none: only "
        "users of the cluster",
    )
    scram_secret_file: Path | None = Field(
        default=None,
        description="32 random bytes, the same at every edge, mode 0600: determines an unknown name's salt; needed for "
        "SCRAM, also of users of the cluster if cluster_users is on",
    )

    # --- slow clients
    outbound_window_max: int = Field(
        default=64,
        ge=1,
        le=65535,
        description="in-flight QoS 1/2 messages to a client: the smaller of its Receive Maximum and this",
    )
    output_buffer_bytes_max: int = Field(
        default=MIB, ge=16 * KIB, le=256 * MIB, description="bytes unsent to a client above which it counts as slow"
    )
    output_buffer_bytes_low: int = Field(
        default=256 * KIB, ge=4 * KIB, le=256 * MIB, description="bytes unsent below which it no longer counts as slow"
    )
    lagging_after_ms: int = Field(
        default=100,
        ge=0,
        le=60_000,
        description=("ms that publishers wait for a slow subscriber; then its QoS 0 messages are dropped, counted"),
    )
    pending_messages_max: int = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        description="QoS 1/2 messages queued in memory beyond the window, per ephemeral session",
    )
    pending_bytes_max: int = Field(default=MIB, ge=0, le=1024 * MIB, description="bytes of those")

    # --- floods
    connections_max: int = Field(
        default=100_000, ge=1, le=10_000_000, description="clients of this edge; more get 0x89"
    )
    session_rate: float = Field(
        default=20.0,
        ge=0,
        le=1_000_000,
        description=(
            "new stored sessions per second of one address (IPv6: /64) and of one user, 0: no limit; then 0x97"
        ),
    )
    session_burst: int = Field(
        default=1000, ge=1, le=10_000_000, description="new stored sessions of one address before its rate applies"
    )
    connect_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="accepted CONNECTs per second, 0: no limit; more are queued for at most 5 s, then get 0x89",
    )
    publish_rate_max: float = Field(
        default=0.0,
        ge=0,
        le=1e7,
        description="messages per second read from one client, 0: no limit; the rest stays unread",
    )
    unauthenticated_bytes_max: int = Field(
        default=64 * KIB, ge=KIB, le=MIB, description="bytes read from a connection before its CONNECT was accepted"
    )
    routes_max: int = Field(
        default=65_536, ge=16, le=10_000_000, description="topics in the route cache; more is memory"
    )
    memory_max: int = Field(
        default=0,
        ge=0,
        le=1 << 50,
        description="bytes held for all clients: partial packets, unsent output, queued messages; above 70 % new ones "
        "get 0x89, above 85 % those with most are disconnected (0x97); 0: half of the memory of the cgroup "
        "or the machine",
    )
    read_ahead_bytes_max: int = Field(
        default=64 * MIB,
        ge=0,
        le=16 << 30,
        description="bytes read after waiting packets, of all clients, to answer PINGREQ and prefetch routes; one "
        "client gets at most a quarter of the rest; 0, or if half of memory_max is used: none",
    )
    routes_bytes_max: int = Field(
        default=256 * MIB,
        ge=MIB,
        le=16_384 * MIB,
        description=(
            "bytes of the route cache, including subscribers and shared groups of its topics; the oldest are removed"
        ),
    )
    outbox_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        le=16_384 * MIB,
        description="bytes not yet acknowledged by storage; above it publishers are not read",
    )

    # --- the node itself
    pacing_us_max: int = Field(
        default=400,
        ge=0,
        le=10_000,
        description="us between iterations under load; higher makes larger batches and adds latency; 0: off",
    )
    sys_interval_s: int = Field(default=10, ge=0, le=3600, description="s between $SYS messages; 0: none")
    publisher_properties: tuple[str, ...] = Field(
        default=(),
        max_length=64,
        description="filters; a PUBLISH to a match carries its publisher in the user properties stratamq-client-id and "
        "stratamq-user-name, which clients cannot set",
    )
    events: bool = Field(
        default=False,
        description=(
            "publish $SYS/cluster/events/... (clients, filters, nodes); set it at all edges; costs time per CONNECT"
        ),
    )
    events_rate_max: float = Field(
        default=1000.0, ge=1, le=1e6, description="events per second of this edge; more are dropped (counted)"
    )
    fence_close_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="s without a lease after which clients are closed (0x89) to find another edge",
    )
    ledger: Path | None = Field(
        default=None,
        description=("folder of acknowledgement ledgers, one folder per node, for audits; none: off, costs throughput"),
    )

    @field_validator("publisher_properties", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)

    @field_validator("listeners", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Accept ``[edge.listeners.<name>]`` tables; the name is the key."""
        return named_tables(value)

    @model_validator(mode="after")
    def _consistent(self) -> "EdgeSettings":
        if self.output_buffer_bytes_low >= self.output_buffer_bytes_max:
            raise ValueError("output_buffer_bytes_low must be below output_buffer_bytes_max")
        for listener in self.listeners:
            for name, of_edge in LISTENER_BOUNDS.items():
                value, most = getattr(listener, name), getattr(self, of_edge)
                if 0 < most < value:
                    raise ValueError(
                        f"listeners.{listener.name}.{name} = {value} has no effect above edge.{of_edge} = {most}, "
                        f"which applies to all listeners: raise edge.{of_edge}, or lower this one"
                    )
            inflight = max(self.receive_maximum, self.outbound_window_max)
            if listener.inflight_max > inflight:
                raise ValueError(
                    f"listeners.{listener.name}.inflight_max = {listener.inflight_max} has no effect above "
                    f"edge.receive_maximum and edge.outbound_window_max, the larger of which is {inflight}: raise one "
                    f"of these, or lower this one"
                )
        return self
