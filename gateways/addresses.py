"""Addresses of brokers as users write them: ``mqtts://host:8883``, ``ws://host/path``, ``host:1883``.

Decides which transports there are, and which Server Reference of a broker may be followed (MQTT 5.0 section 4.11).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

from conf.urls import shown_url

__all__ = ["ANY_HOST", "HOPS_MAX", "Address", "ReferenceRefused", "follow_reference", "judge_reach", "parse_address"]

Scheme = Literal["mqtt", "mqtts", "ws", "wss"]
PORTS: dict[str, int] = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
SECURE = {"mqtts", "wss"}
ANY_HOST = "*"
HOPS_MAX = 3  # Server References followed one after the other: brokers that name each other are left


@dataclass(frozen=True, slots=True)
class Address:
    """One door of a broker."""

    scheme: Scheme
    host: str
    port: int
    path: str = "/mqtt"  # of a WebSocket

    @property
    def secure(self) -> bool:
        """Whether bytes travel by TLS."""
        return self.scheme in SECURE

    @property
    def websocket(self) -> bool:
        """Whether packets travel in WebSocket frames."""
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path if self.websocket else ''}"


def parse_address(text: str, scheme: str = "mqtt") -> Address:
    """Return the address that a text names.

    Args:
        text: With or without scheme and port.
        scheme: Where the text has none.
    Raises:
        ValueError: What is wrong, in words.
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
        raise ValueError(f"{shown!r}: user and password do not belong into an address")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{shown!r}: the port is a number up to 65535") from None
    if not parts.hostname or port == 0:
        raise ValueError(f"{shown!r}: write scheme://host:port")
    websocket = found in ("ws", "wss")
    if parts.query or parts.fragment or (parts.path not in ("", "/") and not websocket):
        raise ValueError(f"{shown!r}: {'no query' if websocket else 'nothing'} behind the port")
    path = parts.path or "/mqtt"
    return Address(cast("Scheme", found), parts.hostname, port or PORTS[found], path if websocket else "/mqtt")


class ReferenceRefused(Exception):
    """A client does not go where a broker sends it; the text says why."""


def follow_reference(
    reference: str, present: Address, hops: int, *, configured: Iterable[Address] = (), hosts: Sequence[str] = ()
) -> Address:
    """Return where a broker sends its client. The client shows its credentials there.

    The first of several references counts. One without a scheme means the present transport. From TLS only TLS is
    followed: whoever may send a Server Reference could otherwise read on.

    Args:
        reference: The property of CONNACK or DISCONNECT.
        present: The door that answered.
        hops: References followed since the last configured address.
        configured: Addresses of the client's own settings, which any of these brokers may name.
        hosts: Others that it may name: ``host``, ``host:port``, or ``*`` for all.
    Raises:
        ReferenceRefused: The client stays with its own addresses.
    """
    first = reference.split()[0] if reference.split() else ""
    if not first:
        raise ReferenceRefused("it names no address")
    try:
        found = parse_address(first, present.scheme)
    except ValueError as error:
        raise ReferenceRefused(str(error)) from None
    if present.secure and not found.secure:
        raise ReferenceRefused("TLS here, and none there")
    if found == present:
        raise ReferenceRefused("it is where the client was")
    if found not in configured and not _is_listed(found, hosts):
        raise ReferenceRefused("server_references does not list it")
    if hops >= HOPS_MAX:
        raise ReferenceRefused(f"{HOPS_MAX} were followed already")
    return found


def _is_listed(address: Address, hosts: Sequence[str]) -> bool:
    host = f"[{address.host}]" if ":" in address.host else address.host
    listed = {each.lower() for each in hosts}
    return bool(listed & {ANY_HOST, address.host, host, f"{host}:{address.port}"})


def judge_reach(sender: str, targets: Iterable[str]) -> None:
    """Judge the IP addresses behind a Server Reference: a broker outside names nothing inside.

    Args:
        sender: IP of the broker that sent it.
        targets: Those that its host name has.
    Raises:
        ReferenceRefused: The broker has a public address, and one of these is not public.
    """
    if _is_public(sender):
        for target in targets:
            if not _is_public(target):
                raise ReferenceRefused(f"{target} is no public address, and the broker's is one")


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_global
