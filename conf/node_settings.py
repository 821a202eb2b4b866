"""Settings of every tier: identity of the node, its links, its metrics page, its log.

One frozen model per section; each field states its unit and the effect of raising it. ``conf/sources.py`` reads values;
the table in docs/settings.md is generated from here.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator

from conf.audit_settings import NodeAudit
from conf.crl_settings import NodeRevocation
from conf.scheduling_settings import NodeScheduling
from conf.served_hosts import HostText

__all__ = ["HostName", "LogSettings", "MetricsSettings", "NodeSettings", "named_tables", "split_list"]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
REFERENCE_FORM = re.compile(r"\*|[^\s/@*]+")
REFERENCE_CHARS_MAX = 300


def _validate_reference(text: str) -> str:
    if len(text) > REFERENCE_CHARS_MAX or not REFERENCE_FORM.fullmatch(text):
        raise ValueError(
            "must be a host or host:port without scheme and user, such as broker.example:8883, or *, "
            f"of at most {REFERENCE_CHARS_MAX} characters"
        )
    return text


HostName = Annotated[str, AfterValidator(_validate_reference)]  # with or without a port; * is any


def split_list(value: object) -> object:
    """Accept lists as ``a,b`` from the environment and flags."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def named_tables(value: object) -> object:
    """Convert ``[section.key.<name>]`` tables to a list, each with its name; a list is unchanged.

    Raises:
        ValueError: Two have one name: one would be lost silently.
    """
    if isinstance(value, Mapping):
        value = [{"name": name, **table} if isinstance(table, Mapping) else table for name, table in value.items()]
    if isinstance(value, list | tuple):
        names = [str(table["name"]) for table in value if isinstance(table, Mapping) and "name" in table]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            raise ValueError(f"two have the name {doubled!r}")
    return value


class NodeSettings(NodeAudit, NodeRevocation, NodeScheduling, frozen=True, extra="forbid"):
    """Section ``node``: identity, links to other nodes, data folder."""

    cluster: str = Field(
        default="stratamq",
        pattern=NAME_PATTERN,
        max_length=64,
        description="name of the cluster; nodes, stores and certificates of another name are refused",
    )
    id: str = Field(
        pattern=NAME_PATTERN,
        max_length=64,
        description="unique in the cluster and the same after every restart; default: tier and host name",
    )
    data_dir: Path = Field(description="folder of all data of this node; one node per folder; default: data/<tier>")
    seeds: tuple[str, ...] = Field(
        default=(),
        description=("host:port of routers, queried for the map at start; one that responds is enough, list them all"),
    )
    zone: str = Field(
        default="",
        max_length=64,
        description="failure domain (rack, site); copies of a partition are spread over zones",
    )
    weight: int = Field(
        default=1,
        ge=1,
        le=100,
        description="share of partitions or shards relative to other nodes; twice the weight, twice the load",
    )
    link_bind: str = Field(
        default="127.0.0.1", description="address that other nodes connect to; 0.0.0.0 for all interfaces"
    )
    link_port: int = Field(
        ge=0,
        le=65535,
        description="TCP port of links; 0: chosen by the system; default: router 7947, storage 7948, edge 7949",
    )
    advertise: str = Field(
        default="",
        description=("host:port that other nodes connect to if it differs from the bound one (container, NAT)"),
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM, names this node by URI stratamq://<cluster>/<tier>/<id>; for server and client use",
    )
    key: Path | None = Field(default=None, description="PEM private key of the certificate; not readable by every user")
    authority: Path | None = Field(
        default=None, description="PEM of the authority that signs the nodes of this cluster"
    )
    plaintext_links: bool = Field(
        default=False,
        description="links without TLS: nodes are not authenticated; logged at start; for tests only",
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)


class MetricsSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``metrics``: /metrics, /livez, /startupz and /readyz."""

    enabled: bool = Field(default=True, description="serve the page; counters run in any case")
    bind: str = Field(default="127.0.0.1", description="address; the page has no secrets and no authentication")
    port: int = Field(default=0, ge=0, le=65535, description="TCP port; 0: chosen by the system and printed")
    hosts: tuple[HostText, ...] = Field(
        default=(),
        max_length=64,
        description="names, without ports, by which scrapers reach the page, in addition to loopback, its address, "
        "that of node.advertise and this host's own name; *.parent is all names one level below, * any; "
        "requests for others get 421 (DNS rebinding)",
    )
    prepare: bool = Field(
        default=True,
        description="import the page's modules before the node is ready: about 0.2 s of the start and 7 MiB, otherwise "
        "at the first scrape; `stratamq up` uses the first scrape",
    )
    health_bind: str = Field(
        default="",
        pattern=r"^(|(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9.-]+):[0-9]{1,5})$",
        description="host:port that serves only /livez, /startupz and /readyz, for other hosts; empty: none",
    )

    @field_validator("hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)


class LogSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``logs``: lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is written; debug includes normal events of each connection"
    )
    format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="json: one object per line; text: for people; auto: text on a terminal, json elsewhere",
    )
    repeat_s: float = Field(
        default=10.0,
        ge=0.0,
        le=3600.0,
        description=(
            "s; beyond ten records of one event within this time, the rest is suppressed and counted; 0: no suppression"
        ),
    )
