"""Settings of ``stratamq federate``: room ``federate``.

Precedence and error lines are ``conf/sources.py``; the file with every setting is conf/federate.toml.
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
    """Table ``[federate.policies.<agent>]``: what may pass between this agent and one neighbour."""

    imports: tuple[str, ...] = Field(
        default=("#",), alias="import", description="filters; other topics are not taken from this neighbour"
    )
    exports: tuple[str, ...] = Field(
        default=("#",), alias="export", description="filters; other topics do not go to this neighbour"
    )
    messages_per_s: float = Field(
        default=10_000.0, gt=0, le=1e9, description="ceiling, each way; above it the link is not read"
    )
    bytes_per_s: float = Field(default=64.0 * MIB, ge=1024, le=1e12, description="the same in bytes")
    interests_max: int = Field(default=10_000, ge=1, le=1_000_000, description="filters that are learned from it")

    @field_validator("imports", "exports", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)


class FederateSettings(BaseModel, frozen=True, extra="forbid"):
    """Room ``federate``: one agent, beside one broker."""

    federation: str = Field(
        pattern=NAME_PATTERN, max_length=64, description="name of the federation, as in certificates"
    )
    agent: str = Field(pattern=NAME_PATTERN, max_length=64, description="name of this agent, as in its certificate")
    bind: str = Field(default="0.0.0.0", description="address where neighbours come in")
    port: int = Field(default=10500, ge=0, le=65535, description="TCP port; 0: chosen by the system and printed")
    advertise: tuple[str, ...] = Field(
        default=(), max_length=16, description="host:port that people may be told; empty: none"
    )
    neighbours: tuple[str, ...] = Field(
        default=(), description="host:port of agents to keep a link with; one side of each pair is enough"
    )
    accept: tuple[str, ...] = Field(
        default=(), description="names of agents that may come in; empty: each with a certificate of the federation"
    )
    authority: Path = Field(description="PEM that signs the agents of this federation")
    certificate: Path = Field(description="PEM chain of this agent: stratamq://<federation>/federate/<agent>")
    key: Path = Field(description="its private key, mode 0600")
    policies: dict[str, PolicySettings] = Field(default={}, description="tables by neighbour, see below")

    host: tuple[str, ...] = Field(min_length=1, description="the broker: mqtt://, mqtts://, ws:// or wss://host:port")
    host_kind: Literal["mosquitto", "stratamq", "static"] = Field(
        default="mosquitto", description="how the agent learns what clients of the broker want"
    )
    protocol: Literal["5", "3.1.1"] = Field(default="5", description="MQTT version at the broker")
    no_local: bool = Field(
        default=True,
        description="false: the broker sends an agent its own messages although asked not to; echoes are counted then",
    )
    client_id: str = Field(default="", max_length=256, description="at the broker; empty: stratamq-federate-<agent>")
    username: str = Field(default="", description="user name at the broker; empty: none")
    password_file: Path | None = Field(default=None, description="file with the password, mode 0600")
    host_authority: Path | None = Field(default=None, description="PEM that signs the broker; none: the system's")
    host_certificate: Path | None = Field(default=None, description="PEM chain for mutual TLS with the broker")
    host_key: Path | None = Field(default=None, description="its private key, mode 0600")
    server_references: tuple[HostName, ...] = Field(
        default=(),
        description="host, host:port or * that the broker may send the agent to (Server Reference), with its password; "
        "never from a public address to one that is not; none: host alone",
    )
    filters: tuple[str, ...] = Field(default=(), description="filters that somebody here always wants")
    api: HttpUrl = Field(
        default=HttpUrl(),
        description="of a cluster of ours: https://host:port of its service, whose list of subscriptions is read",
    )
    api_token_file: Path | None = Field(default=None, description="file with a token of role viewer, mode 0600")
    api_authority: Path | None = Field(default=None, description="PEM that signs the service; none: the system's")
    list_s: float = Field(default=60.0, ge=1, le=86_400, description="s between two lists of subscriptions")
    interest_s: float = Field(
        default=604_800.0,
        ge=60,
        le=31_536_000.0,
        description="s; how long a client with a kept session counts after it left",
    )
    interests_max: int = Field(default=10_000, ge=1, le=1_000_000, description="filters of the broker's clients")

    redundancy: int = Field(default=2, ge=1, le=8, description="equally near parents that a mesh keeps")
    hello_s: float = Field(default=1.0, ge=0.05, le=60, description="s between hellos; the paper's 5")
    announce_s: float = Field(default=5.0, ge=0.2, le=600, description="s between floods; the paper's 20")
    missed: int = Field(default=3, ge=2, le=20, description="intervals of silence after which somebody is gone")
    hold_s: float = Field(default=86_400.0, ge=1, le=1e9, description="s; how long a message is kept for who is away")
    dedup_s: float = Field(default=3_600.0, ge=1, le=1e9, description="s; how long ids are remembered")
    dedup_ids_max: int = Field(default=1_000_000, ge=1_000, le=100_000_000, description="ids that are remembered")
    spool_bytes_max: int = Field(
        default=1024 * MIB, ge=MIB, le=1 << 40, description="messages kept; above it the broker is not acknowledged"
    )
    host_window: int = Field(default=1_024, ge=1, le=65_535, description="messages handed to the broker at once")
    receive_maximum: int = Field(
        default=1_024,
        ge=1,
        le=65_535,
        description="messages of the broker taken at once; with packet_bytes_max it bounds their memory",
    )
    packet_bytes_max: int = Field(
        default=4 * MIB, ge=1_024, le=8 * MIB - 65_536, description="largest packet taken from the broker"
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
            raise ValueError("host_kind = static needs filters: nobody tells what is wanted here")
        return self
