"""A proxy in user space that applies network faults to TCP and UDP links.

It is the tests' only method of breaking links, and needs neither root nor kernel modules. One proxy is one link;
its two directions fail separately. It is controlled in process by its methods, or from outside by
``fault_control.py``. ``faults.py`` defines the faults.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from tests.chaos.faults import Direction, damaged, datagram_delays_s, latency_s

CHUNK_BYTES = 16_384
QUEUE_BYTES_MAX = 1 << 20  # per direction of a connection; then the sender is not read: as a full pipe
DATAGRAMS_MAX = 10_000  # on their way per direction; more are lost, and counted
PEERS_MAX = 256  # senders that one UDP proxy keeps a way back for
UDP_BYTES_MAX = 65_535
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST

Address = tuple[str, int]

__all__ = ["FaultProxy", "TcpFaultProxy", "UdpFaultProxy"]


class FaultProxy:
    """The common part of TCP and UDP proxies: two directions and a port."""

    def __init__(self, target: Address, seed: int, name: str = "link") -> None:
        self.target, self.seed, self.name = target, seed, name
        self.port = 0
        self.to_server, self.to_client = Direction(), Direction()
        self.counters: Counter[str] = Counter()

    async def run(
        self, host: str = "127.0.0.1", port: int = 0, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and forward until cancelled; report the port."""
        raise NotImplementedError

    def cut(self) -> None:
        """Hold both directions, as in a partition."""
        self.to_server.set(hold=True)
        self.to_client.set(hold=True)

    def heal(self) -> None:
        """Be a healthy link again; held bytes go on, streams with gaps are reset."""
        self.to_server.heal()
        self.to_client.heal()

    def reset(self) -> None:
        """End every connection with RST, on both sides."""

    def half_open(self) -> None:
        """Let the server's side vanish without a word to the client: no FIN, no RST, no answer."""

    def stats(self) -> dict[str, int]:
        total = Counter(self.counters)
        for direction_name in ("to_server", "to_client"):
            direction: Direction = getattr(self, direction_name)
            total.update({f"{direction_name}.{what}": n for what, n in direction.counters.items()})
        return dict(sorted(total.items()))

    def _rng(self, place: str) -> random.Random:
        return random.Random(f"{self.seed}/{self.name}/{place}")


class TcpFaultProxy(FaultProxy):
    """One listening port, one target, any number of connections."""

    def __init__(self, target: Address, seed: int, name: str = "link") -> None:
        super().__init__(target, seed, name)
        self._pairs: list[_Pair] = []
        self._accepted = 0

    async def run(
        self, host: str = "127.0.0.1", port: int = 0, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        listeners = await trio.open_tcp_listeners(port, host=host)
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started(self.port)
        await trio.serve_listeners(self._serve, listeners)

    def heal(self) -> None:
        super().heal()
        for pair in list(self._pairs):
            if pair.gaps or pair.orphan:
                pair.reset()

    def reset(self) -> None:
        for pair in list(self._pairs):
            pair.reset()

    def half_open(self) -> None:
        for pair in list(self._pairs):
            if pair.server is not None:
                pair.orphan = True
                _abort(pair.server)
                self.counters["half_open"] += 1

    async def _serve(self, client: trio.SocketStream) -> None:
        self._accepted += 1
        self.counters["accepted"] += 1
        pair = _Pair(client, self._accepted)
        self._pairs.append(pair)
        try:
            with pair.scope:
                # A cut link connects no client: the kernel has answered its SYN, and silence follows.
                await _passable(self.to_server)
                pair.server = await trio.open_tcp_stream(*self.target)
                await self._forward(pair, pair.server)
        except OSError:
            pair.reset()  # the target's port is closed
        finally:
            self._pairs.remove(pair)
            self.counters["resets"] += pair.was_reset
            for stream in (pair.client, pair.server):
                if stream is not None:
                    await trio.aclose_forcefully(stream)

    async def _forward(self, pair: _Pair, server: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            for source, sink, direction, name in (
                (pair.client, server, self.to_server, "to_server"),
                (server, pair.client, self.to_client, "to_client"),
            ):
                pipe = _Pipe(pair, source, sink, direction, self._rng(f"{pair.number}/{name}"))
                nursery.start_soon(pipe.read)
                nursery.start_soon(pipe.write)


@dataclass(slots=True, eq=False)
class _Pair:
    """The two sides of one connection."""

    client: trio.SocketStream
    number: int
    server: trio.SocketStream | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    gaps: bool = False  # bytes were thrown away
    orphan: bool = False  # the server's side has vanished
    was_reset: bool = False

    def reset(self) -> None:
        self.was_reset = True
        for stream in (self.client, self.server):
            if stream is not None:
                _linger_none(stream)
        self.scope.cancel()  # closing is done by the task that serves the pair


class _Pipe:
    """One direction of one connection: read, keep for the delay, write."""

    def __init__(
        self,
        pair: _Pair,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        direction: Direction,
        rng: random.Random,
    ) -> None:
        self._pair, self._source, self._sink, self._direction, self._rng = pair, source, sink, direction, rng
        self._queue: deque[tuple[float, bytes]] = deque()  # (due, data); b"" is the end of the stream
        self._queued_bytes = 0
        self._moved = trio.Event()  # the queue changed

    async def read(self) -> None:
        due = 0.0
        while True:
            while self._direction.faults.stop_reading or self._queued_bytes >= QUEUE_BYTES_MAX:
                await _either(self._direction.changed, self._moved)
            try:
                data = await self._source.receive_some(CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self._source_broke()
                return
            faults = self._direction.faults
            due = max(due, trio.current_time() + latency_s(faults, self._rng))
            self._queue.append((due, damaged(data, faults, self._rng)))
            self._queued_bytes += len(data)
            self._notify()
            if not data:
                return

    async def write(self) -> None:
        while True:
            while not self._queue:
                await self._moved.wait()
            due, data = self._queue[0]
            await trio.sleep_until(due)
            if not data:
                await _passable(self._direction)
                await self._end_of_stream()
                return
            if not await self._pass_on(data):
                return
            self._queue.popleft()
            self._queued_bytes -= len(data)
            self._notify()

    async def _pass_on(self, data: bytes) -> bool:
        """Write a chunk as the faults allow; return False when the other side is gone."""
        while data:
            faults = self._direction.faults
            if faults.drop:
                self._pair.gaps = True
                self._direction.counters["dropped_bytes"] += len(data)
                return True
            if faults.hold or faults.byte_budget == 0:
                if faults.reset_at_budget and faults.byte_budget == 0:
                    self._pair.reset()
                await self._direction.changed.wait()
                continue
            part = data[: self._direction.spend(len(data))]
            try:
                await self._sink.send_all(part)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if not self._pair.orphan:
                    self._pair.reset()
                return False
            self._direction.counters["bytes"] += len(part)
            if faults.bytes_per_s:
                await trio.sleep(len(part) / faults.bytes_per_s)
            data = data[len(part) :]
        return True

    async def _end_of_stream(self) -> None:
        try:
            await self._sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if not self._pair.orphan:
                self._pair.reset()

    async def _source_broke(self) -> None:
        """Hand a reset on, once the link lets it through."""
        if self._pair.orphan:
            return
        await _passable(self._direction)
        self._pair.reset()

    def _notify(self) -> None:
        self._moved.set()
        self._moved = trio.Event()


class UdpFaultProxy(FaultProxy):
    """One port towards the clients, and towards the target one socket per client, so that answers find their way."""

    async def run(
        self, host: str = "127.0.0.1", port: int = 0, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        front = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with front:
            await front.bind((host, port))
            self.port = front.getsockname()[1]
            task_status.started(self.port)
            async with trio.open_nursery() as nursery:
                await self._serve_front(front, nursery)

    async def _serve_front(self, front: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        backs: dict[Address, trio.socket.SocketType] = {}
        flights: dict[Address, _Flight] = {}
        while True:
            data, sender = await front.recvfrom(UDP_BYTES_MAX)
            if sender not in backs:
                if len(backs) >= PEERS_MAX:
                    self.counters["refused_peers"] += 1
                    continue
                back = backs[sender] = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                await back.connect(self.target)
                number = len(backs)
                flights[sender] = _Flight(self.to_server, self._rng(f"{number}/to_server"), nursery, back.send)
                nursery.start_soon(self._serve_back, back, front, sender, number, nursery)
            flights[sender].launch(data)

    async def _serve_back(
        self,
        back: trio.socket.SocketType,
        front: trio.socket.SocketType,
        sender: Address,
        number: int,
        nursery: trio.Nursery,
    ) -> None:
        rng = self._rng(f"{number}/to_client")
        flight = _Flight(self.to_client, rng, nursery, partial(_send_to, front, sender))
        with back:
            while True:
                try:
                    data = await back.recv(UDP_BYTES_MAX)
                except ConnectionRefusedError:  # the target's port is closed, and may open later
                    continue
                flight.launch(data)


class _Flight:
    """Datagrams of one sender in one direction, on their way."""

    def __init__(
        self,
        direction: Direction,
        rng: random.Random,
        nursery: trio.Nursery,
        send: Callable[[bytes], Awaitable[object]],
    ) -> None:
        self._direction, self._rng, self._nursery, self._send = direction, rng, nursery, send
        self._flying = 0

    def launch(self, data: bytes) -> None:
        """Throw the dice for one datagram and send off its copies."""
        direction = self._direction
        delays = datagram_delays_s(direction.faults, self._rng)
        data = damaged(data, direction.faults, self._rng)
        if not delays:
            direction.counters["lost"] += 1
        direction.counters["duplicated"] += len(delays) > 1
        for delay_s in delays:
            if self._flying >= DATAGRAMS_MAX:
                direction.counters["overflowed"] += 1
                continue
            self._flying += 1
            self._nursery.start_soon(self._fly, data, delay_s, trio.current_time())

    async def _fly(self, data: bytes, delay_s: float, launched: float) -> None:
        if delay_s:
            await trio.sleep_until(launched + delay_s)
        self._flying -= 1
        try:
            await self._send(data)
        except OSError:
            self._direction.counters["unreachable"] += 1
        else:
            self._direction.counters["datagrams"] += 1


async def _send_to(front: trio.socket.SocketType, address: Address, data: bytes) -> None:
    await front.sendto(data, address)


async def _passable(direction: Direction) -> None:
    while direction.faults.hold or direction.faults.drop or direction.faults.byte_budget == 0:
        await direction.changed.wait()


async def _either(first: trio.Event, second: trio.Event) -> None:
    """Return when one of two events is set."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)


def _linger_none(stream: trio.SocketStream) -> None:
    try:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    except OSError:
        pass  # already closed


def _abort(stream: trio.SocketStream) -> None:
    """Close at once, with RST towards that side alone."""
    _linger_none(stream)
    stream.socket.close()
