"""Admission of unauthenticated connections: which of them a port keeps when its slots are used up.

Sans-IO, and the same for every port of the product. A connection has a slot from accept until it is authenticated or
closed. Connections of known addresses (`KnownAddresses`) and those of all others have half of the slots each, so that
neither can fill the other half.

If an address has used its share, its oldest silent connection is displaced by the new one, or its oldest one beyond
``patience_s``. If a half is full, the first applicable rule selects the connection to displace:

1. the oldest silent connection of the address with most slots, if it has at least two
2. the oldest silent connection, if it was accepted at least ``FIRST_BYTE_S`` ago
3. the oldest connection of the address with most slots, if it has at least two more than the new connection's address;
also if the new connection's address has slots, and otherwise the next rule would apply
4. the oldest silent connection
5. the oldest connection, if it is older than ``patience_s``

So reconnects from a few addresses displace no new connection whose first byte is in transit.

A connection is silent until its first byte arrives. A new connection is refused only if no rule applies. An IPv4
address counts alone, an IPv6 address with its /64 (``conf/addresses.py``). A known address has no share: all nodes of a
test cluster may have one address. Dropping from the longest queue: McKenney, "Stochastic Fairness Queueing", 1990.

`POOLS` lists every pool of the product; docs/security.md names the attack test of each.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from conf.addresses import address_key, parse_address

__all__ = [
    "FIRST_BYTE_S",
    "POOLS",
    "Admission",
    "AdmissionPool",
    "AdmissionSlot",
    "KnownAddresses",
    "PoolBounds",
]

FIRST_BYTE_S = 1.0  # from accept to the first byte
KNOWN_S = 86_400.0  # time for which an address is known after an authentication
KNOWN_MAX = 65_536  # addresses
PER_NAME_MAX = 8  # addresses of one authenticated name: one user cannot displace all others

T = TypeVar("T")


class PoolBounds(NamedTuple):
    """Bounds of one pool.

    Attributes:
        places_max: Connections; half of them for known addresses.
        share_max: Connections of one unknown address.
        first_byte_s: A connection that is silent for longer is closed; 0: only its deadline applies.
        patience_s: Younger connections that have sent data are not displaced, except of the address with most.
    """

    places_max: int
    share_max: int
    first_byte_s: float = FIRST_BYTE_S
    patience_s: float = 1.0


POOLS: dict[str, PoolBounds] = {
    "node_links": PoolBounds(512, 8),  # router, storage: before HELLO
    "edge_links": PoolBounds(256, 8),  # edge: the same
    "edge_clients": PoolBounds(32_768, 16_384, 0.0, 5.0),  # edge: unauthenticated clients
    "federation_links": PoolBounds(128, 8, patience_s=3.0),  # agents: TLS and HELLO, over satellites too
    "balancer_arrivals": PoolBounds(32_768, 16_384, 0.0, 5.0),  # balancer: clients whose first bytes are being read
    "dtls_handshakes": PoolBounds(1_024, 64, 0.0, 3.0),  # UDP gateway: DTLS handshakes behind their cookie
    "gossip_exchanges": PoolBounds(64, 4),  # every node: TCP exchanges without proof of the key
    "admin_connections": PoolBounds(1_024, 32, 15.0),  # HTTP service: connections without an authenticated request
    "admin_requests": PoolBounds(256, 32, 0.0),  # HTTP service: requests before the caller is known
    "node_pages": PoolBounds(128, 16, 75.0, 0.0),  # every node: connections to its pages of metrics and health
}


class KnownAddresses:
    """Addresses of the cluster's nodes, and those with an authentication within the last day.

    Only a successful authentication adds an address, a name adds at most ``PER_NAME_MAX``, and the table is bounded:
    the least recently authenticated name is removed first.

    Args:
        seconds: Time for which an address is known.
        addresses_max: Bound of the table.
    """

    def __init__(self, seconds: float = KNOWN_S, addresses_max: int = KNOWN_MAX) -> None:
        self._seconds, self._max = seconds, addresses_max
        self._fixed: dict[str, frozenset[str]] = {}  # source -> keys from configuration or the map
        # least recently authenticated name first
        self._by_name: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._at: dict[str, float] = {}  # key -> last authentication
        self._names_of: Counter[str] = Counter()  # key -> number of names with it

    def __len__(self) -> int:
        return len(self._at)

    def fix(self, source: str, hosts: Iterable[str]) -> None:
        """Set the known addresses of this source; host names are ignored."""
        self._fixed[source] = frozenset(address_key(host) for host in hosts if parse_address(host) is not None)

    def add(self, name: str, address: str, now: float) -> None:
        """Record that ``name`` authenticated from an address."""
        if not name or parse_address(address) is None:
            return
        key = address_key(address)
        keys = self._by_name.setdefault(name, OrderedDict())
        self._by_name.move_to_end(name)
        if key not in keys:
            self._names_of[key] += 1
        keys[key] = None
        keys.move_to_end(key)
        self._at[key] = now
        if len(keys) > PER_NAME_MAX:
            self._drop(keys)
        while max(len(self._at), len(self._by_name)) > self._max:
            oldest, keys = next(iter(self._by_name.items()))
            self._drop(keys)
            if not keys:
                del self._by_name[oldest]

    def knows(self, address: str, now: float) -> bool:
        """Return whether an address is known."""
        if not address:
            return False
        key = address_key(address)
        at = self._at.get(key)
        if at is not None and now - at <= self._seconds:
            return True
        return any(key in keys for keys in self._fixed.values())

    def _drop(self, keys: OrderedDict[str, None]) -> None:
        key, _ = keys.popitem(last=False)
        self._names_of[key] -= 1
        if not self._names_of[key]:
            del self._names_of[key], self._at[key]


class AdmissionSlot(Generic[T]):
    """The slot of one connection.

    Attributes:
        owner: The connection, as passed by its shell.
        began: Time of its accept.
        is_silent: No byte was received.
    """

    __slots__ = ("_half", "began", "is_silent", "key", "owner")

    def __init__(self, half: "_Half[T]", key: str, owner: T, began: float) -> None:
        self._half: _Half[T] | None = half
        self.key, self.owner, self.began = key, owner, began
        self.is_silent = True

    def heard(self) -> None:
        """Record the first byte."""
        if self.is_silent and self._half is not None:
            self._half.heard(self)

    def leave(self) -> None:
        """Free the slot: the connection authenticated or closed. A second call has no effect."""
        half, self._half = self._half, None
        if half is not None:
            half.remove(self)


class Admission(NamedTuple, Generic[T]):
    """The result for a new connection: its slot, None for a refusal, and the slot freed for it.

    The shell closes the connection of ``displaced``.
    """

    place: AdmissionSlot[T] | None
    displaced: AdmissionSlot[T] | None = None


class AdmissionPool(Generic[T]):
    """Slots of unauthenticated connections of one port.

    Invariant: each half uses at most ``places_max // 2`` slots, and an unknown address ``share_max``.

    Args:
        bounds: Of this pool.
        known: Returns whether an address is known at a time.
        has_received: Returns whether an owner received a byte, if the shell does not call ``AdmissionSlot.heard``.

    Attributes:
        counts: Refused and displaced connections, by reason.
    """

    def __init__(
        self,
        bounds: PoolBounds,
        known: Callable[[str, float], bool],
        has_received: Callable[[T], bool] | None = None,
    ) -> None:
        self.bounds = bounds
        self.counts: Counter[str] = Counter()
        self._known = known
        half = max(1, bounds.places_max // 2)
        self._halves: tuple[_Half[T], _Half[T]] = (
            _Half(half, min(half, bounds.share_max), has_received),
            _Half(half, half, has_received),
        )

    def __len__(self) -> int:
        return sum(len(half) for half in self._halves)

    def admit(self, now: float, address: str, owner: T, *, crowded: bool = False) -> Admission[T]:
        """Give a new connection a slot, or refuse it.

        Args:
            now: Seconds.
            address: Of the connection.
            owner: The connection.
            crowded: The port cannot hold another connection even if slots are free: one must be displaced, for a known
                address also one of the other half.
        """
        known = self._known(address, now)
        half = self._halves[known]
        key = address_key(address)
        displaced: AdmissionSlot[T] | None = None
        if crowded or half.is_full(key):
            losing = self._halves[False] if crowded and known and len(self._halves[False]) else half
            displaced = losing.victim(key, now, now - self.bounds.patience_s)
            if displaced is None:
                self.counts["refused"] += 1
                return Admission(None)
            self.counts["displaced_silent" if displaced.is_silent else "displaced_slow"] += 1
            displaced.leave()
        place = AdmissionSlot(half, key, owner, now)
        half.add(place)
        return Admission(place, displaced)

    def take_silent(self, now: float) -> list[AdmissionSlot[T]]:
        """Free the slots of connections that were silent for too long; the shell closes them."""
        late: list[AdmissionSlot[T]] = []
        if self.bounds.first_byte_s:
            for half in self._halves:
                while (place := half.oldest_silent()) is not None and now - place.began >= self.bounds.first_byte_s:
                    self.counts["silent"] += 1
                    place.leave()
                    late.append(place)
        return late


class _Half(Generic[T]):
    """Slots of one half of a pool."""

    def __init__(self, places_max: int, share_max: int, has_received: Callable[[T], bool] | None) -> None:
        self._places_max, self._share_max, self._has_received = places_max, share_max, has_received
        self._places: OrderedDict[AdmissionSlot[T], None] = OrderedDict()  # oldest first
        self._silent: OrderedDict[AdmissionSlot[T], None] = OrderedDict()
        self._by_key: dict[str, OrderedDict[AdmissionSlot[T], None]] = {}
        self._silent_by_key: dict[str, OrderedDict[AdmissionSlot[T], None]] = {}
        self._keys_by_count: dict[int, OrderedDict[str, None]] = {}  # number of slots -> addresses with that number
        self._most = 0  # slots of one address

    def __len__(self) -> int:
        return len(self._places)

    def is_full(self, key: str) -> bool:
        return len(self._places) >= self._places_max or len(self._by_key.get(key, ())) >= self._share_max

    def victim(self, key: str, now: float, patient_since: float) -> AdmissionSlot[T] | None:
        """Return the connection to displace for a new one of ``key``, None if there is none."""
        mine = self._by_key.get(key, OrderedDict())
        if len(mine) >= self._share_max:
            return self._first_silent(self._silent_by_key.get(key)) or _older(next(iter(mine)), patient_since)
        if not self._places:
            return None
        most = next(iter(self._keys_by_count[self._most]))
        if self._most >= 2 and (silent := self._first_silent(self._silent_by_key.get(most))) is not None:
            return silent
        silent = self.oldest_silent()
        if silent is not None and silent.began <= now - FIRST_BYTE_S:
            return silent
        if self._most >= len(mine) + 2 or (silent is not None and mine and self._most >= 2):
            return next(iter(self._by_key[most]))
        return silent or _older(next(iter(self._places)), patient_since)

    def oldest_silent(self) -> AdmissionSlot[T] | None:
        """Return the connection that has been silent for longest."""
        return self._first_silent(self._silent)

    def _first_silent(self, places: OrderedDict[AdmissionSlot[T], None] | None) -> AdmissionSlot[T] | None:
        while places:
            place = next(iter(places))
            if self._is_silent(place):
                return place
        return None

    def _is_silent(self, place: AdmissionSlot[T]) -> bool:
        if place.is_silent and self._has_received is not None and self._has_received(place.owner):
            place.heard()
        return place.is_silent

    def add(self, place: AdmissionSlot[T]) -> None:
        self._places[place] = self._silent[place] = None
        mine = self._by_key.setdefault(place.key, OrderedDict())
        mine[place] = None
        self._silent_by_key.setdefault(place.key, OrderedDict())[place] = None
        self._count(place.key, len(mine) - 1, len(mine))

    def heard(self, place: AdmissionSlot[T]) -> None:
        place.is_silent = False
        self._remove_silent(place)

    def remove(self, place: AdmissionSlot[T]) -> None:
        del self._places[place]
        mine = self._by_key[place.key]
        del mine[place]
        if not mine:
            del self._by_key[place.key]
        self._remove_silent(place)
        self._count(place.key, len(mine) + 1, len(mine))

    def _remove_silent(self, place: AdmissionSlot[T]) -> None:
        if self._silent.pop(place, self) is None:
            silent = self._silent_by_key[place.key]
            del silent[place]
            if not silent:
                del self._silent_by_key[place.key]

    def _count(self, key: str, before: int, after: int) -> None:
        if before:
            keys = self._keys_by_count[before]
            del keys[key]
            if not keys:
                del self._keys_by_count[before]
        if after:
            self._keys_by_count.setdefault(after, OrderedDict())[key] = None
        if after > self._most or self._most not in self._keys_by_count:
            self._most = after


def _older(place: AdmissionSlot[T], since: float) -> AdmissionSlot[T] | None:
    return place if place.began <= since else None
