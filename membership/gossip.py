"""The shell of the SWIM core: UDP and TCP sockets, the clock, seeds, and the interface for services.

It owns sockets and waiting. The rules are in ``swim.py`` (membership), ``envelope.py`` (sealing) and ``exchange.py``
(proofs). A service runs it like this::

    gossip = Gossip(settings, NodeMetadata("edge-1", "edge", process_incarnation, {"links": "10.0.0.5:7949"}))
    await nursery.start(gossip.run)  # returns the advertised address
    async for event in gossip.events:  # NodeJoin, NodeLeave, NodeUpdate, Superseded, Resync
        ...

Every node event is a hint. A crash of this task breaks no guarantee of the broker (``docs/membership.md``).
"""

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import inf
from random import Random, SystemRandom

import trio

from conf.admission import AdmissionSlot
from conf.admitted import serve_admitted
from conf.events import say
from membership.discovery import local_address_towards, resolve_seeds
from membership.envelope import DROP_REASONS, Envelope
from membership.event_queue import EventQueue
from membership.events import (
    ExchangeFailed,
    Input,
    LeaveCompleted,
    LeaveRequested,
    MessagesReceived,
    MetadataChanged,
    NodeEvent,
    OutgoingDatagram,
    RecordsReceived,
    SeedsResolved,
    Superseded,
    SwimReady,
    SwimTick,
)
from membership.exchange import BadExchange, Purpose
from membership.exchange_streams import ExchangeFailure, StateExchangeStreams
from membership.key_requests import KeyManager, KeyRequest, KeyResponse, decode_request, decode_response, encode_keys
from membership.keyring import KeyExhausted, KeyRing
from membership.members import MemberView
from membership.metadata import NodeMetadata
from membership.packets import Address, MalformedGossip, decode_records, encode_records
from membership.settings import MembershipSettings, open_key_ring, split_host_port
from membership.slices import PIECE, Slice
from membership.sockets import advertised_address, bind_sockets, resolve_bind
from membership.swim import Swim
from wire.clock import tier_phase
from wire.cpu_yield import GiveWay, stay

__all__ = ["Gossip", "drop_level"]

RECEIVE_BYTES = 2048  # above the largest packet: a longer one arrives cut and is still detected as oversized
BATCH_PACKETS = 64  # received before timers are checked; a flood cannot delay timers
ASKING_MAX = 8  # concurrent initiated exchanges
SEED_RETRY_S = 1.0  # between two look-ups while no seed resolves
ELSEWHERE = ("192.0.2.1", 9)  # a documentation address (RFC 5737): only to find the interface of the default route
REPORT_INTERVAL_S = 10.0  # between two log lines about dropped packets
# Reasons that occur at every ordinary restart: packets of the former incarnation, or of one that is not known yet.
AFTER_RESTARTS = frozenset(("unknown_sender", "stale_recipient"))

log = logging.getLogger("stratamq.membership")


def drop_level(dropped: Iterable[str]) -> int:
    """Return the log level for packets dropped for these reasons."""
    return logging.DEBUG if AFTER_RESTARTS.issuperset(dropped) else logging.WARNING


class Gossip:
    """One process's membership. Only ``events`` and ``key_ring`` may be used before ``run`` has started."""

    def __init__(
        self,
        settings: MembershipSettings,
        metadata: NodeMetadata,
        *,
        key_ring: KeyRing | None = None,
        rng: Random | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        give_way: GiveWay = stay,
    ) -> None:
        """Read the keys without opening sockets.

        Args:
            settings: Of the package ``membership``.
            metadata: The local metadata at the start.
            key_ring: Replaces the keys of the settings, for tests.
            rng: Choice of members; unpredictable by default.
            random_bytes: Nonces, session and challenges; must be unpredictable outside of tests.
            give_way: Yields the CPU; called between opening a packet, processing it, and sealing each reply.

        Raises:
            KeyRingError: No key, or one that other users can read.
            OSError: The key source cannot be read.
        """
        self._settings = settings
        self._profile = replace(settings.constants, phase=tier_phase(metadata.tier))
        self._metadata = metadata
        self._rng = rng or SystemRandom()
        self._random_bytes = random_bytes
        self._give_way = give_way
        self.key_ring = key_ring or open_key_ring(settings)
        self._key_manager = KeyManager(metadata.name, self.key_ring, settings.key_file)
        self._queue = EventQueue(settings.events_max)
        self.events = self._queue.events
        self._counters: Counter[str] = Counter()
        self._deadline = inf
        self._ahead_s = 0.0  # of the host's clock before trio's
        self._waiting: trio.CancelScope | None = None
        self._exchanging: set[Address] = set()
        self._stopped = trio.Event()
        self._nursery: trio.Nursery
        self._udp: socket.socket
        self._swim: Swim
        self._envelope: Envelope
        self._exchanges: StateExchangeStreams

    @property
    def name(self) -> str:
        """The local member's name."""
        return self._metadata.name

    def members(self) -> list[MemberView]:
        """All members with their states, including the local one, sorted by name."""
        return self._swim.views()

    def states(self) -> dict[str, int]:
        """Number of members in each state, including the local one; ten times faster than ``members``."""
        return self._swim.states()

    @property
    def exchanges_ended(self) -> Mapping[str, int]:
        """Refused or displaced connections of exchanges, by reason."""
        return self._exchanges.unproven.counts

    def counters(self) -> dict[str, int]:
        """Counts of events so far; includes ``dropped_<reason>`` for all reasons, also unused ones."""
        dropped = {f"dropped_{reason}": self._envelope.dropped[reason] for reason in DROP_REASONS}
        own = {"events_dropped": self._queue.dropped, "local_health": self._swim.health.score}
        return {**self._swim.counters, **self._counters, **dropped, **own}

    def update_metadata(self, metadata: NodeMetadata) -> None:
        """Send new local metadata to the other members; of fast changes only the last one is sent.

        Raises:
            ValueError: It names another member, or exceeds the bounds of metadata.
        """
        self._handle(MetadataChanged(metadata))

    async def leave(self) -> None:
        """Announce the leave and stop sending; returns when it was sent, or after the profile's timeout."""
        self._handle(LeaveRequested())
        with trio.move_on_after(self._profile.leave_timeout_s + 1):
            await self._stopped.wait()

    async def ask_keys(self, member: MemberView, request: KeyRequest) -> KeyResponse:
        """Send one step of a key rotation to one member, perhaps the local one (``admin.py`` sends it to all).

        Raises:
            ExchangeFailure: There was no authentic answer in time.
        """
        if member.is_self:
            return await self._key_manager.carry_out(request)

        async def asking(_: bytes) -> bytes:
            return encode_keys(request)

        try:
            return decode_response(await self._exchanges.ask(member.address, "keys", asking))
        except BadExchange as error:
            raise ExchangeFailure(str(error)) from None

    async def run(self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Gossip until cancelled. Reports the advertised address once the sockets are open.

        Raises:
            OSError: The sockets cannot be opened.
            ValueError: The address to advertise is ambiguous.
        """
        seeds, failed = await resolve_seeds(self._settings.seeds)
        self._counters["seeds_unresolved"] = len(failed)
        family, address = await resolve_bind(*split_host_port(self._settings.bind))
        self._udp, listening = bind_sockets(family, address, self._settings.receive_buffer_bytes)
        with self._udp, trio.socket.from_stdlib_socket(listening) as listener:
            bound = self._udp.getsockname()[:2]
            asked = split_host_port(self._settings.advertise) if self._settings.advertise else None
            if asked is not None:
                asked = (await resolve_bind(*asked))[1]
            towards = local_address_towards(seeds[0] if seeds else ELSEWHERE)
            advertised = advertised_address(bound, asked, towards)
            self._start(advertised)
            async with trio.open_nursery() as self._nursery:
                exchanges = self._exchanges.unproven
                self._nursery.start_soon(
                    serve_admitted, trio.SocketListener(listener), exchanges, trio.current_time, self._serve
                )
                self._nursery.start_soon(self._datagrams)
                self._nursery.start_soon(self._timers)
                self._nursery.start_soon(self._discover, seeds)
                self._nursery.start_soon(self._report)
                task_status.started(advertised)

    def _start(self, address: Address) -> None:
        session = int.from_bytes(self._random_bytes(8), "big") >> 2
        # Leaves 65 535 refutations of the former process below the first incarnation.
        incarnation = self._metadata.process_incarnation << 16
        self._ahead_s = time.clock_gettime(time.CLOCK_BOOTTIME) - trio.current_time()
        self._swim = Swim(self._metadata, address, session, incarnation, self._profile, self._rng, self._now())
        self._envelope = Envelope(
            self._settings.cluster, session, self.key_ring, self._swim.members, self._random_bytes
        )
        self._exchanges = StateExchangeStreams(
            self._envelope,
            session,
            self._random_bytes,
            self._profile.exchange_timeout_s,
            self._settings.exchanges_max,
        )

    # One call of the core

    def _now(self) -> float:
        """Seconds on a clock that all processes of a host share."""
        return trio.current_time() + self._ahead_s

    def _handle(self, event: Input) -> None:
        ready = self._swim.handle(self._now(), event)
        self._give_way()
        self._carry_out(ready)

    def _carry_out(self, ready: SwimReady) -> None:
        for message in ready.messages:
            self._send(message)
            self._give_way()
        for exchange in ready.exchanges:
            if len(self._exchanging) < ASKING_MAX and exchange.address not in self._exchanging:
                self._exchanging.add(exchange.address)
                self._nursery.start_soon(self._exchange, exchange.address)
            else:
                self._counters["exchanges_skipped"] += 1
        for event in ready.events:
            self._emit(event)
        self._deadline = ready.next_deadline - self._ahead_s
        if self._waiting is not None and self._waiting.deadline != self._deadline:
            self._waiting.deadline = self._deadline

    def _send(self, message: OutgoingDatagram) -> None:
        try:
            self._udp.sendto(self._envelope.seal_datagram(message.recipient_session, message.body), message.address)
        except KeyExhausted:
            self._counters["send_key_exhausted"] += 1
        except OSError:  # buffer full, no route: a lost packet like any other
            self._counters["send_failed"] += 1

    def _emit(self, event: NodeEvent) -> None:
        if isinstance(event, LeaveCompleted | Superseded):
            self._stopped.set()
        if isinstance(event, Superseded):
            say(log, "gossip.newer_process", peer=self.name)
        self._queue.put(event)

    # Datagrams and time

    async def _datagrams(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._udp)
            await self._receive()

    async def _timers(self) -> None:
        while True:
            # Infinite after a leave: then only packets wake this task, and they are not opened.
            with trio.CancelScope(deadline=self._deadline) as self._waiting:
                await trio.sleep_forever()
            self._waiting = None
            await self._receive()  # process pending acks before timeouts
            if trio.current_time() >= self._deadline:
                self._handle(SwimTick())

    async def _receive(self) -> None:
        time_slice = Slice()
        for _ in range(BATCH_PACKETS):
            try:
                data = self._udp.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # an earlier sent packet was refused
                self._counters["receive_failed"] += 1
                continue
            opened = self._envelope.open_datagram(data)
            self._give_way()
            sender, messages = opened or (0, [])
            for start in range(0, len(messages), PIECE):
                self._handle(MessagesReceived(sender, messages[start : start + PIECE]))
                await time_slice.rest()

    # Full exchanges and keys, over TCP

    async def _exchange(self, address: Address) -> None:
        try:
            await self._exchanges.ask(address, "members", self._merge_then_answer)
        except ExchangeFailure:
            self._handle(ExchangeFailed(address))
        else:
            self._counters["exchanges"] += 1
        finally:
            self._exchanging.discard(address)

    async def _merge_then_answer(self, content: bytes) -> bytes:
        await self._merge(content, initiated=True)
        return await self._answer("members")

    async def _serve(self, stream: trio.SocketStream, place: AdmissionSlot[trio.CancelScope]) -> None:
        async with stream:
            try:
                if not self._swim.local.silent:
                    await self._exchanges.serve(stream, place, self._answer, self._result)
            except ExchangeFailure:
                self._counters["exchanges_refused"] += 1

    async def _answer(self, purpose: Purpose) -> bytes:
        parts, time_slice = [], Slice()
        for part in encode_records(self._swim.records()) if purpose == "members" else ():
            parts.append(part)
            await time_slice.rest()
        return b"".join(parts)

    async def _result(self, purpose: Purpose, content: bytes) -> bytes:
        if purpose == "keys":
            return encode_keys(await self._key_manager.carry_out(decode_request(content)))
        await self._merge(content, initiated=False)
        return b""

    async def _merge(self, content: bytes, *, initiated: bool) -> None:
        records, time_slice = decode_records(content), Slice()
        try:
            while some := list(islice(records, PIECE)):
                self._handle(RecordsReceived(some, initiated))
                await time_slice.rest()
        except MalformedGossip as error:
            self._envelope.dropped["malformed"] += 1
            raise ExchangeFailure(str(error)) from None

    # Seeds and reports

    async def _discover(self, seeds: tuple[Address, ...]) -> None:
        """Resolve the seeds repeatedly: DNS entries change, and a name may not have resolved at the start."""
        while self._settings.seeds:
            self._handle(SeedsResolved(seeds))
            await trio.sleep(self._settings.seed_resolve_interval_s if seeds else SEED_RETRY_S)
            found, failed = await resolve_seeds(self._settings.seeds)
            self._counters["seeds_unresolved"] += len(failed)
            seeds = found or seeds  # keep the addresses while the resolver fails

    async def _report(self) -> None:
        """Log dropped packets, all reasons in one line per interval, and a due key rotation."""
        told: Counter[str] = Counter()
        rotation_logged = False
        while True:
            await trio.sleep(REPORT_INTERVAL_S)
            news = self._envelope.dropped - told
            told = self._envelope.dropped.copy()
            if news:
                reasons = ", ".join(f"{n} {why}" for why, n in sorted(news.items()))
                say(log, "gossip.dropped", reasons=reasons, level=drop_level(news))
            due = self.key_ring.rotation_due(len(self._swim.members) + 1)
            if due and not rotation_logged:
                say(log, "gossip.key_worn")
            rotation_logged = due
