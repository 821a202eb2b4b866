"""Addresses as limits and bans see them: the key that one counts under, and sets of networks.

An IPv4 address counts alone; an IPv6 address counts with its /64, because a host commonly has all of one. An IPv4
address that is written as IPv6 (::ffff:192.0.2.1) is the IPv4 address.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

__all__ = ["Networks", "Number", "TrustedNetworks", "address_key", "host_of", "parse_address", "parse_network"]

RECENT_MAX = 4_096  # texts whose numbers are known: a CONNECT asks for its own some five times
V6_PREFIX_BITS = 64  # of an IPv6 address that count: the smallest network that a provider gives

Number = tuple[int, int]  # IP version, the address as an integer
V = TypeVar("V")


@lru_cache(maxsize=RECENT_MAX)
def parse_address(text: str) -> Number | None:
    """Return an address as numbers, None for a text that is none (a local socket, a host's name)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (4, int(mapped)) if mapped is not None else (address.version, int(address))


def parse_network(text: str) -> tuple[int, int, int]:
    """Return (IP version, first address, prefix bits) of a network; an address alone is the network of itself.

    Raises:
        ValueError: The text is no network, or has bits set behind its prefix; one line that quotes the text.
    """
    try:
        network = ipaddress.ip_network(text, strict=True)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is no network such as 192.0.2.0/24 or 2001:db8::/32") from None
    first, bits = network.network_address, network.prefixlen
    mapped = first.ipv4_mapped if isinstance(first, ipaddress.IPv6Address) else None
    if mapped is not None and bits >= 96:
        return 4, int(mapped), bits - 96
    return network.version, int(first), bits


@lru_cache(maxsize=RECENT_MAX)
def address_key(text: str) -> str:
    """Return the key that an address counts under; all texts that are no address share one key."""
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
    """Values by network; a look-up costs one step for each prefix length that occurs, however many there are."""

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
        self._tables[version] = dict(sorted(tables.items(), reverse=True))  # the longest prefix first

    def remove(self, network: str) -> None:
        """Remove a network; one that is not there is passed by.

        Raises:
            ValueError: See ``parse_network``.
        """
        version, first, bits = parse_network(network)
        table = self._tables[version].get(bits, {})
        table.pop(first, None)
        if not table:
            self._tables[version].pop(bits, None)

    def covering(self, address: str) -> Iterable[V]:
        """Yield the values of the networks that an address lies in, the longest prefix first."""
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
    """The networks of ``proxy_trusted``: many clients stand behind one such address, so none of them is counted.

    Raises:
        ValueError: A text is no network.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks: Networks[bool] = Networks()
        for network in networks:
            self._networks.put(network, True)

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and any(self._networks.covering(address))
