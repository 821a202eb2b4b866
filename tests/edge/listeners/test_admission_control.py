"""Admission of new connections: rates and numbers, per address and per listener."""

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from conf.settings import ListenerSettings
from edge.clients.arrivals import Arrivals
from edge.listeners.admission_control import AdmissionControl, ConnectionSlot
from edge.listeners.listeners import EdgeListener
from edge.loop.options import FirstBytes
from edge.loop.state import LoopConnection
from tests.edge.edge_harness import Edge
from tests.patience import PATIENCE_S


def admission(trusted: tuple[str, ...] = ("127.0.0.0/8",), **limits: Any) -> AdmissionControl:
    settings = ListenerSettings(name="plain", port=0, tls=False, proxy_trusted=trusted, **limits)
    return AdmissionControl(settings, settings.proxy_trusted)


def take(admission: AdmissionControl, address: str, now: float = 0.0) -> ConnectionSlot | str:
    return admission.refusal(address, now) or admission.enter(address)


def test_default_limits_admit_all() -> None:
    free = admission()
    assert all(isinstance(take(free, "203.0.113.7"), ConnectionSlot) for _ in range(2_000)) and len(free) == 2_000


def test_address_rate_does_not_affect_other_addresses() -> None:
    listener = admission(accept_rate_address_max=50.0)
    flood = [take(listener, "203.0.113.7", at / 2_000) for at in range(2_000)]
    taken = sum(isinstance(seat, ConnectionSlot) for seat in flood)
    assert 99 <= taken <= 101 and set(map(str, flood[1_000:])) >= {"refused_accept_rate_address"}
    assert all(isinstance(take(listener, "203.0.113.8", 1.0 + at / 100), ConnectionSlot) for at in range(50))


def test_ipv6_64_counts_as_one_address() -> None:
    """An IPv4-mapped IPv6 address counts as the IPv4 address."""
    listener = admission(connections_address_max=2)
    assert isinstance(take(listener, "2001:db8::1"), ConnectionSlot) and isinstance(
        take(listener, "2001:db8::2"), ConnectionSlot
    )
    assert take(listener, "2001:db8::3") == "refused_connections_address"
    assert isinstance(take(listener, "2001:db8:0:1::1"), ConnectionSlot)
    assert isinstance(take(listener, "192.0.2.1"), ConnectionSlot) and isinstance(
        take(listener, "::ffff:192.0.2.1"), ConnectionSlot
    )
    assert take(listener, "192.0.2.1") == "refused_connections_address"


def test_slot_leave_frees_once() -> None:
    """The table of addresses becomes empty."""
    listener = admission(connections_address_max=1, connections_listener_max=2)
    first, second = take(listener, "192.0.2.1"), take(listener, "192.0.2.2")
    assert isinstance(first, ConnectionSlot) and isinstance(second, ConnectionSlot)
    assert take(listener, "192.0.2.1") == "refused_connections_address"
    assert take(listener, "192.0.2.3") == "refused_connections_listener"
    first.leave()
    first.leave()
    assert len(listener) == 1
    third = take(listener, "192.0.2.1")
    assert isinstance(third, ConnectionSlot) and take(listener, "192.0.2.3") == "refused_connections_listener"
    second.leave()
    third.leave()
    assert len(listener) == 0 and listener.addresses == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.9.9.9", ""])
def test_load_balancers_and_unknown_addresses_have_listener_limits_only(address: str) -> None:
    """Many clients share such an address."""
    listener = admission(accept_rate_address_max=1.0, connections_address_max=1, connections_listener_max=9)
    seats = [take(listener, address) for _ in range(10)]
    assert [isinstance(seat, ConnectionSlot) for seat in seats] == [True] * 9 + [False]
    assert seats[-1] == "refused_connections_listener"
    assert isinstance(seats[0], ConnectionSlot) and not seats[0].metered


def test_closed_addresses_are_removed() -> None:
    listener = admission(connections_address_max=5, accept_rate_address_max=5.0)
    for number in range(10_000):
        seat = take(listener, f"10.0.{number // 250}.{number % 250}", 0.0)
        assert isinstance(seat, ConnectionSlot)
        seat.leave()
    assert len(listener) == 0 and listener.addresses == 0


# --- at the sockets of a listener


class RestingLoop:
    """A fake owner of the sockets."""

    def __init__(self) -> None:
        self.rests: list[int] = []
        self.reads: list[LoopConnection] = []

    def rest(self, fd: int) -> None:
        self.rests.append(fd)

    def read_on(self, conn: LoopConnection) -> None:
        self.reads.append(conn)

    def share(self, fd: int) -> None:
        raise AssertionError(fd)


class Doors:
    """A listener of an edge on a real socket, without a running loop."""

    def __init__(self, listener: EdgeListener, places_max: int) -> None:
        self.edge = Edge()
        self.listener = listener
        core = self.edge.core
        self.loop = RestingLoop()
        actors = core.node, core.hot, self.loop, core.clients, core.conduct
        self.arrivals = Arrivals(*actors, [listener], lambda: self.edge.now, places_max)

    def connect(self, first: bytes = b"", source: str = "") -> socket.socket:
        ours = socket.create_connection(self.listener.socket.getsockname(), timeout=PATIENCE_S)
        if first:
            ours.sendall(first)
        accepted, peer = self.listener.socket.accept()
        self.arrivals.accept(self.listener, accepted.detach(), source or peer[0], peer[1])
        return ours

    def header_came(self) -> int:
        """Read the PROXY header of the newest connection; return its state."""
        client = max(self.edge.core.clients.all(), key=lambda client: client.number)
        assert client.first_bytes is not None
        assert select.select([client.conn.fd], [], [], 10)[0]
        state = client.first_bytes.read(client.conn.fd)
        if state == FirstBytes.ENDED:
            self.edge.core.closed(client.conn, 1)
            os.close(client.conn.fd)
        return state

    def end(self) -> None:
        for client in self.edge.core.clients.all():
            self.edge.core.closed(client.conn, 0)
            os.close(client.conn.fd)


@contextlib.contextmanager
def doors(places_max: int = 16_384, **settings: Any) -> Iterator[Doors]:
    listener = EdgeListener(ListenerSettings(name="plain", port=0, tls=False, **settings))
    with listener.socket:
        listener.open()
        yield Doors(listener, places_max)


def is_closed(ours: socket.socket) -> bool:
    try:
        return ours.recv(1) == b""
    except ConnectionResetError:
        return True


def test_refused_connection_is_closed_without_response() -> None:
    """It is not read, no client is created, and the reason is counted."""
    with doors(connections_address_max=2) as door:
        taken = [door.connect() for _ in range(2)]
        refused = door.connect(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        assert is_closed(refused) and len(door.edge.core.clients) == 2
        assert door.edge.core.counts["refused_connections_address"] == 1
        door.end()
        assert len(door.listener.admission) == 0
        for sock in (*taken, refused, door.connect()):
            sock.close()
        assert len(door.edge.core.clients) == 1
        door.end()


def test_proxy_trusted_without_header_exempts_no_address() -> None:
    """Loopback is the default of ``proxy_trusted``."""
    with doors(connections_address_max=1) as door:
        taken, refused = door.connect(), door.connect()
        assert is_closed(refused) and door.edge.core.counts["refused_connections_address"] == 1
        assert door.listener.policy.unmetered == () and len(door.listener.admission) == 1
        door.end()
        for sock in (taken, refused):
            sock.close()
    with doors(connections_address_max=1, proxy_protocol="v2") as door:
        local = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00\x10"
        socks = [door.connect(local)]
        assert door.header_came() == FirstBytes.DONE
        socks.append(door.connect(local))
        assert door.header_came() == FirstBytes.DONE
        seats = [client.first_bytes.seat for client in door.edge.core.clients.all() if client.first_bytes is not None]
        assert [seat.address for seat in seats if isinstance(seat, ConnectionSlot)] == [
            "127.0.0.1"
        ] * 2  # the real endpoint
        door.end()
        for sock in socks:
            sock.close()


def test_proxy_header_address_is_checked() -> None:
    """Before the handshake; the load balancer and its health checks do not count."""
    with doors(accept_rate_address_max=1.0, connections_address_max=1, proxy_protocol="v1") as door:
        socks, states = [], []
        for name in ("203.0.113.7", "203.0.113.7", "203.0.113.8", "127.0.0.1", "127.0.0.1"):
            socks.append(door.connect(f"PROXY TCP4 {name} 192.0.2.9 5555 1883\r\n\x10".encode()))
            states.append(door.header_came())
        socks.append(door.connect(b"PROXY UNKNOWN\r\n\x10"))
        states.append(door.header_came())
        done, ended = FirstBytes.DONE, FirstBytes.ENDED
        assert states == [done, ended, done, done, done, done]
        assert door.edge.core.counts["refused_connections_address"] == 1 and len(door.listener.admission) == 5
        check = door.connect(b"")
        check.close()
        assert door.header_came() == ended and len(door.listener.admission) == 5
        door.end()
        assert len(door.listener.admission) == 0
        for sock in socks:
            sock.close()


def test_connection_beyond_rate_is_queued_fairly() -> None:
    """It is attached in order although others keep connecting; late or closed ones are closed unread."""
    with doors(accept_rate_max=2.0) as door:
        first = [door.connect(source="203.0.113.7") for _ in range(4)]  # two halves with a token each
        assert len(door.edge.core.clients) == 2 and door.arrivals.waiting() == {("plain",): 2.0}
        newcomer = door.connect(source="203.0.113.8")
        assert door.arrivals.next_deadline() == pytest.approx(door.edge.now + 1.0)
        door.edge.now += 1.1
        door.arrivals.step(door.edge.now)
        addresses = [client.seat.address for client in door.edge.core.clients.all() if client.seat is not None]
        assert addresses.count("203.0.113.8") == 1  # before the second one of the other address
        first[3].close()
        door.edge.now += 1.0
        door.arrivals.step(door.edge.now)
        assert door.edge.core.counts["accept_gone"] == 1
        door.listener.admission.queue.set_rate(1e-3)  # type: ignore[union-attr]
        others = [door.connect(source=f"198.51.100.{number}") for number in range(3)]
        door.edge.now += 5.0
        door.arrivals.step(door.edge.now)
        assert door.edge.core.counts["refused_accept_late"] == 1 and is_closed(others[2])
        door.end()
        for sock in (*first, newcomer, *others):
            sock.close()


def test_proxied_connection_beyond_rate_is_queued() -> None:
    """It is attached, and read no further until it is released."""
    with doors(accept_rate_max=2.0, proxy_protocol="v1") as door:
        socks = []
        for _ in range(2):
            socks.append(door.connect(b"PROXY TCP4 203.0.113.7 192.0.2.9 5555 1883\r\n\x10"))
            assert door.header_came() == FirstBytes.DONE
        socks.append(door.connect(b"PROXY TCP4 203.0.113.7 192.0.2.9 5555 1883\r\n\x10"))
        assert door.header_came() == FirstBytes.WAITS and not door.loop.reads
        door.edge.now += 1.1
        door.arrivals.step(door.edge.now)
        assert len(door.loop.reads) == 1 and door.header_came() == FirstBytes.DONE
        door.end()
        assert len(door.listener.admission) == 0
        for sock in socks:
            sock.close()


def test_new_connections_displace_silent_unauthenticated_ones() -> None:
    """Authentication frees the place."""
    with doors(places_max=8) as door:
        silent = [door.connect(source=f"203.0.113.{number}") for number in range(4)]
        newcomers = [door.connect(source=f"198.51.100.{number}") for number in range(4)]
        assert len(door.arrivals.pool) == 4 and door.arrivals.pool.counts == {"displaced_silent": 4}
        seats = [client.seat for client in door.edge.core.clients.all() if client.seat is not None]
        authenticated = next(seat for seat in seats if seat.address == "198.51.100.0")
        authenticated.authenticated("ann", door.edge.now)
        assert len(door.arrivals.pool) == 3 and door.arrivals.known.knows("198.51.100.0", door.edge.now)
        door.end()
        assert len(door.arrivals.pool) == 0
        for sock in (*silent, *newcomers):
            sock.close()
