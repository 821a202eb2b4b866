"""Addresses of brokers as users write them: ``mqtts://host:8883``, ``ws://host/path``, ``host:1883``.

Decides which transports there are, and which Server Reference of a broker may be followed (MQTT 5.0 section 4.11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

__all__ = ["HOPS_MAX", "Address", "follow_reference", "parse_address"]

Scheme = Literal["mqtt", "mqtts", "ws", "wss"]
PORTS: dict[str, int] = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
SECURE = {"mqtts", "wss"}
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
    parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
    found = parts.scheme.lower()
    if found not in PORTS:
        raise ValueError(f"{text!r}: the scheme is one of {', '.join(PORTS)}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{text.rpartition('@')[2]!r}: user and password do not belong into an address")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{text!r}: the port is a number up to 65535") from None
    if not parts.hostname or port == 0:
        raise ValueError(f"{text!r}: write scheme://host:port")
    websocket = found in ("ws", "wss")
    if parts.query or parts.fragment or (parts.path not in ("", "/") and not websocket):
        raise ValueError(f"{text!r}: {'no query' if websocket else 'nothing'} behind the port")
    path = parts.path or "/mqtt"
    return Address(cast("Scheme", found), parts.hostname, port or PORTS[found], path if websocket else "/mqtt")


def follow_reference(reference: str, present: Address, hops: int) -> Address | None:
    """Return where a broker sends its client, None where the client does not go.

    The first of several references counts. One without a scheme means the present transport. From TLS only TLS is
    followed: whoever may send a Server Reference could otherwise read on.

    Args:
        reference: The property of CONNACK or DISCONNECT, "" without.
        present: The door that answered.
        hops: References followed since the last configured address.
    """
    first = reference.split()[0] if reference.split() else ""
    if not first or hops >= HOPS_MAX:
        return None
    try:
        found = parse_address(first, present.scheme)
    except ValueError:
        return None
    if present.secure and not found.secure:
        return None
    return found if found != present else None
