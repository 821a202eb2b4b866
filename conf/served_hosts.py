"""Accepted host names of an HTTP listener, against DNS rebinding.

A page of another site can reach a listener in the visitor's network by a DNS name that it points to the listener's
address. Such a request has that name in Host, and in Origin too. So a name is accepted only if it is the listener's:
``localhost``, its addresses, its advertised address, its certificate and its settings. An IP address cannot be rebound,
so the local address of the connection is accepted.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator

from conf.addresses import parse_address

__all__ = ["ANY_HOST", "Host", "HostText", "ServedHosts", "host_text", "is_for", "parse_host", "same_origin"]

ANY_HOST = "*"
HOST_FORM = re.compile(r"\*|(\*\.)?[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")  # in a list of settings
HOST_CHARS_MAX = 253
FORM = re.compile(r"(?:\[([0-9a-f:.]+)(?:%[^\]]*)?\]|([^\s:/@\[\]?#]+))(?::([0-9]{1,5}))?")
PORTS = {"http": 80, "https": 443}
TEXT_MAX = 200  # characters of an untrusted Host in a log line
LOOPBACK_4 = 127
LOOPBACK_6 = 1


def _validate_host(text: str) -> str:
    if len(text) > HOST_CHARS_MAX or not HOST_FORM.fullmatch(text):
        raise ValueError(
            "must be a host name or an address without scheme and port, such as broker.example or 2001:db8::1, "
            f"*.parent, or *, of at most {HOST_CHARS_MAX} characters"
        )
    return text


HostText = Annotated[str, AfterValidator(_validate_host)]  # of a list of settings: without a port


class Host(NamedTuple):
    """A parsed Host header; ``port`` is None if absent."""

    name: str
    port: int | None


def parse_host(text: str) -> Host | None:
    """Return name and port of a Host header, in lower case and without brackets; None if it is invalid."""
    match = FORM.fullmatch(text.lower())
    if match is None:
        return None
    name = match[1] or match[2].removesuffix(".")
    return Host(name, int(match[3]) if match[3] else None) if name else None


def same_origin(origin: str, scheme: str, host: Host) -> bool:
    """Return whether a page's origin (RFC 6454) has the scheme, host and port of the request."""
    of_page, mark, rest = origin.lower().partition("://")
    other = parse_host(rest)
    if not mark or of_page != scheme or other is None:
        return False
    return (other.name, other.port or PORTS[scheme]) == (host.name, host.port or PORTS[scheme])


class ServedHosts:
    """The names of one listener.

    Args:
        names: Host names and addresses without ports, ``*.parent`` for all names one level below, ``*`` for any.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._certified: frozenset[str] = frozenset()
        self.add(*names)

    @property
    def certified(self) -> frozenset[str]:
        """Names of the listener's certificate; a reload replaces them."""
        return self._certified

    def set_certified(self, names: Iterable[str]) -> None:
        """Replace the names of the certificate."""
        self._certified = frozenset(map(_canonical, names))

    def add(self, *names: str) -> None:
        """Accept more names; empty ones and wildcard addresses are ignored."""
        self._names |= {_canonical(name) for name in names if name not in ("", "0.0.0.0", "::", "[::]")}

    def serves(self, host: Host, local: str = "") -> bool:
        """Return whether a request for a host is for this listener.

        Args:
            local: Local address of the connection.
        """
        number = parse_address(host.name)
        if number is not None:
            version, value = number
            if value >> 24 == LOOPBACK_4 if version == 4 else value == LOOPBACK_6:
                return True
            if number == parse_address(local.partition("%")[0]):
                return True
        elif host.name == "localhost":
            return True
        name = _canonical(host.name)
        above = f"*.{name.partition('.')[2]}" if number is None and "." in name else ""
        return any(host_name in names for names in (self._names, self._certified) for host_name in (name, above)) or (
            ANY_HOST in self._names
        )


def _canonical(name: str) -> str:
    """Return a name in lower case, an address in canonical form: IPv6 has many notations."""
    plain = name.lower().strip("[]").removesuffix(".")
    number = parse_address(plain)
    return f"{number[0]} {number[1]}" if number is not None else plain


def is_for(hosts: ServedHosts | None, scope: Mapping[str, Any]) -> bool:
    """Return whether an ASGI request is for a listener. Browsers always send Host, so HTTP/1.0 without it is accepted.

    Args:
        hosts: Of the listener; None: any.
    """
    if hosts is None:
        return True
    named = [value for name, value in scope["headers"] if name == b"host"]
    if not named:
        return True
    host = parse_host(named[0].decode("latin-1"))
    local = str((scope.get("server") or ("",))[0])
    return len(named) == 1 and host is not None and hosts.serves(host, local)


def host_text(scope: Mapping[str, Any]) -> str:
    """Return the Host of a request, escaped for a log line."""
    text = " ".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"host")
    return "".join(letter if letter.isprintable() else "?" for letter in text[:TEXT_MAX])
