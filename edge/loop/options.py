"""Options of the edge core for the loop, a connection and a session; plain values, read once.

It only sets defaults. A comment at each field names the limit. Source: MQTT 5.0 sections 3.1.2.11, 3.2.2.3;
docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import ssl
from dataclasses import dataclass
from typing import Protocol

import msgspec

from conf.edge_settings import EdgeSettings
from wire.messages.wills import WILL_WINDOW

__all__ = ["ConnOptions", "FirstBytes", "HotLimits", "SessionOptions", "StreamFilter"]

DEFAULT = EdgeSettings()  # one default per setting, and its description: conf/edge_settings.py


class FirstBytes(Protocol):
    """Parser of bytes that precede TLS on a socket: a PROXY header."""

    MORE, DONE, ENDED, WAITS = 0, 1, 2, 3

    def read(self, fd: int) -> int:
        """Read from a readable descriptor, and no byte beyond the header.

        Returns:
            MORE: call again; DONE: the client's bytes follow; ENDED: close the connection; WAITS: call again after
            ``Loop.read_on``, or when the peer has closed.
        """


class StreamFilter(Protocol):
    """A byte protocol between TLS and MQTT: WebSocket. Sans-IO.

    Attributes:
        ended: The connection must close after the received packets.
    """

    ended: bool

    def receive(self, data: bytes) -> bytes:
        """Return the MQTT bytes that the peer's bytes completed."""

    def wrap(self, data: bytes) -> bytes:
        """Return the bytes that carry MQTT bytes to the peer."""

    def take_output(self) -> bytes:
        """Return the filter's own bytes (handshake, pong, close)."""


@dataclass(frozen=True, slots=True)
class HotLimits:
    """Limits of one loop; none is per message, all are in bytes, counts or nanoseconds."""

    output_high_bytes: int = DEFAULT.output_buffer_bytes_max
    output_low_bytes: int = DEFAULT.output_buffer_bytes_low  # below: waiters are released, lagging ends
    lag_after_ns: int = DEFAULT.lagging_after_ms * 1_000_000  # maximum wait of publishers for one slow subscriber
    iteration_bytes_max: int = 4 * 1024 * 1024  # appended per iteration before it ends and output is flushed
    iteration_ns_max: int = 2_000_000
    routes_max: int = DEFAULT.routes_max  # cached topics; the oldest is evicted first
    permissions_max: int = 1_024  # topics of one connection with their own decisions; all deleted when full
    pending_messages_max: int = DEFAULT.pending_messages_max  # per ephemeral session, QoS 1/2 beyond its window
    pending_bytes_max: int = DEFAULT.pending_bytes_max
    outbound_window_max: int = DEFAULT.outbound_window_max  # min(client's Receive Maximum, this)
    received_max: int = 1_024  # QoS 2 identifiers of one v3 client before PUBREL (v5: the next one limits them)
    receive_excess_messages_max: int = DEFAULT.receive_excess_messages_max  # v5, above Receive Maximum
    receive_excess_bytes_max: int = DEFAULT.receive_excess_bytes_max  # of unacknowledged ones
    receive_excess_wait_ns: int = int(DEFAULT.receive_excess_wait_s * 1e9)  # for the client's own PUBRELs: then 0x93
    partitions: int = 256  # initially; ``set_partitions`` sets the map's number. A Route with a higher one raises
    outbox_bytes_max: int = DEFAULT.outbox_bytes_max
    peer_low_bytes: int = 2 * 1024 * 1024  # free bytes of a link to an edge below which publishers wait
    will_window: int = WILL_WINDOW  # window of will numbers for repeats; nodes of one cluster must agree
    will_partitions_max: int = 65_536  # with a window of wills
    session_origins_max: int = 100_000  # durable publishers of QoS 2 with a window of messages
    picked_origins_max: int = 16_384  # publishers and groups with a window of messages picked here
    accepts_per_iteration: int = 64
    handshakes_per_iteration: int = 4
    publish_rate_max: float = DEFAULT.publish_rate_max
    packet_timeout_ns: int = int(DEFAULT.packet_timeout_s * 1e9)  # from a packet's first byte to its last; 0: none
    user_property_bytes_max: int = DEFAULT.user_property_bytes_max  # of one PUBLISH; more is 0x97
    user_properties_max: int = DEFAULT.user_properties_max  # of one PUBLISH; more is 0x97; 0: limited by the bytes
    read_ahead_bytes_max: int = DEFAULT.read_ahead_bytes_max  # of all parked clients
    packet_rate_min: int = DEFAULT.packet_rate_min  # bytes per second of an incomplete packet
    pacing_ns: int = DEFAULT.pacing_us_max * 1_000  # maximum gap between iterations; 0: off


class ConnOptions(msgspec.Struct):  # one per connection; creating a dataclass takes several times as long
    """Read options of one socket before and during a session."""

    packet_bytes_max: int = DEFAULT.unauthenticated_bytes_max  # before CONNECT was accepted
    connect_timeout_ns: int = 10_000_000_000  # without open_session after this, sweep reports it; 0: never
    first_packet_ns: int = 0  # from the end of the TLS handshake, or from here, to the first packet; 0: no other limit
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None  # client side of TLS (links that we opened)
    filter: StreamFilter | None = None
    first_bytes: FirstBytes | None = None
    context: object = None  # the core's own record, LoopConnection.context


class SessionOptions(msgspec.Struct):  # created per connection
    """Limits of a session negotiated by CONNECT and CONNACK. Intervals in nanoseconds, 0 for none."""

    version: int  # 3 (MQTT 3.1), 4 (3.1.1) or 5
    receive_maximum: int = 65_535  # the client's: limits QoS 1/2 to it [MQTT-3.3.4-9]
    maximum_packet_size: int = 0  # the client's, 0 for none: larger is dropped and counted [MQTT-3.1.2-24]
    topic_alias_maximum: int = 0  # aliases that we may use to it [MQTT-3.1.2-26] [MQTT-3.1.2-27]
    keep_alive_ns: int = 0  # effective (Server Keep Alive applied), not yet times 1.5
    announced_receive_maximum: int = DEFAULT.receive_maximum  # above it: edge/loop/excess.py
    announced_maximum_packet_size: int = DEFAULT.maximum_packet_size  # ours: above it is error 0x95
    announced_topic_alias_maximum: int = DEFAULT.topic_alias_maximum  # above it, or 0: error 0x94 [MQTT-3.3.2-9]
    fresh: bool = False  # Clean Start: the client has no messages to resend
    session: int = 0  # durable session number; 0: ephemeral
    resumed: bool = False  # the session has state of earlier connections
    owner_epoch: int = 0
    retain_available: bool = DEFAULT.retain_available
    maximum_qos: int = DEFAULT.maximum_qos
    publish_rate_max: float = 0.0  # messages per second, 0: that of the loop
    byte_rate_max: float = 0.0  # bytes per second, of all packets; 0: no limit
    metered: bool = False  # ``Handler.sent`` counts its bytes
    tells_origins: bool = False  # to a v5 client, in PUBACK and PUBREC: edge/loop/reported_origins.py
