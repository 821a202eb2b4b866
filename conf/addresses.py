"""Addresses for limits and bans: the key of an address, and sets of networks.

An IPv4 address is its own key; an IPv6 address counts with its /64, because a host commonly has all of one. An IPv4
address in IPv6 notation (::ffff:192.0.2.1) is the IPv4 address.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

__all__ = ["Networks", "Number", "TrustedNetworks", "address_key", "host_of", "parse_address", "parse_network"]

RECENT_MAX = 4_096  # cached texts: a CONNECT parses its own address about five times
V6_PREFIX_BITS = 64  # counted bits of an IPv6 address: the smallest network that a provider assigns

Number = tuple[int, int]  # IP version, the address as an integer
V = TypeVar("V")


@lru_cache(maxsize=RECENT_MAX)
def parse_address(text: str) -> Number | None:
    """Return an address as numbers, None if the text is not one (a local socket, a host's name)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (4, int(mapped)) if mapped is not None else (address.version, int(address))


def parse_network(text: str) -> tuple[int, int, int]:
    """Return (IP version, first address, prefix bits) of a network; a single address is a network of one.

    Raises:
        ValueError: The text is not a network, or has bits set after its prefix; one line that quotes the text.
    """
    try:
        network = ipaddress.ip_network(text, strict=True)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a network such as 192.0.2.0/24 or 2001:db8::/32") from None
    first, bits = network.network_address, network.prefixlen
    mapped = first.ipv4_mapped if isinstance(first, ipaddress.IPv6Address) else None
    if mapped is not None and bits >= 96:
        return 4, int(mapped), bits - 96
    return network.version, int(first), bits


@lru_cache(maxsize=RECENT_MAX)
def address_key(text: str) -> str:
    """Return the key under which an address counts; all texts that are not addresses share one key."""
    number = parse_address(text)
    if number is None:
        return ""
    version, value = number
    if version == 4:
        return str(ipaddress.IPv4Address(value))
    host_bits = 128 - V6_PREFIX_BITS
    return f"{ipaddress.IPv6Address(value >> host_bits << host_bits)}/{V6_PREFIX_BITS}"


def host_of(address: str) -> str:
    """Return the host of ``host:port``, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


class Networks(Generic[V]):
    """Values by network; a lookup takes one step for each prefix length in use, however many networks there are."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, dict[int, V]]] = {4: {}, 6: {}}  # version -> bits -> first address -> value

    def put(self, network: str, value: V) -> None:
        """Set the value of a network.

        Raises:
            ValueError: See ``parse_network``.
        """
        version, first, bits = parse_network(network)
        tables = self._tables[version]
        tables.setdefault(bits, {})[first] = value
        self._tables[version] = dict(sorted(tables.items(), reverse=True))  # longest prefix first

    def remove(self, network: str) -> None:
        """Remove a network; a missing one is ignored.

        Raises:
            ValueError: See ``parse_network``.
        """
        version, first, bits = parse_network(network)
        table = self._tables[version].get(bits, {})
        table.pop(first, None)
        if not table:
            self._tables[version].pop(bits, None)

    def covering(self, address: str) -> Iterable[V]:
        """Yield the values of the networks that contain an address, longest prefix first."""
        number = parse_address(address)
        if number is None:
            return
        version, value = number
        width = 32 if version == 4 else 128
        for bits, table in self._tables[version].items():
            shift = width - bits
            found = table.get(value >> shift << shift)
            if found is not None:
                yield found


class TrustedNetworks:
    """The networks of ``proxy_trusted``: many clients share such an address, so it is not counted.

    Raises:
        ValueError: A text is not a network.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks: Networks[bool] = Networks()
        for network in networks:
            self._networks.put(network, True)

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and any(self._networks.covering(address))
