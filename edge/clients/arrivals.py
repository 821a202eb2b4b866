"""Connections of clients from accept until they are attached: admission, queueing and refusal.

| a new connection | result |
|---|---|
| of an address with failed logins, or beyond a limit of its address | closed, counted by its reason |
| within the listener's rate | is attached |
| beyond it | is queued unread, fairly by address (``edge/listeners/accept_queue.py``), then attached |
| queued longer than 5 s, or the newest one of the address with most queued | closed, counted |

Between attachment and authentication a connection has a place in the pool ``edge_clients`` (``conf/admission.py``): a
newer connection may displace it. Behind a load balancer all of that follows the PROXY header, which names the address.
This module closes sockets; the parts named above decide.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from conf.addresses import address_key
from conf.admission import POOLS, AdmissionPool, KnownAddresses
from edge.clients.abuse_limits import AbuseLimits
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.listeners.admission_control import WAITS, ConnectionSlot
from edge.listeners.listeners import EdgeListener, has_received, is_gone, peer_of
from edge.listeners.proxied_socket import ProxiedSocket
from edge.loop.options import ConnOptions
from edge.loop.state import CLIENT, LoopConnection
from edge.node.node import NS, EdgeNode

__all__ = ["Arrivals"]

REFUSED_MAX = 1_000  # connections beyond connections_max that may be pending for their CONNACK 0x89
FULL, LATE, CLOSED_EARLY = "refused_accept_rate", "refused_accept_late", "accept_gone"  # counters
CONNECTIONS_FULL, PLACES_FULL = "connections_refused", "refused_unauthenticated"


class ArrivalSockets(Protocol):
    """Attaches and closes connections."""

    def attach(self, fd: int, kind: int, options: ConnOptions, now_ns: int) -> LoopConnection:
        """Attach a connected socket."""

    def close(self, conn: LoopConnection, last: bytes = b"", linger: bool = True) -> None:
        """Close a connection."""


class AcceptLoop(Protocol):
    """Socket operations of the loop."""

    def rest(self, fd: int) -> None:
        """Stop accepting on a listener until the next sweep."""

    def read_on(self, conn: LoopConnection) -> None:
        """Read the first bytes of a queued connection."""

    def share(self, fd: int) -> None:
        """Mark a socket as possibly shared with another process."""


class _Arrival:
    """A connection that is not attached, or is attached with its PROXY header read."""

    __slots__ = ("address", "client", "fd", "listener", "port", "shared", "waited_s")

    def __init__(self, listener: EdgeListener, fd: int, address: str, port: int, waited_s: float, shared: bool) -> None:
        self.listener, self.fd, self.address, self.port = listener, fd, address, port
        self.waited_s, self.shared = waited_s, shared
        self.client: Client | None = None  # behind a PROXY header


class Arrivals:
    """Arriving connections of one edge.

    Args:
        node: This edge.
        hot: Attaches and closes connections.
        loop: Owns their sockets.
        clients: The attached connections.
        conduct: Checks addresses.
        listening: Listeners with queues.
        clock: Boot time.
        places_max: Largest number of places of unauthenticated connections.

    Attributes:
        pool: The places.
        known: Addresses of users that authenticated here within a day.
    """

    def __init__(
        self,
        node: EdgeNode,
        hot: ArrivalSockets,
        loop: AcceptLoop,
        clients: Clients,
        conduct: AbuseLimits,
        listening: Sequence[EdgeListener],
        clock: Callable[[], float],
        places_max: int = POOLS["edge_clients"].places_max,
    ) -> None:
        self._node, self._hot, self._loop, self._clients, self._conduct = node, hot, loop, clients, conduct
        self._listening, self._clock = listening, clock
        self.known = KnownAddresses()
        bounds = POOLS["edge_clients"]
        bounds = bounds._replace(places_max=min(bounds.places_max, places_max))
        self.pool: AdmissionPool[ConnectionSlot] = AdmissionPool(bounds, self._is_known_address, _has_sent)

    def accept(
        self, listener: EdgeListener, fd: int, address: str, port: int, waited_s: float = 0.0, shared: bool = False
    ) -> bool:
        """Queue or attach a client's connection, or close it.

        Args:
            listener: The accepting listener.
            fd: Its descriptor.
            address: Of its other end; ignored behind a load balancer.
            port: Likewise, 0 if unknown.
            waited_s: Time since its accept in another process.
            shared: Another process may have the socket too.

        Returns:
            False if it was closed.
        """
        newcomer = _Arrival(listener, fd, address, port, waited_s, shared)
        if listener.proxy_admission is None:
            refusal, seat = self._check_admission(newcomer)
            if refusal == WAITS:
                return True
            return self._refuse(newcomer, refusal) if refusal else self._attach(newcomer, seat)
        refusal = listener.proxy_admission.trusted.refusal(fd)
        if not refusal and self._is_full():
            refusal = CONNECTIONS_FULL
        return self._refuse(newcomer, refusal) if refusal else self._attach(newcomer, None)

    # --- queued connections: a part of edge/access.py

    def step(self, now: float) -> None:
        """Attach the connections that are due, and close those that were queued too long."""
        for listener in self._listening:
            admission = listener.admission
            for newcomer in admission.take_due(now):
                assert isinstance(newcomer, _Arrival)
                self._admit_queued(newcomer)
            for newcomer in admission.queue.take_late(now) if admission.queue is not None else ():
                assert isinstance(newcomer, _Arrival)
                self._close_queued(newcomer, LATE)

    def next_deadline(self) -> float:
        """Return when the next connection may be attached."""
        now = self._node.now
        queues = [each.admission.queue for each in self._listening if each.admission.queue]
        return min((now + queue.wait_s(now) for queue in queues if queue is not None), default=float("inf"))

    def waiting(self) -> dict[tuple[str, ...], float]:
        """Return how many connections wait, by listener."""
        return {(each.policy.name,): float(len(each.admission.queue or ())) for each in self._listening}

    # --- one connection

    def _check_admission(self, newcomer: _Arrival) -> tuple[str, ConnectionSlot | None]:
        """Return ("", its slot), (counter of the refusal, None) or (WAITS, None)."""
        admission, address, now = newcomer.listener.admission, newcomer.address, self._node.now
        refusal = self._conduct.refusal(admission, address, secure=newcomer.listener.context is not None)
        if refusal:
            return refusal, None
        queue = admission.queue
        if queue is None:
            return self._take_slot(newcomer)
        shown = address if admission.is_metered(address) else ""
        key, known = address_key(shown), self._is_known_address(shown, now)
        if queue.try_admit(now, key, known=known):
            return self._take_slot(newcomer)
        closed = queue.add(now, key, newcomer, known=known)
        self._node.wake()
        if queue.is_full:
            self._loop.rest(newcomer.listener.socket.fileno())
        if closed is newcomer:
            return FULL, None
        if closed is not None:
            assert isinstance(closed, _Arrival)
            self._close_queued(closed, FULL)
        return WAITS, None

    def _take_slot(self, newcomer: _Arrival) -> tuple[str, ConnectionSlot | None]:
        """Take a connection slot, and a place among the unauthenticated connections."""
        seat = newcomer.listener.admission.enter(newcomer.address)
        crowded = newcomer.client is None and self._is_full()
        place, displaced = self.pool.admit(self._node.now, seat.address if seat.metered else "", seat, crowded=crowded)
        if displaced is not None and displaced.owner.conn is not None:
            self._hot.close(displaced.owner.conn, linger=False)
        if place is None:
            seat.leave()
            return CONNECTIONS_FULL if crowded else PLACES_FULL, None
        seat.await_login(place, self.known)
        if newcomer.client is not None:
            seat.conn = newcomer.client.conn
            place.heard()
        return "", seat

    def _admit_queued(self, newcomer: _Arrival) -> None:
        """Attach a queued connection that is due."""
        client, seat = newcomer.client, None
        if client is not None and (client.conn.closed or client.first_bytes is None or not client.first_bytes.waits):
            return  # closed meanwhile
        refusal = newcomer.listener.admission.number_refusal(newcomer.address)
        if client is None and is_gone(newcomer.fd):
            refusal = CLOSED_EARLY
        if not refusal:
            refusal, seat = self._take_slot(newcomer)
        if refusal:
            self._close_queued(newcomer, refusal)
        elif client is None:
            self._attach(newcomer, seat)
        elif client.first_bytes is not None:
            client.first_bytes.judged("", seat)
            self._loop.read_on(client.conn)

    def _attach(self, newcomer: _Arrival, seat: ConnectionSlot | None) -> bool:
        """Attach a connection; without a slot it gets one after its PROXY header."""
        listener, limits = newcomer.listener, self._node.limits
        first_bytes: ProxiedSocket | None = None
        if listener.proxy_admission is not None:
            first_bytes = listener.proxy_admission.begin(partial(self._address_received, newcomer))
        stream_filter = listener.filter(limits.maximum_packet_size, newcomer.fd)
        options = ConnOptions(
            packet_bytes_max=limits.unauthenticated_bytes_max,
            connect_timeout_ns=int(max(0.001, limits.connect_timeout_s - newcomer.waited_s) * NS),
            first_packet_ns=int(limits.connect_packet_timeout_s * NS),
            tls=listener.context,
            filter=stream_filter,
            first_bytes=first_bytes,
        )
        conn = self._hot.attach(newcomer.fd, CLIENT, options, int(self._clock() * NS))
        client = Client(conn, listener.policy, stream_filter, first_bytes)
        conn.context = client
        self._clients.adopt(client)
        client.seat, client.port = seat, newcomer.port
        if seat is not None:
            seat.conn = conn
        else:
            newcomer.client = client
        if newcomer.shared:
            self._loop.share(newcomer.fd)
        return True

    def _address_received(self, newcomer: _Arrival, named: str) -> tuple[str, ConnectionSlot | None]:
        """Admit a client by the address of its PROXY header."""
        newcomer.address = named or peer_of(newcomer.fd)
        return self._check_admission(newcomer)

    def _refuse(self, newcomer: _Arrival, refusal: str) -> bool:
        os.close(newcomer.fd)
        self._node.count(refusal)
        return False

    def _close_queued(self, newcomer: _Arrival, refusal: str) -> None:
        """Close a queued connection."""
        if newcomer.client is None:
            self._refuse(newcomer, refusal)
            return
        proxied = newcomer.client.first_bytes
        assert proxied is not None
        if proxied.waits and not newcomer.client.conn.closed:
            proxied.judged(refusal, None)  # counted when the connection is closed
            self._hot.close(newcomer.client.conn, linger=False)

    def _is_full(self) -> bool:
        """Return whether the edge has no capacity even for CONNACK 0x89."""
        return len(self._clients) >= self._node.limits.connections_max + REFUSED_MAX

    def _is_known_address(self, address: str, now: float) -> bool:
        """Return whether an address is known; "" means a load balancer of the listener."""
        return not address or self.known.knows(address, now)


def _has_sent(seat: ConnectionSlot) -> bool:
    return seat.conn is not None and has_received(seat.conn.fd)
