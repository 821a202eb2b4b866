"""Addresses for clients, one for each listener: the configured one, else the address of the socket.

The address of a wildcard socket is useless to clients. It is replaced by its port with the host of this node's link
address; if that is a wildcard too, with the local host on the route to the seeds. Without any, the listener has no
address in the map, which is logged: a wrong address would cost clients a failed connect.
"""

import importlib
import logging
from collections.abc import Sequence

from conf.events import say
from edge.listeners.listeners import EdgeListener, address_of

__all__ = ["advertised_addresses"]

logger = logging.getLogger(__name__)

WILDCARDS = ("", "0.0.0.0", "::", "[::]")
EXTERNAL_ADDRESS = (
    "192.0.2.1",
    ":",
    "9",
)  # documentation address (RFC 5737): packets to it use the default route


def advertised_addresses(listeners: Sequence[EdgeListener], seen: str, seeds: Sequence[str]) -> dict[str, str]:
    """Return "host:port" by listener; a listener accepts WebSockets of pages of its host.

    Args:
        listeners: Bound.
        seen: Link address of this node, perhaps a wildcard.
        seeds: Of the node, host:port.
    """
    addresses = {}
    for listener in listeners:
        bound = address_of(listener.socket)
        host, _, port = bound.rpartition(":")
        if listener.settings.advertise:
            host, _, asked = listener.settings.advertise.rpartition(":")
            bound = f"{host}:{port if int(asked) == 0 else asked}"
        elif host in WILDCARDS:
            host = _host_of(seen, seeds)
            bound = f"{host}:{port}"
        if host in WILDCARDS:
            say(logger, "listener.address_unknown", listener=listener.settings.name)
        else:
            addresses[listener.settings.name] = bound
            listener.hosts.add(host)
    return addresses


def _host_of(seen: str, seeds: Sequence[str]) -> str:
    host = seen.rpartition(":")[0]
    if host not in WILDCARDS:
        return host
    return _facing([*seeds[:1]]) or _facing([]) or ""


def _facing(seeds: Sequence[str]) -> str | None:
    discovery = importlib.import_module("membership.discovery")  # saves its import at the start of other edges
    host, _, port = seeds[0].rpartition(":") if seeds else EXTERNAL_ADDRESS
    try:
        found: str | None = discovery.local_address_towards((host.strip("[]"), int(port)))
    except (ValueError, OSError):  # an unresolved name, or no port
        return None
    return f"[{found}]" if found is not None and ":" in found else found
