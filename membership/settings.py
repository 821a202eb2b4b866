"""Settings of gossip for operators. The constants of the protocol are chosen by ``profile``, not one by one."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, StringConstraints, field_validator, model_validator

from membership.keyring import KeyRing, KeyRingError, read_key_descriptor, read_key_file
from membership.profiles import PROFILES, Profile

__all__ = ["MembershipSettings", "open_key_ring", "split_host_port"]

Seed = Annotated[str, StringConstraints(min_length=3, max_length=260)]


def split_host_port(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Split ``host:port``, ``[ipv6]:port`` or, with a default port, ``host``.

    Raises:
        ValueError: No host, or no port between 0 and 65535.
    """
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]") or (":" in host and not host.startswith("[")):
        if default_port is None:
            raise ValueError(f"{text!r} is not host:port")
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


class MembershipSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Settings of the package ``membership``."""

    cluster: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "stratamq"
    """Name of the cluster, bound into every packet: two clusters that share a network, even a key, never mix."""

    bind: str = "0.0.0.0:7946"
    """Where gossip listens, UDP and TCP, host:port; port 0 takes a free one."""

    advertise: str | None = None
    """host:port that other members reach us at; needed behind NAT. Default: the bound address, or, when bound to all,
    the local address that faces the first seed, or the default route when there is none."""

    seeds: Annotated[tuple[Seed, ...], Field(max_length=64)] = ()
    """host:port or DNS name:port of some members. A name may have many addresses. None: the cluster's first member."""

    seed_resolve_interval_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """Seconds between two look-ups of the seeds. Higher notices changed DNS later and asks the resolver less."""

    profile: Literal["lan", "local", "wan"] = "lan"
    """lan: one site; a killed node is known dead in some 8 s. local: one machine; about twice as fast and twice the
    packets. wan: sites that are up to 600 ms apart and back; known dead in some 21 s."""

    key_file: Path | None = None
    """File with the gossip keys, mode 0600, base64, one per line, the sealing key first. Rotations rewrite it."""

    key_fd: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    """File descriptor to read the keys from at start, instead of a file. Rotations then last until the next start."""

    events_max: Annotated[int, Field(ge=16, le=65536)] = 1024
    """Events that wait for the service; beyond, they are dropped, counted, and replaced by one Resync."""

    receive_buffer_bytes: Annotated[int, Field(ge=65536, le=16 * 1024 * 1024)] = 1024 * 1024
    """Socket buffer for gossip packets; higher loses fewer of them while the process is busy or stopped."""

    exchanges_max: Annotated[int, Field(ge=1, le=256)] = 16
    """TCP exchanges served at a time; beyond, connections are closed and counted. Each may hold 1 MiB."""

    @field_validator("bind", "advertise")
    @classmethod
    def _host_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_host_port(value)
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for seed in value:
            split_host_port(seed, default_port=7946)
        return value

    @model_validator(mode="after")
    def _one_key_source(self) -> Self:
        if self.key_file is not None and self.key_fd is not None:
            raise ValueError("set key_file or key_fd, not both")
        return self

    @property
    def constants(self) -> Profile:
        """The constants of ``profile``."""
        return PROFILES[self.profile]


def open_key_ring(settings: MembershipSettings) -> KeyRing:
    """Read the keys from the configured source.

    Raises:
        KeyRingError: No source is configured, or its content or mode is refused: gossip never runs unsealed.
        OSError: The source cannot be read.
    """
    if settings.key_file is not None:
        return KeyRing(read_key_file(settings.key_file))
    if settings.key_fd is not None:
        return KeyRing(read_key_descriptor(settings.key_fd))
    raise KeyRingError("gossip needs a key: set membership.key_file or membership.key_fd")
