"""Settings of ``stratamq federate``: section ``federate``.

Precedence and error lines are in ``conf/sources.py``; conf/federate.toml lists every setting.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from conf.node_settings import NAME_PATTERN, HostName, split_list
from conf.url_settings import HttpUrl

__all__ = ["FEDERATE_DEFAULTS", "FederateSettings", "PolicySettings"]

FEDERATE_DEFAULTS: Mapping[str, Mapping[str, object]] = {"gateway": {"id": "agent-0", "data_dir": "data/agent-0"}}
MIB = 1024 * 1024
ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[^:/\s]+):[0-9]{1,5}$"


class PolicySettings(BaseModel, frozen=True, extra="forbid", populate_by_name=True):
    """Table ``[federate.policies.<agent>]``: permitted traffic between this agent and one neighbour."""

    imports: tuple[str, ...] = Field(
        default=("#",), alias="import", description="filters; other topics are not accepted from this neighbour"
    )
    exports: tuple[str, ...] = Field(
        default=("#",), alias="export", description="filters; other topics are not sent to this neighbour"
    )
    messages_per_s: float = Field(
        default=10_000.0, gt=0, le=1e9, description="maximum in each direction; above it the link is not read"
    )
    bytes_per_s: float = Field(default=64.0 * MIB, ge=1024, le=1e12, description="the same in bytes")
    interests_max: int = Field(default=10_000, ge=1, le=1_000_000, description="filters that are learned from it")

    @field_validator("imports", "exports", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)


class FederateSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``federate``: one agent, next to one broker."""

    federation: str = Field(
        pattern=NAME_PATTERN, max_length=64, description="name of the federation, as in certificates"
    )
    agent: str = Field(pattern=NAME_PATTERN, max_length=64, description="name of this agent, as in its certificate")
    bind: str = Field(default="0.0.0.0", description="address for connections of neighbours")
    port: int = Field(default=10500, ge=0, le=65535, description="TCP port; 0: chosen by the system and printed")
    advertise: tuple[str, ...] = Field(default=(), max_length=16, description="host:port for other agents; empty: none")
    neighbours: tuple[str, ...] = Field(
        default=(), description="host:port of agents to connect to; one side of each pair is enough"
    )
    accept: tuple[str, ...] = Field(
        default=(), description="names of accepted agents; empty: all with a certificate of the federation"
    )
    authority: Path = Field(description="PEM that signs the agents of this federation")
    certificate: Path = Field(description="PEM chain of this agent: stratamq://<federation>/federate/<agent>")
    key: Path = Field(description="its private key, mode 0600")
    policies: dict[str, PolicySettings] = Field(default={}, description="tables by neighbour, see below")

    host: tuple[str, ...] = Field(min_length=1, description="the broker: mqtt://, mqtts://, ws:// or wss://host:port")
    host_kind: Literal["mosquitto", "stratamq", "static"] = Field(
        default="mosquitto", description="how the agent learns the subscriptions of the broker's clients"
    )
    protocol: Literal["5", "3.1.1"] = Field(default="5", description="MQTT version at the broker")
    no_local: bool = Field(
        default=True,
        description=("false: the broker sends an agent its own messages despite No Local; echoes are then counted"),
    )
    client_id: str = Field(default="", max_length=256, description="at the broker; empty: stratamq-federate-<agent>")
    username: str = Field(default="", description="user name at the broker; empty: none")
    password_file: Path | None = Field(default=None, description="file with the password, mode 0600")
    host_authority: Path | None = Field(default=None, description="PEM that signs the broker; none: the system's")
    host_certificate: Path | None = Field(default=None, description="PEM chain for mutual TLS with the broker")
    host_key: Path | None = Field(default=None, description="its private key, mode 0600")
    server_references: tuple[HostName, ...] = Field(
        default=(),
        description="host, host:port or * to which the broker may redirect the agent (Server Reference), with its "
        "password; never from a public address to a private one; none: host only",
    )
    filters: tuple[str, ...] = Field(default=(), description="filters that are always subscribed here")
    api: HttpUrl = Field(
        default=HttpUrl(),
        description=(
            "of a StrataMQ cluster: https://host:port of its HTTP service, whose list of subscriptions is read"
        ),
    )
    api_token_file: Path | None = Field(default=None, description="file with a token of role viewer, mode 0600")
    api_authority: Path | None = Field(default=None, description="PEM that signs the service; none: the system's")
    list_s: float = Field(default=60.0, ge=1, le=86_400, description="s between two reads of the subscriptions")
    interest_s: float = Field(
        default=604_800.0,
        ge=60,
        le=31_536_000.0,
        description="s; how long a disconnected client with a stored session counts",
    )
    interests_max: int = Field(default=10_000, ge=1, le=1_000_000, description="filters of the broker's clients")

    redundancy: int = Field(default=2, ge=1, le=8, description="equally near parents that a mesh keeps")
    hello_s: float = Field(default=1.0, ge=0.05, le=60, description="s between hellos; 5 in the paper")
    announce_s: float = Field(default=5.0, ge=0.2, le=600, description="s between floods; 20 in the paper")
    missed: int = Field(default=3, ge=2, le=20, description="intervals of silence after which an agent is removed")
    hold_s: float = Field(
        default=86_400.0, ge=1, le=1e9, description="s; how long a message is stored for an unreachable agent"
    )
    dedup_s: float = Field(default=3_600.0, ge=1, le=1e9, description="s; how long message ids are stored")
    dedup_ids_max: int = Field(default=1_000_000, ge=1_000, le=100_000_000, description="stored message ids")
    spool_bytes_max: int = Field(
        default=1024 * MIB,
        ge=MIB,
        le=1 << 40,
        description="bytes of stored messages; above it the broker is not acknowledged",
    )
    host_window: int = Field(default=1_024, ge=1, le=65_535, description="in-flight messages to the broker")
    receive_maximum: int = Field(
        default=1_024,
        ge=1,
        le=65_535,
        description="in-flight messages from the broker; with packet_bytes_max it bounds their memory",
    )
    packet_bytes_max: int = Field(
        default=4 * MIB, ge=1_024, le=8 * MIB - 65_536, description="largest packet accepted from the broker"
    )

    @field_validator("advertise", "neighbours", "accept", "host", "server_references", "filters", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)

    @field_validator("neighbours", "advertise")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        import re

        for each in value:
            if not re.match(ADDRESS, each):
                raise ValueError(f"{each!r}: write host:port")
        return value

    @model_validator(mode="after")
    def _belong_together(self) -> "FederateSettings":
        if bool(self.host_certificate) != bool(self.host_key):
            raise ValueError("host_certificate and host_key belong together")
        if self.password_file is not None and not self.username:
            raise ValueError("password_file needs username")
        if self.api and (self.host_kind != "stratamq" or self.api_token_file is None):
            raise ValueError("api is for host_kind = stratamq, and needs api_token_file")
        if self.host_kind == "static" and not self.filters:
            raise ValueError("host_kind = static needs filters: no other source of subscriptions exists")
        return self
