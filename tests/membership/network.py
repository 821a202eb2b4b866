"""A cluster of SWIM cores on a virtual clock and a hostile network, all from one seed.

Datagrams are delayed, lost, doubled and reordered; links can be cut in one direction; members can be killed, restarted,
or blocked for a while (a stopped or starved process: its packets wait, its timers fire late, as in a real shell).
Exchanges over TCP are modelled as three one-way trips that wait for a blocked process up to the profile's timeout.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from membership.envelope import Envelope
from membership.events import (
    ExchangeFailed,
    Input,
    MessagesReceived,
    NodeEvent,
    OutgoingDatagram,
    RecordsReceived,
    SeedsResolved,
    StateExchange,
    SwimTick,
)
from membership.keyring import KeyRing
from membership.metadata import NodeMetadata
from membership.packets import Address, MemberRecord, decode_records, encode_records
from membership.profiles import LAN, Profile
from membership.swim import Swim

__all__ = ["Network", "SimMember", "Simulation"]

EVENTS_MAX = 5_000_000  # a run with more events is an endless loop
INBOX_MAX = 2048  # packets a blocked process has in its socket buffer
BATCH = 64  # packets that the shell receives before it checks its timers
KEY = bytes(range(32))


class PlainEnvelope(Envelope):
    """Addressing and replay protection without the cipher, which costs most of a simulation's time."""

    def seal(self, content: bytes, channel: bytes) -> bytes:  # noqa: ARG002
        return content

    def _open(self, data: bytes, channel: bytes) -> bytes:  # noqa: ARG002
        return data


@dataclass
class Network:
    """Faults of the network."""

    loss: float = 0.0
    delay_s: tuple[float, float] = (0.0002, 0.002)
    duplicate: float = 0.0
    reorder: float = 0.0  # share of packets that are delayed ten times the longest delay
    cut: set[tuple[int, int]] = field(default_factory=set)  # (from, to) by member number
    tcp: bool = True


class SimMember:
    """One process: its core, its envelope and its inbox."""

    def __init__(self, simulation: "Simulation", number: int, process_incarnation: int) -> None:
        self.number = number
        self.name = f"n{number:03d}"
        self.address: Address = ("10.0.0.1", 1000 + number)
        rng = Random(f"{simulation.seed}/{number}/{process_incarnation}")
        metadata = NodeMetadata(self.name, "storage", process_incarnation, {"links": f"10.0.0.1:{2000 + number}"})
        session = rng.getrandbits(62)
        now = simulation.now
        self.swim = Swim(metadata, self.address, session, process_incarnation, simulation.profile, rng, now)
        envelope = Envelope if simulation.sealed else PlainEnvelope
        self.envelope = envelope("sim", session, KeyRing([KEY]), self.swim.members, rng.randbytes)
        self.running = True
        self.blocked_until = 0.0  # a stopped process: no code runs
        self.stalled_until = 0.0  # timers run, packets neither leave nor arrive: the slow member of Lifeguard
        self.inbox: deque[bytes] = deque(maxlen=INBOX_MAX)
        self.next_tick = inf
        self.wake_at = inf
        self.sent = 0
        self.sent_bytes = 0


class Simulation:
    """N members, one seed."""

    def __init__(
        self,
        seed: int,
        members: int,
        profile: Profile = LAN,
        network: Network | None = None,
        *,
        sealed: bool = False,
        stagger_s: float = 0.05,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.profile = profile
        self.network = network or Network()
        self.sealed = sealed
        self.now = 0.0
        self.members: list[SimMember] = []
        self.events: list[tuple[float, int, NodeEvent]] = []  # time, observer, event
        self.capture: list[tuple[Address, bytes]] | None = None
        self.counts: Counter[str] = Counter()
        self._heap: list[tuple[float, int, tuple]] = []  # type: ignore[type-arg]
        self._order = count()
        self._steps = 0
        for number in range(members):
            self.at(number * stagger_s, self.start, number)

    # The clock

    def at(self, when: float, action, *arguments) -> None:  # type: ignore[no-untyped-def]
        """Schedule a call at a virtual time."""
        heappush(self._heap, (when, next(self._order), (action, *arguments)))

    def run(self, until: float) -> None:
        """Advance the virtual time."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, (action, *arguments) = heappop(self._heap)
            self._steps += 1
            assert self._steps < EVENTS_MAX, f"seed={self.seed}: the simulation spins at {self.now}"
            action(*arguments)
        self.now = until

    # Members

    def start(self, number: int, process_incarnation: int = 1) -> SimMember:
        """Start, or restart, a member; the first three are the seeds of all."""
        member = SimMember(self, number, process_incarnation)
        if number < len(self.members):
            self.members[number].running = False
            self.members[number] = member
        else:
            self.members.append(member)
        self._handle(member, SeedsResolved(tuple(("10.0.0.1", 1000 + seed) for seed in range(3))))
        return member

    def kill(self, number: int) -> None:
        """End a process without a leave."""
        self.members[number].running = False

    def block(self, number: int, seconds: float) -> None:
        """Stop a process for a while."""
        member = self.members[number]
        member.blocked_until = max(member.blocked_until, self.now + seconds)
        self._wake_later(member)

    def stall(self, number: int, seconds: float) -> None:
        """Hold a member's packets in both directions while its timers run (Lifeguard section V.A).

        The member is blocked before each send and after each receive.
        """
        member = self.members[number]
        member.stalled_until = max(member.stalled_until, self.now + seconds)
        self.at(member.stalled_until, self._wake, member)

    def command(self, number: int, event: Input) -> None:
        """Pass an event to a core, like its service."""
        self._handle(self.members[number], event)

    def cut(self, left: set[int], right: set[int], *, both_ways: bool = True) -> None:
        """Cut the links from one set to another."""
        for one in left:
            for other in right:
                self.network.cut.add((one, other))
                if both_ways:
                    self.network.cut.add((other, one))

    def heal(self) -> None:
        """Restore all links."""
        self.network.cut.clear()

    def states_of(self, number: int) -> dict[int, str]:
        """Return the state of one member at every running observer: observer -> state."""
        name = f"n{number:03d}"
        seen: dict[int, str] = {}
        for member in self.members:
            if member.running and member.number != number:
                known = member.swim.members.get(name)
                seen[member.number] = known.state if known else "unknown"
        return seen

    @property
    def converged(self) -> bool:
        """Return whether every running member considers exactly the running members alive."""
        running = {member.name for member in self.members if member.running}
        return all(
            {view.name for view in member.swim.views() if view.state == "alive"} == running
            for member in self.members
            if member.running
        )

    def run_until_converged(self, limit: float, step: float = 0.05) -> float:
        """Advance until all members agree; return the time, or infinity at the limit."""
        while self.now < limit:
            self.run(self.now + step)
            if self.converged:
                return self.now
        return inf

    # One member

    def _handle(self, member: SimMember, event: Input) -> None:
        ready = member.swim.handle(self.now, event)
        for message in ready.messages:
            self._send(member, message)
        for exchange in ready.exchanges:
            self._exchange(member, exchange)
        self.events.extend((self.now, member.number, told) for told in ready.events)
        member.next_tick = ready.next_deadline
        if ready.next_deadline < inf:
            self.at(max(self.now, ready.next_deadline), self._tick, member)

    def _tick(self, member: SimMember) -> None:
        if not member.running or member.next_tick > self.now:
            return
        if member.blocked_until > self.now:
            self._wake_later(member)
            return
        self._handle(member, SwimTick())

    def _wake_later(self, member: SimMember) -> None:
        if member.wake_at != member.blocked_until:
            member.wake_at = member.blocked_until
            self.at(member.wake_at, self._wake, member)

    def _wake(self, member: SimMember) -> None:
        if member.blocked_until > self.now:
            self._wake_later(member)
            return
        member.wake_at = inf
        if member.stalled_until > self.now:
            self._tick(member)
            return
        while member.inbox and member.running:
            for _ in range(min(BATCH, len(member.inbox))):
                self._open(member, member.inbox.popleft())
            self._tick(member)
        self._tick(member)

    # The network

    def _number(self, address: Address) -> int:
        return address[1] - 1000

    def _send(self, sender: SimMember, message: OutgoingDatagram) -> None:
        if sender.stalled_until > self.now:
            self.at(sender.stalled_until, self._send, sender, message)
            return
        data = sender.envelope.seal_datagram(message.recipient_session, message.body)
        sender.sent += 1
        sender.sent_bytes += len(data)
        if self.capture is not None:
            self.capture.append((message.address, data))
        network, rng = self.network, self.rng
        if (sender.number, self._number(message.address)) in network.cut:
            return
        copies = 2 if network.duplicate and rng.random() < network.duplicate else 1
        for _ in range(copies):
            if network.loss and rng.random() < network.loss:
                continue
            delay_s = rng.uniform(*network.delay_s)
            if network.reorder and rng.random() < network.reorder:
                delay_s += 10 * network.delay_s[1]
            self.at(self.now + delay_s, self.deliver, message.address, data)

    def deliver(self, address: Address, data: bytes) -> None:
        """Deliver a datagram to the current process at an address."""
        number = self._number(address)
        if number >= len(self.members) or not self.members[number].running:
            return
        member = self.members[number]
        if max(member.blocked_until, member.stalled_until) > self.now:
            member.inbox.append(data)
        else:
            self._open(member, data)

    def _open(self, member: SimMember, data: bytes) -> None:
        opened = member.envelope.open_datagram(data)
        if opened is not None:
            self._handle(member, MessagesReceived(*opened))

    def _exchange(self, asking: SimMember, exchange: StateExchange) -> None:
        number = self._number(exchange.address)
        links = {(asking.number, number), (number, asking.number)}
        asked = self.members[number] if number < len(self.members) else None
        self.counts["exchanges"] += 1
        trip_s = self.rng.uniform(*self.network.delay_s)
        if asked is None or not asked.running or not self.network.tcp or links & self.network.cut:
            self.at(self.now + self.profile.exchange_timeout_s, self._fail, asking, exchange)
            return
        self.at(self.now + 3 * trip_s, self._half, asked, asking, exchange, trip_s, True)

    def _half(
        self, giver: SimMember, taker: SimMember, exchange: StateExchange, trip_s: float, initiated: bool
    ) -> None:
        if giver.blocked_until > self.now + self.profile.exchange_timeout_s or not giver.running:
            self._fail(taker if initiated else giver, exchange)
        elif giver.blocked_until > self.now:
            self.at(giver.blocked_until, self._half, giver, taker, exchange, trip_s, initiated)
        else:
            records = list(decode_records(b"".join(encode_records(giver.swim.records()))))
            self.at(self.now + trip_s, self._taken, giver, taker, exchange, trip_s, records, initiated)

    def _taken(
        self,
        giver: SimMember,
        taker: SimMember,
        exchange: StateExchange,
        trip_s: float,
        records: list[MemberRecord],
        initiated: bool,
    ) -> None:
        if not taker.running or not giver.running:
            return
        if taker.blocked_until > self.now:
            self.at(taker.blocked_until, self._taken, giver, taker, exchange, trip_s, records, initiated)
            return
        self._handle(taker, RecordsReceived(records, initiated))
        if initiated:
            self._half(taker, giver, exchange, trip_s, False)

    def _fail(self, member: SimMember, exchange: StateExchange) -> None:
        if member.running and member.blocked_until <= self.now:
            self._handle(member, ExchangeFailed(exchange.address))
