"""Settings of the balancer: its listeners, its choice of an edge, and the forwarding of connections.

The defaults are for one host with several edges: connections are handed over to the edge with the fewest clients.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from conf.node_settings import NAME_PATTERN, named_tables

__all__ = ["BalanceListener", "BalanceSettings"]

KIB = 1024


class BalanceListener(BaseModel, frozen=True, extra="forbid"):
    """One address that MQTT clients connect to: table ``[balance.listeners.<name>]``."""

    name: str = Field(
        pattern=NAME_PATTERN,
        max_length=32,
        description="the table's name, and that of the edges' listener for these connections",
    )
    bind: str = Field(default="127.0.0.1", description="address; 0.0.0.0 or [::] for all interfaces")
    port: int = Field(ge=0, le=65535, description="TCP port; 0: chosen by the system and printed")
    backlog: int = Field(default=1024, ge=1, le=65535, description="connections the kernel queues before accept")
    read: Literal["auto", "connect", "nothing"] = Field(
        default="auto",
        description="read CONNECT before an edge is chosen; auto: if policy, prefer or redirect need it; only if it is "
        "unencrypted, and never of a WebSocket",
    )
    opaque: bool = Field(
        default=True,
        description="the edges' listener uses TLS or WebSocket: the balancer cannot read these connections",
    )
    redirect: bool = Field(
        default=False,
        description=("MQTT 5 clients may be redirected to the address of the edge's listener (0x9C, Server Reference)"),
    )
    proxy: bool = Field(
        default=False,
        description=("relayed connections begin with a PROXY header (version 2), which the edges' listener expects"),
    )
    certificate: Path | None = Field(default=None, description="PEM chain: TLS ends here, and connections are relayed")
    key: Path | None = Field(default=None, description="PEM private key of the certificate")
    client_ca: Path | None = Field(
        default=None, description="PEM; verifies certificates of clients, whose common name is sent in the PROXY header"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "BalanceListener":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key: TLS ends at the balancer")
        if self.client_ca is not None and not self.proxy:
            raise ValueError("client_ca needs proxy = true: otherwise the client's name is not forwarded")
        if self.redirect and self.opaque and self.certificate is None:
            raise ValueError("redirect needs a readable CONNECT: opaque = false, or TLS that ends here")
        return self

    @property
    def is_readable(self) -> bool:
        """Whether CONNECT is unencrypted, or TLS ends here."""
        return self.certificate is not None or not self.opaque


class BalanceSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``balance``."""

    listeners: tuple[BalanceListener, ...] = Field(
        default=(), description="where clients connect; none: no client can connect"
    )
    forward: Literal["auto", "hand_over", "redirect", "relay"] = Field(
        default="auto",
        description="forwarding to the edge; auto: handed over to one on this host, else redirected if that is "
        "allowed, else relayed",
    )
    policy: Literal["least_connections", "round_robin", "sticky"] = Field(
        default="least_connections",
        description=(
            "choice of the edge; sticky: the same one for a client ID, or for an address if the client ID is "
            "not readable"
        ),
    )
    prefer: Literal["none", "zone"] = Field(
        default="none",
        description="zone: edges in the zone of the client's partition, or of the balancer if the client ID is not "
        "readable; others only if none is left there",
    )
    choose_s: float = Field(
        default=3.0, gt=0, le=60, description="s that a client waits at most for an edge; then it is closed"
    )
    connect_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="s for the first bytes, if they are read; the edge's own timeout continues from there",
    )
    first_bytes_max: int = Field(default=64 * KIB, ge=KIB, le=1024 * KIB, description="bytes of a CONNECT that is read")
    slow_start_s: float = Field(
        default=10.0, ge=0, le=600, description="s in which a new edge gets at most twice its share; 0: no limit"
    )
    connections_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="clients that wait for an edge or are relayed; more are closed",
    )
    drain_s: float = Field(default=600.0, ge=0, le=86_400, description="s for relayed connections to end after SIGTERM")

    @field_validator("listeners", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Accept ``[balance.listeners.<name>]`` tables; the name is the key."""
        return named_tables(value)

    @model_validator(mode="after")
    def _check_forwarding(self) -> "BalanceSettings":
        for listener in self.listeners:
            if self.forward == "redirect" and not listener.redirect:
                raise ValueError(f"forward = redirect needs redirect = true of listener {listener.name}")
            if self.forward == "hand_over" and listener.certificate is not None:
                raise ValueError(f"listener {listener.name}: TLS ends here, so its connections cannot be handed over")
        return self
