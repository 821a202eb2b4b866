"""Settings of ``stratamq gateway udp``: section ``udp``.

Precedence and error lines are in ``conf/sources.py``; conf/udp.toml lists every setting.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from conf.node_settings import NAME_PATTERN, HostName, split_list

__all__ = ["UDP_DEFAULTS", "UdpSettings"]

UDP_DEFAULTS: Mapping[str, Mapping[str, object]] = {"gateway": {"id": "udp-0", "data_dir": "data/udp-0"}}


class UdpSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``udp``: one node of the tree that serves devices over UDP."""

    bind: str = Field(default="127.0.0.1", description="address of the socket")
    port: int = Field(default=10510, ge=0, le=65535, description="UDP port; 0: chosen by the system and printed")
    advertise: str = Field(
        default="",
        pattern=r"^(|(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5})$",
        description="ip:port for devices and other nodes; empty: bind and port",
    )
    security: Literal["sealed", "dtls", "plain"] = Field(
        default="sealed",
        description=(
            "sealed: a key per device, every datagram encrypted; dtls: certificates; plain: no authentication"
        ),
    )
    allow_plain: bool = Field(
        default=False, description="true: permits security = plain on addresses that other hosts can reach"
    )
    keys_file: Path | None = Field(
        default=None,
        description=(
            "file of `name key` lines, 64 hexadecimal digits a key, mode 0600: the accepted devices and nodes"
        ),
    )
    name: str = Field(
        default="",
        pattern=rf"^$|{NAME_PATTERN}",
        max_length=64,
        description="name of this node at its parent, with sealed security; with dtls it is in the certificate",
    )
    key_file: Path | None = Field(default=None, description="file with this node's own key, mode 0600")
    dtls_certificate: Path | None = Field(
        default=None, description="PEM chain of this node, which names its IP address; with dtls"
    )
    dtls_key: Path | None = Field(default=None, description="its private key, mode 0600")
    dtls_authority: Path | None = Field(default=None, description="PEM that signs devices and nodes")
    subtree: str = Field(default="", max_length=512, description="topics that it requests from its parent; root: empty")
    parent: str = Field(
        default="",
        pattern=r"^(|(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5})$",
        description="ip:port of the node above; empty: this is the root",
    )
    children: dict[str, tuple[str, ...]] = Field(
        default={},
        description="subtrees that each node may take over, by its name; by the name '-' with plain security",
    )
    roles_file: Path | None = Field(
        default=None,
        description="roles of devices; the user is the name of key or certificate; required",
    )
    device_roles: tuple[str, ...] = Field(default=("device",), description="roles that each device has")
    cluster: tuple[str, ...] = Field(
        default=(),
        description="mqtts:// or mqtt://host:port of edges; then devices and MQTT clients share topics; empty: alone",
    )
    server_references: tuple[HostName, ...] = Field(
        default=("*",),
        description="host, host:port or * to which an edge may redirect the node (Server Reference), as a drained one "
        "does; never from a public address to a private one",
    )
    client_id: str = Field(default="", max_length=256, description="at the cluster; empty: gateway.id")
    authority: Path | None = Field(default=None, description="PEM that signs the edges; none: the system's")
    certificate: Path | None = Field(default=None, description="PEM chain of this gateway, for mutual TLS")
    key: Path | None = Field(default=None, description="its private key, mode 0600")
    restart_wait_s: float = Field(
        default=25.0,
        ge=0.0,
        le=600.0,
        description=(
            "s; a restarted root answers *busy* so long, while its subscribers send their subscriptions again"
        ),
    )
    subscriptions_max: int = Field(default=100_000, ge=1, le=10_000_000, description="subscriptions at this node")
    subscriptions_per_address_max: int = Field(default=64, ge=1, le=100_000, description="of one address")
    publishers_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="publishers whose last 1 024 numbers are stored"
    )
    sessions_max: int = Field(
        default=100_000, ge=1, le=10_000_000, description="sessions of devices; the oldest end first"
    )
    joins_per_second_max: int = Field(default=50, ge=1, le=10_000, description="new children that are prepared")

    @field_validator("device_roles", "cluster", "server_references", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)

    @model_validator(mode="after")
    def _belong_together(self) -> "UdpSettings":
        if bool(self.parent) != bool(self.subtree):
            raise ValueError("parent and subtree belong together: a root has neither")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key belong together")
        if self.security == "dtls" and not (self.dtls_certificate and self.dtls_key and self.dtls_authority):
            raise ValueError("dtls needs dtls_certificate, dtls_key and dtls_authority")
        if self.security == "sealed":
            if self.keys_file is None:
                raise ValueError("keys_file is missing: with sealed security it lists the accepted devices and nodes")
            if self.parent and not (self.name and self.key_file):
                raise ValueError("a node with a parent needs name and key_file")
        return self
