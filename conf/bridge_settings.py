"""Settings of bridges: table ``[bridge.<name>]``, whose keys depend on its ``kind``.

One frozen model per kind, based on ``BridgeSettings``. ``gateways/bridges/plan.py`` validates filters, templates and
addresses before a bridge starts.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from conf.node_settings import NAME_PATTERN, HostName, split_list
from conf.url_settings import HttpUrl

__all__ = [
    "BRIDGE_KINDS",
    "BridgeSettings",
    "FilesSink",
    "GatewaySettings",
    "KafkaSink",
    "KafkaSource",
    "MapBridge",
    "MapSettings",
    "MqttBridge",
    "MqttEndpointSettings",
    "RedisEndpoint",
    "RedisSink",
    "RedisSource",
    "SinkBridge",
    "Webhook",
    "kind_of",
]

MIB = 1024 * 1024
TIB = 1 << 40
YEAR_S = 31_536_000.0


class GatewaySettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``gateway``: this process, which may run many bridges."""

    id: str = Field(
        default="bridge-0",
        pattern=NAME_PATTERN,
        max_length=64,
        description="name of this process in logs and metrics; standby processes need different names",
    )
    data_dir: Path = Field(
        default=Path("data/bridge-0"),
        description="folder of spools, dead letters and the status socket; one process per folder",
    )


class MqttEndpointSettings(BaseModel, frozen=True, extra="forbid"):
    """Connection to one broker; for the remote side in table ``[bridge.<name>.remote]``."""

    addresses: tuple[str, ...] = Field(
        min_length=1, description="mqtt://, mqtts://, ws:// or wss://host:port, tried in turn"
    )
    client_id: str = Field(default="", description="at this broker; empty: the bridge's")
    username: str = Field(default="", description="user name; empty: none")
    password_file: Path | None = Field(default=None, description="file with the password, mode 0600")
    authority: Path | None = Field(default=None, description="PEM that signs the broker; none: the system's")
    certificate: Path | None = Field(default=None, description="PEM chain of the bridge, for mutual TLS")
    key: Path | None = Field(default=None, description="its private key, mode 0600")
    protocol: Literal["5", "3.1.1"] = Field(
        default="5", description="3.1.1 is tried as a bridge first (level 0x84), which has No Local"
    )
    clean_start: bool = Field(
        default=False, description="true: a new session for each connection; messages in between are lost"
    )
    session_expiry_s: int = Field(
        default=7 * 86_400,
        ge=0,
        le=0xFFFFFFFF,
        description="s; how long the broker stores messages for a disconnected bridge",
    )
    keep_alive_s: int = Field(
        default=30, ge=5, le=3600, description="s; the broker may be silent for half as long again"
    )
    server_references: tuple[HostName, ...] = Field(
        default=(),
        description="host, host:port or * to which the broker may redirect the bridge (Server Reference), with its "
        "password; never from a public address to a private one; none: addresses only",
    )

    @field_validator("addresses", "server_references", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)


class BridgeSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of every kind."""

    cluster: tuple[str, ...] = Field(
        min_length=1, description="addresses of the cluster's edges: mqtts://host:port, tried in turn"
    )
    client_id: str = Field(min_length=1, description="of the bridge at the cluster; no two bridges have the same")
    username: str = Field(default="", description="user name at the cluster; empty: none")
    password_file: Path | None = Field(default=None, description="file with the password, mode 0600")
    authority: Path | None = Field(default=None, description="PEM that signs the edges; none: the system's")
    certificate: Path | None = Field(default=None, description="PEM chain of the bridge, for mutual TLS")
    key: Path | None = Field(default=None, description="its private key, mode 0600")
    protocol: Literal["5", "3.1.1"] = Field(default="5", description="MQTT version at the cluster")
    clean_start: bool = Field(
        default=False, description="true: a new session for each connection; messages in between are lost"
    )
    session_expiry_s: int = Field(
        default=7 * 86_400,
        ge=0,
        le=0xFFFFFFFF,
        description="s; how long the cluster stores messages for a disconnected bridge",
    )
    keep_alive_s: int = Field(default=30, ge=5, le=3600, description="s; the edge may be silent for half as long again")
    server_references: tuple[HostName, ...] = Field(
        default=("*",),
        description="host, host:port or * to which an edge may redirect the bridge (Server Reference), as a drained "
        "one does; never from a public address to a private one",
    )
    window_messages: int = Field(
        default=1024, ge=1, le=65_535, description="messages in progress; more hides longer round trips"
    )
    window_bytes: int = Field(
        default=64 * MIB, ge=1024, le=4096 * MIB, description="bytes of such messages; above it a source waits"
    )
    packet_bytes_max: int = Field(
        default=8 * MIB, ge=1024, le=268_435_460, description="largest MQTT packet that the bridge accepts"
    )
    give_up_s: float = Field(
        default=0.0,
        ge=0.0,
        le=YEAR_S,
        description="s; a message that fails for so long is written as a dead letter; 0: never",
    )
    dead_letter: str = Field(
        default="",
        pattern=r"^(|topic:.+|file:.+)$",
        description="target of rejected messages: topic:NAME at the cluster, or file:PATH; empty: "
        "topic:bridge/<name>/rejected",
    )
    dead_letter_bytes_max: int = Field(
        default=1024 * MIB,
        ge=1024,
        le=TIB,
        description="bytes of a file; above it messages stay open until the file is moved away",
    )

    group: str = Field(
        default="",
        max_length=64,
        pattern=r"^[^+#/]*$",
        description="processes with the same group and client_id are standbys for each other; empty: no standby",
    )
    presence: str = Field(
        default="",
        pattern=r"^[^+#]*$",
        description=("retained topic of the group; empty: $gateway/presence/<group>, with gateway certificates only"),
    )

    @field_validator("cluster", "server_references", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)


class MqttBridge(BridgeSettings, frozen=True, extra="forbid"):
    """``kind = "mqtt"``: the cluster and another broker, like bridges of Mosquitto."""

    kind: Literal["mqtt"]
    remote: MqttEndpointSettings = Field(description="the other broker: table [bridge.<name>.remote]")
    topics: tuple[str, ...] = Field(
        min_length=1,
        description='lines "filter direction qos local-prefix remote-prefix"; direction out, in or both; "" is empty',
    )
    retain: Literal["as_published", "never"] = Field(
        default="as_published", description="never: no message is retained on the other side"
    )
    exactly_once: bool = Field(
        default=False,
        description="deliver QoS 2 messages exactly once even if processes are killed: both brokers store their "
        "sessions, and the bridge has a spool in gateway.data_dir; only for lines of QoS 2",
    )
    notifications: bool = Field(
        default=True, description="publish 1 or 0, retained, on $SYS/broker/connection/<client_id>/state of both sides"
    )
    start: Literal["automatic", "once", "lazy"] = Field(
        default="automatic",
        description=(
            "once: stop after the first connection; lazy: connect when messages are queued, only for lines out"
        ),
    )
    lazy_messages: int = Field(default=10, ge=1, le=1000, description="queued messages at which a lazy bridge connects")
    lazy_idle_s: float = Field(
        default=60.0, gt=0, le=YEAR_S, description="s without a message before a lazy bridge disconnects"
    )


class MapSettings(BaseModel, frozen=True, extra="forbid"):
    """One rule: table ``[[bridge.<name>.map]]``; a message that matches several rules is sent to each target once."""

    filter: str = Field(min_length=1, description="MQTT topic filter; of other sources the topic or stream")
    topic: str = Field(
        default="",
        description="target: a template with {topic}, {level.N}, {rest}, {property.NAME}, {client_id}, {user_name}, "
        "{qos}",
    )
    key: str = Field(default="", description="template of the key; records of one key keep their order")
    where: str = Field(default="", description='condition in CEL over the JSON payload: "payload.t > 30"')
    transform: str = Field(
        default="", pattern=r"^(|[\w.]+:\w+)$", description="module:function of (topic, payload), returns bytes or None"
    )
    headers: dict[str, str] = Field(default_factory=dict, description="templates by name")
    qos: Literal[0, 1, 2] = Field(default=1, description="of subscriptions, or of what a source publishes")
    retain: bool | None = Field(default=None, description="of published messages; none: as the message has it")
    format: Literal["raw", "json"] = Field(
        default="raw", description="raw: the payload; json: an object with topic, qos, retain, payload and properties"
    )


class MapBridge(BridgeSettings, frozen=True, extra="forbid"):
    """Base of kinds with rules instead of lines."""

    map: tuple[MapSettings, ...] = Field(min_length=1, description="rules: tables [[bridge.<name>.map]]")


class SinkBridge(MapBridge, frozen=True, extra="forbid"):
    """Base of kinds that export messages from the cluster."""

    shares: int = Field(
        default=1,
        ge=1,
        le=16,
        description=("members of a shared group, each with its own connection; order is kept within a member only"),
    )


class KafkaSink(SinkBridge, frozen=True, extra="forbid"):
    """``kind = "kafka-sink"``: records with acks of all replicas, idempotent."""

    kind: Literal["kafka-sink"]
    brokers: tuple[str, ...] = Field(min_length=1, description="host:port of Kafka brokers")
    kafka: dict[str, str] = Field(
        default_factory=dict,
        description='further settings of librdkafka; "file:PATH" reads a value from a file of mode 0600',
    )


class KafkaSource(MapBridge, frozen=True, extra="forbid"):
    """``kind = "kafka-source"``: records of a consumer group are published; a map's filter is the Kafka topic."""

    kind: Literal["kafka-source"]
    brokers: tuple[str, ...] = Field(min_length=1, description="host:port of Kafka brokers")
    consumer_group: str = Field(
        min_length=1, description="of this bridge only: its offsets are those of published records"
    )
    begin: Literal["earliest", "latest"] = Field(default="earliest", description="where a new group starts")
    session_timeout_s: float = Field(
        default=6.0,
        ge=6.0,
        le=1800.0,
        description="s; a killed bridge keeps its partitions so long, unless it restarts with the same gateway.id and "
        "name: they are its name in the group (group.instance.id, static membership). A longer one "
        "tolerates longer suspensions of the process; brokers allow 6 s or more "
        "(group.min.session.timeout.ms)",
    )
    kafka: dict[str, str] = Field(
        default_factory=dict,
        description='further settings of librdkafka; "file:PATH" reads a value from a file of mode 0600',
    )


class Webhook(SinkBridge, frozen=True, extra="forbid"):
    """``kind = "webhook"``: batches by HTTP POST."""

    kind: Literal["webhook"]
    url: HttpUrl = Field(
        description="http:// or https://, or file:PATH (mode 0600) of a file with the URL; redirects are not followed"
    )
    secret_file: Path | None = Field(
        default=None, description="key of X-Signature (HMAC-SHA256 of the body), mode 0600; none: no signature"
    )
    token_file: Path | None = Field(default=None, description="bearer token, mode 0600; none: none")
    http_authority: Path | None = Field(default=None, description="PEM that signs the server; none: the system's")
    batch_messages: int = Field(default=100, ge=1, le=1000, description="of one request; 1: the body is the payload")
    batch_bytes: int = Field(
        default=256 * 1024, ge=1024, le=256 * MIB, description="payloads of one request; one alone may be larger"
    )
    concurrency: int = Field(default=8, ge=1, le=64, description="concurrent requests; a topic has one at a time")
    timeout_s: float = Field(default=10.0, gt=0, le=300, description="s; for the whole response")


class RedisEndpoint(BaseModel, frozen=True, extra="forbid"):
    """Connection to Redis."""

    redis_host: str = Field(default="127.0.0.1", description="of Redis")
    redis_port: int = Field(default=6379, ge=1, le=65535, description="of Redis")
    redis_tls: bool = Field(default=False, description="TLS; the server's certificate names the host")
    redis_authority: Path | None = Field(default=None, description="PEM that signs Redis; none: the system's")
    redis_username: str = Field(default="", description="user name; empty: the default user")
    redis_password_file: Path | None = Field(default=None, description="file with the password, mode 0600")


class RedisSink(SinkBridge, RedisEndpoint, frozen=True, extra="forbid"):
    """``kind = "redis-sink"``: entries of streams; a map's topic is the stream."""

    kind: Literal["redis-sink"]
    maxlen: int = Field(default=0, ge=0, le=1 << 40, description="entries that a stream keeps, about; 0: all")


class RedisSource(MapBridge, RedisEndpoint, frozen=True, extra="forbid"):
    """``kind = "redis-source"``: entries of streams are published; a map's filter is the stream."""

    kind: Literal["redis-source"]
    consumer_group: str = Field(min_length=1, description="of the streams; gateway.id is the consumer's name in it")
    claim_s: float = Field(
        default=60.0, ge=1.0, le=YEAR_S, description="s; entries that another consumer holds so long are taken over"
    )


class FilesSink(SinkBridge, frozen=True, extra="forbid"):
    """``kind = "files"``: Parquet files, for Spark, DuckDB and others."""

    kind: Literal["files"]
    folder: Path = Field(description="created if missing, mode 0700")
    rotate_s: float = Field(
        default=60.0, gt=0, le=YEAR_S, description="s; an open file is converted to Parquet after so long"
    )
    rotate_bytes: int = Field(default=64 * MIB, ge=1024, le=TIB, description="or when it has so many bytes")


BRIDGE_KINDS: dict[str, type[BridgeSettings]] = {
    "mqtt": MqttBridge,
    "kafka-sink": KafkaSink,
    "kafka-source": KafkaSource,
    "webhook": Webhook,
    "redis-sink": RedisSink,
    "redis-source": RedisSource,
    "files": FilesSink,
}


def kind_of(table: Any) -> str:
    """Return the kind in a table, "" if it has none."""
    kind = table.get("kind", "") if isinstance(table, dict) else ""
    return kind if isinstance(kind, str) else ""
