"""Rate limit of new durable sessions: a token bucket for each address and each user.

A durable session uses memory and disk of every replica for days after its client disconnected. Only the partition knows
whether a CONNECT creates a session or resumes it. So a CONNECT takes a token first and gets it back if no session was
created; with an empty bucket it may still resume. IPv6 addresses count by /64, the usual assignment of one customer.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from edge.clients.client import Client

__all__ = ["ADDRESSES_MAX", "SessionRate", "metered_address", "payers"]

ADDRESSES_MAX = 65_536  # buckets kept; a client with more addresses has as many full buckets anyway


class SessionRate:
    """Buckets of one edge.

    Args:
        rate: Tokens a second; 0: no limit.
        burst: Tokens in a full bucket.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self.bound(rate, burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> tokens, time of that

    def bound(self, rate: float, burst: int) -> None:
        """Set another rate; buckets keep their tokens."""
        self._rate, self._burst = rate, float(burst)

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def enabled(self) -> bool:
        """Whether there is a limit."""
        return self._rate > 0

    def take(self, address: str, now: float) -> bool:
        """Take a token; return False if the bucket is empty."""
        tokens = self._tokens(address, now)
        taken = tokens >= 1
        self._store(address, tokens - 1 if taken else tokens, now)
        return taken

    def take_each(self, keys: Sequence[str], now: float) -> bool:
        """Take a token of each key if all have one; return whether they had."""
        if any(self._tokens(key, now) < 1 for key in keys):
            return False
        return all(self.take(key, now) for key in keys)

    def give_back(self, address: str, now: float) -> None:
        """Return a token, because no session was created."""
        if address in self._buckets:
            self._store(address, min(self._burst, self._tokens(address, now) + 1), now)

    def _tokens(self, address: str, now: float) -> float:
        tokens, since = self._buckets.get(address, (self._burst, now))
        return min(self._burst, tokens + (now - since) * self._rate)

    def _store(self, address: str, tokens: float, now: float) -> None:
        self._buckets[address] = (tokens, now)
        self._buckets.move_to_end(address)
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)


def payers(client: Client, peer_of: Callable[[int], str]) -> tuple[str, ...]:
    """Return the keys of the buckets that a client's new session charges: its address, unless trusted, and its user."""
    address = metered_address(client, peer_of)
    of_user = (f"user {client.owner}",) if client.owner else ()
    return of_user if address is None else (address, *of_user)


def metered_address(client: Client, peer_of: Callable[[int], str]) -> str | None:
    """Return the address of a client's bucket; None for one in the listener's trusted networks.

    Args:
        client: The address of its PROXY header has precedence over the socket's peer.
        peer_of: Returns the peer's address of a socket, "" if it has none.
    """
    text = client.address[0] if client.address is not None else peer_of(client.conn.fd)
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return ""  # the address is unknown: all such clients share a bucket
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address in network for network in _networks(client.policy.unmetered)):
        return None
    return _counted(address)


def _counted(address: IPv4Address | IPv6Address) -> str:
    return str(address) if isinstance(address, IPv4Address) else str(IPv6Network((address, 64), strict=False))


@lru_cache(maxsize=64)
def _networks(names: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(name) for name in names)
