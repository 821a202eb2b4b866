"""Bans of the cluster: users, client IDs, addresses, networks and certificates that get 0x8A, temporarily or
permanently.

The policy replicates ``Ban`` (``access/policy``). A node checks ``BanTable`` at accept (address), and again after the
chain (user, client ID, certificate). ``normal_value`` returns the canonical spelling of a ban and refuses invalid ones.
"""

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias

import msgspec

from conf.addresses import Networks, parse_address, parse_network

__all__ = ["BAN_KINDS", "Ban", "BanKind", "BanTable", "normal_value"]

BanKind: TypeAlias = Literal["user", "client_id", "address", "network", "certificate"]
BAN_KINDS: tuple[BanKind, ...] = ("user", "client_id", "address", "network", "certificate")
NAME_BYTES_MAX = 65_535  # of a user or a client ID: the maximum in CONNECT
PLACES = ("address", "network")
FINGERPRINT = re.compile(r"[0-9a-f]{64}")  # SHA-256 of the certificate


class Ban(msgspec.Struct, frozen=True, array_like=True):
    """One ban. ``until_utc`` is 0 for a permanent one."""

    kind: BanKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
    until_utc: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    reason: Annotated[str, msgspec.Meta(max_length=256)] = ""

    def holds(self, now_utc: float) -> bool:
        """Return whether the ban is in force at that time."""
        return not self.until_utc or now_utc < self.until_utc


def normal_value(kind: str, value: str) -> str:
    """Return the canonical spelling of a banned value.

    Raises:
        ValueError: The kind or the value is invalid; one line.
    """
    if kind in ("user", "client_id"):
        if not 0 < len(value.encode()) <= NAME_BYTES_MAX:  # a lone surrogate is a ValueError too
            raise ValueError(f"a {kind} has 1 to {NAME_BYTES_MAX} bytes")
        return value
    if kind == "address":
        number = parse_address(value)
        if number is None:
            raise ValueError(f"{value[:64]!r} is no IP address; a network is banned with the kind network")
        return _network_text(number[0], number[1], 32 if number[0] == 4 else 128).partition("/")[0]
    if kind == "network":
        return _network_text(*parse_network(value))
    if kind == "certificate":
        digits = value.replace(":", "").lower()
        if FINGERPRINT.fullmatch(digits) is None:
            raise ValueError("a certificate is banned by its SHA-256 fingerprint: 64 hexadecimal digits")
        return digits
    raise ValueError(f"{kind[:32]!r} cannot be banned: {', '.join(BAN_KINDS)} can")


class BanTable:
    """The bans that a node has; lookup time does not depend on their number."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], Ban] = {}
        self._networks: Networks[Ban] = Networks()
        self._places: set[tuple[str, str]] = set()  # those of addresses and networks

    def __len__(self) -> int:
        return len(self._named)

    def put(self, ban: Ban) -> None:
        """Add a ban, or replace the one of the same kind and value.

        Raises:
            ValueError: See ``normal_value``.
        """
        value = normal_value(ban.kind, ban.value)
        if ban.kind == "network":
            self._networks.put(value, ban)
        self._named[ban.kind, value] = ban
        if ban.kind in PLACES:
            self._places.add((ban.kind, value))

    def remove(self, kind: str, value: str) -> None:
        """Remove a ban; a missing one is ignored.

        Raises:
            ValueError: See ``normal_value``.
        """
        value = normal_value(kind, value)
        if kind == "network":
            self._networks.remove(value)
        self._named.pop((kind, value), None)
        self._places.discard((kind, value))

    def of_address(self, address: str, now_utc: float) -> Ban | None:
        """Return the ban in force for an address, None if there is none."""
        number = parse_address(address) if self._places else None
        if number is None:
            return None
        text = _network_text(number[0], number[1], 32 if number[0] == 4 else 128).partition("/")[0]
        ban = self._named.get(("address", text))
        if ban is not None and ban.holds(now_utc):
            return ban
        return next((found for found in self._networks.covering(address) if found.holds(now_utc)), None)

    def of_principal(self, user: str, client_id: str, fingerprint: str, now_utc: float) -> Ban | None:
        """Return the ban of a user ("": anonymous), a client ID, or a certificate ("": none)."""
        if not self._named:
            return None
        for key in (("user", user), ("client_id", client_id), ("certificate", fingerprint)):
            ban = self._named.get(key)
            if ban is not None and ban.holds(now_utc):
                return ban
        return None


def _network_text(version: int, first: int, bits: int) -> str:
    address = ipaddress.IPv4Address(first) if version == 4 else ipaddress.IPv6Address(first)
    return f"{address}/{bits}"
