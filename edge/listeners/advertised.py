"""Addresses that clients can use, one for each listener: what the operator names, else what the socket tells.

A socket bound to all addresses tells none that a client could connect to: its port with the host by which other nodes
see this one takes its place, and where that is a wildcard too, the local host that faces the seeds. Without any, the
listener stands under no address in the map, which is logged: a wrong address would cost clients a failed connect.
"""

import importlib
import logging
from collections.abc import Sequence

from conf.events import say
from edge.listeners.listeners import EdgeListener, address_of

__all__ = ["advertised_addresses"]

logger = logging.getLogger(__name__)

WILDCARDS = ("", "0.0.0.0", "::", "[::]")
ELSEWHERE = (
    "192.0.2.1",
    ":",
    "9",
)  # documentation address (RFC 5737): packets there leave by the default route


def advertised_addresses(listeners: Sequence[EdgeListener], seen: str, seeds: Sequence[str]) -> dict[str, str]:
    """Return "host:port" by listener; a listener takes WebSockets of pages of its host.

    Args:
        listeners: Bound.
        seen: Address by which other nodes see this one, perhaps a wildcard.
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
    discovery = importlib.import_module("membership.discovery")  # only such an edge pays for it at its start
    host, _, port = seeds[0].rpartition(":") if seeds else ELSEWHERE
    try:
        found: str | None = discovery.local_address_towards((host.strip("[]"), int(port)))
    except (ValueError, OSError):  # a name that does not resolve, or no port
        return None
    return f"[{found}]" if found is not None and ":" in found else found
