"""Addresses of brokers in settings: ``mqtts://host:8883``, ``ws://host/path``, ``host:1883``.

Defines the transports and which Server References are followed (MQTT 5.0 section 4.11).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

from conf.urls import shown_url

__all__ = ["ANY_HOST", "HOPS_MAX", "Address", "ReferenceRefused", "follow_reference", "parse_address", "validate_reach"]

Scheme = Literal["mqtt", "mqtts", "ws", "wss"]
PORTS: dict[str, int] = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
SECURE = {"mqtts", "wss"}
ANY_HOST = "*"
HOPS_MAX = 3  # Server References followed in sequence; bounds cycles of brokers that refer to each other


@dataclass(frozen=True, slots=True)
class Address:
    """One endpoint of a broker."""

    scheme: Scheme
    host: str
    port: int
    path: str = "/mqtt"  # of a WebSocket

    @property
    def secure(self) -> bool:
        """Whether the transport uses TLS."""
        return self.scheme in SECURE

    @property
    def websocket(self) -> bool:
        """Whether packets are sent in WebSocket frames."""
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path if self.websocket else ''}"


def parse_address(text: str, scheme: str = "mqtt") -> Address:
    """Return the parsed address.

    Args:
      text: With or without scheme and port.
      scheme: Default scheme.

    Raises:
      ValueError: The text is invalid; the message names the fault.
    """
    text = text.strip()
    shown = shown_url(text)
    try:
        parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
    except ValueError:
        raise ValueError(f"{shown!r}: write scheme://host:port") from None
    found = parts.scheme.lower()
    if found not in PORTS:
        raise ValueError(f"{shown!r}: the scheme is one of {', '.join(PORTS)}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{shown!r}: an address must not contain user or password")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{shown!r}: the port is a number up to 65535") from None
    if not parts.hostname or port == 0:
        raise ValueError(f"{shown!r}: write scheme://host:port")
    websocket = found in ("ws", "wss")
    if parts.query or parts.fragment or (parts.path not in ("", "/") and not websocket):
        raise ValueError(f"{shown!r}: remove the {'query' if websocket else 'part'} after the port")
    path = parts.path or "/mqtt"
    return Address(cast("Scheme", found), parts.hostname, port or PORTS[found], path if websocket else "/mqtt")


class ReferenceRefused(Exception):
    """A Server Reference is not followed; the text is the reason."""


def follow_reference(
    reference: str, present: Address, hops: int, *, configured: Iterable[Address] = (), hosts: Sequence[str] = ()
) -> Address:
    """Return the address of a Server Reference. The client sends its credentials there.

    Only the first of several references counts. One without a scheme uses the present transport. From TLS only TLS is
    followed: otherwise a sender of Server References could read the traffic.

    Args:
      reference: The property of CONNACK or DISCONNECT.
      present: The broker's endpoint.
      hops: References followed since the last configured address.
      configured: Addresses of the client's settings; any of these brokers may refer to them.
      hosts: Further permitted hosts: ``host``, ``host:port``, or ``*`` for all.

    Raises:
      ReferenceRefused: The client keeps its own addresses.
    """
    first = reference.split()[0] if reference.split() else ""
    if not first:
        raise ReferenceRefused("it names no address")
    try:
        found = parse_address(first, present.scheme)
    except ValueError as error:
        raise ReferenceRefused(str(error)) from None
    if present.secure and not found.secure:
        raise ReferenceRefused("the present connection uses TLS, the reference does not")
    if found == present:
        raise ReferenceRefused("it is the present address")
    if found not in configured and not _is_listed(found, hosts):
        raise ReferenceRefused("server_references does not list it")
    if hops >= HOPS_MAX:
        raise ReferenceRefused(f"{HOPS_MAX} references were followed without a lasting connection")
    return found


def _is_listed(address: Address, hosts: Sequence[str]) -> bool:
    host = f"[{address.host}]" if ":" in address.host else address.host
    listed = {each.lower() for each in hosts}
    return bool(listed & {ANY_HOST, address.host, host, f"{host}:{address.port}"})


def validate_reach(sender: str, targets: Iterable[str]) -> None:
    """Refuse a Server Reference from a public broker to a private address.

    Args:
      sender: IP of the broker that sent it.
      targets: Resolved addresses of its host name.

    Raises:
      ReferenceRefused: The broker's address is public, and a target is not.
    """
    if _is_public(sender):
        for target in targets:
            if not _is_public(target):
                raise ReferenceRefused(f"{target} is not a public address, but the broker's is")


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_global
