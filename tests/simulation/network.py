"""The simulation's network: byte streams between processes over directed links that delay, jam and break.

A stream delivers bytes in order or breaks. A *jam* holds all bytes of one direction until it is released, as TCP's
retransmissions would. A cut that heals is a jam; a half-open connection is a jam longer than a timeout. Bytes are split
at random. The network does not interpret them.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tests.simulation.scheduler import Scheduler

__all__ = ["Endpoint", "Listener", "Network"]

FINISH: None = None


class Listener(Protocol):
    """A process on the network."""

    host: str
    up: bool

    def listens(self, port: int) -> bool:
        """Whether a connection to a port is accepted now."""

    def accepted(self, end: "Endpoint", port: int) -> None:
        """Accept a connection."""


class Endpoint:
    """One end of a stream. Received bytes wait in ``inbox`` until its owner reads them."""

    __slots__ = ("_due", "_last", "eof", "host", "inbox", "network", "notify", "other", "over", "reset", "silent")

    def __init__(self, network: "Network", host: str) -> None:
        self.network = network
        self.host = host
        self.other: Endpoint = self
        self.inbox: deque[bytes] = deque()
        self.eof = False  # closed by the other side; earlier bytes are in the inbox
        self.reset = False  # broken in both directions
        self.over = False  # closed here
        self.silent = False  # the host lost its power: data is neither accepted nor refused
        self.notify: Callable[[], None] = lambda: None
        self._due: deque[tuple[float, bytes | None]] = deque()  # in flight to this end
        self._last = 0.0

    def send(self, data: bytes) -> None:
        """Write; bytes of a broken stream are lost."""
        if data and not self.over and not self.reset and not self.silent:
            self.network.scheduler.trace(f"{self.host} to {self.other.host}", data)
            self.other.coming(data)

    def close(self) -> None:
        """Close in order: written bytes arrive first."""
        if not self.over and not self.silent:
            self.over = True
            self.other.coming(FINISH)

    def abort(self) -> None:
        """Break the stream for both ends."""
        self.over = self.reset = True
        if not self.silent:
            self.network.scheduler.after(self.network.delay(self.host, self.other.host), self.other.broken)

    def broken(self) -> None:
        """Reset the stream at this end."""
        if self.silent or self.reset:
            return
        if self.network.is_jammed(self.other.host, self.host):
            self.network.wait(self.other.host, self.host, self.broken)
            return
        self.reset = True
        self._due.clear()
        self.notify()

    def coming(self, data: bytes | None) -> None:
        """Queue bytes from the other end."""
        network = self.network
        when = max(self._last, network.scheduler.now + network.delay(self.other.host, self.host))
        self._last = when
        self._due.append((when, data))
        network.scheduler.at(when, self.pump)

    def pump(self) -> None:
        """Process due bytes."""
        network = self.network
        took = False
        while self._due and self._due[0][0] <= network.scheduler.now:
            if network.is_jammed(self.other.host, self.host):
                network.wait(self.other.host, self.host, self.pump)
                return
            _, data = self._due.popleft()
            if self.silent or self.reset:
                continue
            if self.over and data:
                continue  # read and discarded, as by a lingering close
            took = True
            if data is FINISH:
                self.eof = True
            else:
                network.scheduler.trace(self.host, data)
                self.inbox.append(data)
        if took:
            self.notify()

    def read(self) -> bytes:
        """Return all or a part of the received bytes."""
        if not self.inbox:
            return b""
        data = b"".join(self.inbox)
        self.inbox.clear()
        keep = self.network.split(len(data))
        if keep:
            self.inbox.append(data[-keep:])
            data = data[:-keep]
            self.network.scheduler.after(0.0, self.notify)
        return data


class Network:
    """Reachability, delays and jams of all hosts."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, *, delay_s: float, jitter_s: float) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self.split_chance = 0.0
        self.slow: dict[tuple[str, str], float] = {}  # directed link -> extra seconds
        self.processes: dict[str, Listener] = {}
        self._jammed: dict[tuple[str, str], int] = {}  # directed link -> number of jams
        self._waiting: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._ends: dict[str, list[Endpoint]] = {}  # by host
        self.connections = 0

    # -- streams

    def connect(self, host: str, address: str, timeout_s: float, done: Callable[[Endpoint | None], None]) -> None:
        """Open a stream; ``done`` gets this side's end, or None after a refusal or the timeout."""
        target, _, port = address.rpartition(":")
        started = self.scheduler.now
        self.scheduler.after(
            self.delay(host, target) + self.delay(target, host), self._connected, host, target, int(port),
            started + timeout_s, done,
        )  # fmt: skip

    def _connected(
        self, host: str, target: str, port: int, deadline: float, done: Callable[[Endpoint | None], None]
    ) -> None:
        process = self.processes.get(target)
        unreachable = self.is_jammed(host, target) or self.is_jammed(target, host)
        if process is None or unreachable:
            if self.scheduler.now >= deadline:
                done(None)
                return
            again = min(deadline, self.scheduler.now + 0.2)  # the kernel repeats its SYN
            self.scheduler.at(again, self._connected, host, target, port, deadline, done)
            return
        if not process.up or not process.listens(port):
            done(None)
            return
        ours, theirs = Endpoint(self, host), Endpoint(self, target)
        ours.other, theirs.other = theirs, ours
        for end in (ours, theirs):
            ends = [known for known in self._ends.get(end.host, ()) if not known.reset and not known.over]
            self._ends[end.host] = [*ends, end]
        self.connections += 1
        done(ours)
        if not ours.over:
            process.accepted(theirs, port)

    def ended(self, host: str, *, silent: bool) -> None:
        """End a host's streams: a killed process resets them, a host without power is silent."""
        for end in self._ends.pop(host, ()):
            if silent:
                end.silent = True
            elif not end.reset:
                end.abort()

    def refuse_silent(self, host: str) -> None:
        """Restore a host's power: it resets unknown connections."""
        for ends in self._ends.values():
            for end in ends:
                if end.other.host == host and end.other.silent and not end.reset:
                    self.scheduler.after(self.delay(host, end.host), end.broken)

    def break_between(self, one: str, other: str) -> int:
        """Reset every stream between two hosts; return their number."""
        count = 0
        for end in self._ends.get(one, ()):
            if end.other.host == other and not end.reset:
                end.broken()
                end.other.broken()
                count += 1
        return count

    # -- links

    def delay(self, source: str, target: str) -> float:
        """Draw the delay of one write on a directed link, in seconds."""
        return self.delay_s + self.rng.expovariate(1.0) * self.jitter_s + self.slow.get((source, target), 0.0)

    def split(self, size: int) -> int:
        """Draw the number of received bytes that are delivered later."""
        if size < 2 or self.rng.random() >= self.split_chance:
            return 0
        return self.rng.randrange(1, size)

    def is_jammed(self, source: str, target: str) -> bool:
        """Whether a directed link is jammed."""
        return (source, target) in self._jammed

    def jam(self, source: str, target: str) -> None:
        """Hold all bytes of a directed link."""
        self._jammed[source, target] = self._jammed.get((source, target), 0) + 1

    def release(self, source: str, target: str) -> None:
        """End one jam; held bytes arrive in order."""
        link = (source, target)
        count = self._jammed.pop(link, 0) - 1
        if count > 0:
            self._jammed[link] = count
            return
        for call in self._waiting.pop(link, ()):
            self.scheduler.after(self.delay(source, target), call)

    def wait(self, source: str, target: str, call: Callable[[], None]) -> None:
        """Call once the link is released."""
        waiting = self._waiting.setdefault((source, target), [])
        if call not in waiting:
            waiting.append(call)

    def heal(self) -> None:
        """Release all links, at normal speed."""
        self.slow.clear()
        for link in list(self._jammed):
            self._jammed[link] = 1
            self.release(*link)
