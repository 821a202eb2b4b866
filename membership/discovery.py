"""Discovery of the first members: seeds given as addresses or as DNS names, resolved repeatedly.

Provides the addresses that the core may try. A name that does not resolve is counted and retried: DNS often starts
after this process.
"""

import socket

import trio

from membership.packets import Address
from membership.settings import split_host_port

__all__ = ["DEFAULT_PORT", "SEED_ADDRESSES_MAX", "local_address_towards", "resolve_seeds"]

DEFAULT_PORT = 7946
SEED_ADDRESSES_MAX = 64  # a name with more addresses is a configuration error
RESOLVE_TIMEOUT_S = 5.0


async def resolve_seeds(seeds: tuple[str, ...]) -> tuple[tuple[Address, ...], list[str]]:
    """Resolve all seeds concurrently.

    Returns:
        The addresses, sorted, without duplicates, at most SEED_ADDRESSES_MAX; and the seeds that did not resolve.
    """
    found: set[Address] = set()
    failed: list[str] = []

    async def resolve(seed: str) -> None:
        host, port = split_host_port(seed, DEFAULT_PORT)
        rows = None
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            try:
                rows = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            except OSError:
                rows = None
        if not rows:
            failed.append(seed)
            return
        found.update((str(row[4][0]), int(row[4][1])) for row in rows)

    async with trio.open_nursery() as nursery:
        for seed in seeds:
            nursery.start_soon(resolve, seed)
    return tuple(sorted(found)[:SEED_ADDRESSES_MAX]), sorted(failed)


def local_address_towards(address: Address) -> str | None:
    """Return the numeric local address of packets to a destination, None without a route; sends no packet."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except OSError:
            return None
        return str(probe.getsockname()[0])
