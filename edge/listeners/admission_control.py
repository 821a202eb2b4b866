"""Admission of a listener's new connections: limits of rate and number, of each address and of all.

Decides before the first byte is read, so a refused connection costs no handshake: it is closed without a response. A
connection beyond the listener's rate is queued (``edge/listeners/accept_queue.py``).

The clients of an address share a rate limit, which the loop enforces. Behind a load balancer the address is that of the
PROXY header. If such a header is expected, the listener's own load balancers (``proxy_trusted``) have no limit by
address. Unknown addresses never have one; the limits of the listener apply to all.
"""

from collections.abc import Callable, Sequence

from access.limits.buckets import AddressBuckets, Buckets
from conf.addresses import TrustedNetworks, address_key
from conf.admission import AdmissionSlot, KnownAddresses
from conf.limit_settings import ListenerLimits
from edge.listeners.accept_queue import AcceptQueue
from edge.loop.shared_rate_limits import SharedRateLimit
from edge.loop.state import LoopConnection

__all__ = ["WAITS", "AdmissionControl", "Admit", "ConnectionSlot"]

WAITS = "waits"  # in place of a counter: the connection is queued
ADDRESS_RATE = "refused_accept_rate_address"  # counters
IDLE_LIMITS_MAX = 65_536  # of addresses without a connection that have used tokens
NUMBER, ADDRESS_NUMBER = "refused_connections_listener", "refused_connections_address"


class ConnectionSlot:
    """The slot of one connection at its listener.

    Attributes:
        address: Of the client, "" if unknown.
        metered: Limits for addresses apply to it.
        conn: The connection, once it is attached.
        place: Among those that have not authenticated.
    """

    @property
    def purse(self) -> SharedRateLimit | None:
        """The rate limit of its address, None without a limit."""
        return self._intake.purse(self) if self._intake is not None else None

    __slots__ = ("_intake", "_known", "address", "conn", "metered", "place")

    def __init__(self, admission: "AdmissionControl", address: str, metered: bool) -> None:
        self._intake: AdmissionControl | None = admission
        self.address = address
        self.metered = metered
        self.conn: LoopConnection | None = None
        self.place: AdmissionSlot[ConnectionSlot] | None = None
        self._known: KnownAddresses | None = None

    def await_login(self, place: "AdmissionSlot[ConnectionSlot]", known: KnownAddresses) -> None:
        """Hold a place among the unauthenticated connections; ``known`` stores the address of a user."""
        self.place, self._known = place, known

    def is_known(self, now: float) -> bool:
        """Return whether a user authenticated from its address within a day."""
        return self._known is not None and self._known.knows(self.address, now)

    def authenticated(self, user: str, now: float) -> None:
        """Free that place; ``user`` is "" for an anonymous client, which makes no address known."""
        if self.place is None:
            return
        self.place.leave()
        self.place = None
        if self.metered and user and self._known is not None:
            self._known.add(user, self.address, now)

    def leave(self) -> None:
        """Free the slot; a second call has no effect."""
        if self.place is not None:
            self.place.leave()
            self.place = None
        admission, self._intake = self._intake, None
        if admission is not None:
            admission.left(self)


# Called with a client's address, "" if unknown; returns ("", its slot), (counter of the refusal, None), or (WAITS,
# None).
Admit = Callable[[str], tuple[str, ConnectionSlot | None]]


class AdmissionControl:
    """Connections of one listener.

    Invariant: each slot in use counts once at its listener and at its address.

    Args:
        limits: Of the listener; 0 is no limit.
        trusted: Networks of its load balancers.

    Attributes:
        queue: Connections beyond the listener's rate, None without a limit.
    """

    def __init__(self, limits: ListenerLimits, trusted: Sequence[str]) -> None:
        self._limits = limits
        self._trusted = TrustedNetworks(trusted)
        self._slots = 0
        self._by_address: dict[str, int] = {}
        self._rate_limits: dict[str, SharedRateLimit] = {}  # of addresses with connections
        self._idle: dict[str, SharedRateLimit] = {}
        self.queue: AcceptQueue[object] | None = None
        self._unlimited: list[object] = []  # were queued when the limit was removed
        self.limit(limits)

    def limit(self, limits: ListenerLimits) -> None:
        """Apply other limits; present connections stay, and count."""
        self._limits = limits
        if not limits.accept_rate_max:
            self._unlimited += self.queue.take_all() if self.queue is not None else ()
            self.queue = None
        elif self.queue is None:
            self.queue = AcceptQueue(limits.accept_rate_max)
        else:
            self.queue.set_rate(limits.accept_rate_max)
        address_rate = _buckets(limits.accept_rate_address_max)
        self._address_rate = None if address_rate is None else AddressBuckets(address_rate, self._trusted)
        for purse in (*self._rate_limits.values(), *self._idle.values()):
            purse.limit(*_together(limits))

    def purse(self, seat: ConnectionSlot) -> SharedRateLimit | None:
        """Return the rate limit of a slot's address, None without a limit."""
        rates = _together(self._limits)
        if not any(rates) or not seat.metered:
            return None
        key = address_key(seat.address)
        purse = self._rate_limits.get(key)
        if purse is None:
            known = self._idle.pop(key) if key in self._idle else SharedRateLimit(*rates)
            purse = self._rate_limits[key] = known
        return purse

    def __len__(self) -> int:
        return self._slots

    @property
    def connections_max(self) -> int:
        """Largest number of connections, 0: no limit."""
        return self._limits.connections_listener_max

    @property
    def addresses(self) -> int:
        """Number of addresses with connections."""
        return len(self._by_address)

    def is_metered(self, address: str) -> bool:
        """Return whether limits for addresses apply to one."""
        return bool(address) and address not in self._trusted

    def refusal(self, address: str, now: float) -> str:
        """Return "" and charge the address's rate, or the counter of the refusal."""
        refusal = self.number_refusal(address)
        if refusal or self._address_rate is None or not self.is_metered(address):
            return refusal
        return "" if self._address_rate.take(address, now) else ADDRESS_RATE

    def number_refusal(self, address: str) -> str:
        """Return "" if one more connection is within the limits, or the counter of the refusal."""
        limits = self._limits
        most = limits.connections_address_max
        if most and self.is_metered(address) and self._by_address.get(address_key(address), 0) >= most:
            return ADDRESS_NUMBER
        if limits.connections_listener_max and self._slots >= limits.connections_listener_max:
            return NUMBER
        return ""

    def take_due(self, now: float) -> list[object]:
        """Return the connections that are admitted now."""
        due, self._unlimited = self._unlimited, []
        return due if self.queue is None else due + self.queue.take_due(now)

    def enter(self, address: str) -> ConnectionSlot:
        """Take a slot for an admitted connection."""
        seat = ConnectionSlot(self, address, self.is_metered(address))
        self._slots += 1
        if seat.metered:
            key = address_key(address)
            self._by_address[key] = self._by_address.get(key, 0) + 1
        return seat

    def left(self, seat: ConnectionSlot) -> None:
        """Free a slot; ``ConnectionSlot.leave`` calls it once."""
        self._slots -= 1
        if not seat.metered:
            return
        key = address_key(seat.address)
        count = self._by_address[key] - 1
        if count:
            self._by_address[key] = count
            return
        del self._by_address[key]
        purse = self._rate_limits.pop(key, None)
        if purse is not None:  # a reconnect must not refill it
            self._idle[key] = purse
            if len(self._idle) > IDLE_LIMITS_MAX:
                del self._idle[next(iter(self._idle))]


def _together(limits: ListenerLimits) -> tuple[float, float, float]:
    """Return the rates of one address's clients a second: messages, bytes, filters."""
    return limits.publish_rate_address_max, limits.byte_rate_address_max, limits.subscribe_rate_address_max


def _buckets(rate: float) -> Buckets | None:
    """Return buckets of a rate with a burst of one second, None without a limit."""
    return Buckets(rate, max(1.0, rate)) if rate else None
