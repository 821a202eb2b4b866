"""Links of an agent to its neighbours: mutual TLS 1.3, frames delivered once and in order.

Chooses between duplicate connections, resumes links, and resets them. Numbering is in ``wire/links/link.py``; messages
and drops are the core's concern. Each side may dial; of two connections between the same agents, the one dialled by the
smaller name is kept.
"""

from __future__ import annotations

import logging
import ssl
from collections import Counter
from collections.abc import Callable
from random import Random

import trio

from conf.addresses import host_of
from conf.admission import POOLS, AdmissionPool, AdmissionSlot, KnownAddresses
from conf.admitted import serve_admitted
from conf.events import say
from gateways.federation.events import (
    Event,
    FederationLinkDown,
    FederationLinkUp,
    NeighbourFrame,
    NeighbourPolicy,
    Send,
)
from gateways.retry_delay import RetryDelay
from wire.clock import boot_time
from wire.links.connection import address_of, close_quietly, failure_text, open_stream, read_hello, wrap_tls
from wire.links.link import LinkCore, LinkFull
from wire.links.tls import LinkContexts, peer_identity
from wire.links.tls_stream import TlsStream
from wire.messages.frames import FrameKind
from wire.messages.hello import LinkError, LinkHello, NodeIdentity, encode_hello

__all__ = ["TIER_FEDERATE", "FederationLinks", "LinksOptions"]

logger = logging.getLogger(__name__)

TIER_FEDERATE = "federate"
HANDSHAKE_S = 10.0  # TCP, TLS and HELLO: satellite links are slow
RESUME_S = 60.0  # after which a disconnected link is reset
READ_BYTES = 256 * 1024
SILENCE_HELLOS = 6  # hello intervals without a byte, after which a connection is closed
SILENCE_S_MIN = 5.0
CHECK_S = 0.25
DELAY_S_MAX = 2.0  # between attempts


class LinksOptions:
    """Options of the links of one agent.

    Args:
      identity: Federation, agent and incarnation.
      neighbours: Addresses to dial.
      accept: Permitted names of incoming connections; empty: all of the federation.
      policies: By neighbour.
      hello_s: Interval of hellos, from which the silence timeout is computed.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        contexts: LinkContexts,
        neighbours: tuple[str, ...],
        accept: tuple[str, ...],
        policies: dict[str, NeighbourPolicy],
        hello_s: float,
    ) -> None:
        self.identity, self.contexts, self.neighbours, self.accept = identity, contexts, neighbours, accept
        self.policies = policies
        self.silence_s = max(SILENCE_S_MIN, SILENCE_HELLOS * hello_s)


class _Peer:
    """A known neighbour."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.core = LinkCore()
        self.incarnation = 0
        self.link = 0
        self.connection: _Connection | None = None
        self.disconnected_since = boot_time()
        self.held_until = 0.0  # boot time; reading pauses until then


class FederationLinks:
    """See the module.

    Attributes:
      counts: Events, by name.
      handshakes: Accepted connections before their HELLO is accepted.
    """

    def __init__(
        self,
        options: LinksOptions,
        random: Random,
        put_events: Callable[[list[Event]], None],
        room: Callable[[], object],
    ) -> None:
        """Set up; ``room`` returns None, or an awaitable that ends when the core has handled events."""
        self.counts: Counter[str] = Counter()
        self._options, self._random, self._put_events = options, random, put_events
        self._peers: dict[str, _Peer] = {}
        self._dialled: dict[str, str] = {}  # address -> agent at it
        self._last_link = 0
        self._known = KnownAddresses()
        self._known.fix("neighbours", map(host_of, options.neighbours))
        self.handshakes: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["federation_links"], self._known.knows)
        self.room = room
        self.reasons: dict[str, str] = {}  # address -> why there is no link

    def up(self) -> list[str]:
        """Return the linked neighbours."""
        return sorted(name for name, peer in self._peers.items() if peer.connection is not None)

    def missing(self) -> list[str]:
        """Return the configured addresses without a link."""
        return [each for each in self._options.neighbours if not self._is_linked(each)]

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Accept and dial neighbours, and reset links that are disconnected too long."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(serve_admitted, listener, self.handshakes, boot_time, self._accept)
            for address in self._options.neighbours:
                nursery.start_soon(self._keep_dialling, address)
            nursery.start_soon(self._check_silence)

    # --- effects

    def send(self, effect: Send) -> None:
        """Send a frame; it is dropped if its link was reset."""
        peer = self._peers.get(effect.neighbour)
        if peer is None or peer.link != effect.link:
            self.counts["dropped_former_link"] += 1
            return
        try:
            peer.core.send(FrameKind.CONTROL, effect.data)
        except LinkFull:
            self._reset_link(peer, "the neighbour does not read")
            return
        if peer.connection is not None:
            peer.connection.wake()

    def hold(self, neighbour: str, until: float) -> None:
        """Pause reading from a neighbour until a time."""
        peer = self._peers.get(neighbour)
        if peer is not None:
            peer.held_until = max(peer.held_until, until)

    def close(self, neighbour: str, reason: str) -> None:
        """Close and reset a link after a protocol violation."""
        peer = self._peers.get(neighbour)
        if peer is not None:
            say(logger, "federation.link_closed", peer=neighbour, why=reason)
            self.counts["closed"] += 1
            self._reset_link(peer, reason)

    # --- connections

    def _is_linked(self, address: str) -> bool:
        peer = self._peers.get(self._dialled.get(address, ""))
        return peer is not None and peer.connection is not None

    async def _keep_dialling(self, address: str) -> None:
        delay = RetryDelay(self._random, max_s=DELAY_S_MAX)
        while True:
            if not self._is_linked(address):
                begun = trio.current_time()
                why = await self._dial(address)
                if why != self.reasons.get(address):
                    say(logger, "federation.neighbour", address=address, why=why)
                self.reasons[address] = why
                if trio.current_time() - begun > HANDSHAKE_S:
                    delay.reset()
                await trio.sleep(delay.next())
            else:
                delay.reset()
                await trio.sleep(CHECK_S)

    async def _dial(self, address: str) -> str:
        """Dial once, and serve the resulting connection; return how it ended."""
        stream: TlsStream | None = None
        try:
            with trio.fail_after(HANDSHAKE_S):
                plain = await open_stream(address)
                stream = await wrap_tls(plain, self._options.contexts.client, server_side=False)
                name = self._get_certified_name(stream)
                self._dialled[address] = name
                self._known.add(name, address_of(stream), boot_time())
                peer = self._peers.get(name)
                if (
                    peer is not None
                    and peer.connection is not None
                    and not self._replaces_connection(name, is_dialled=True)
                ):
                    return "the neighbour has dialled"
                resume_point = (peer.incarnation, peer.core.taken) if peer is not None else (0, 0)
                await stream.send_all(encode_hello(self._options.identity, *resume_point))
                hello, rest = await read_hello(stream)
            return await self._run(name, hello, stream, rest, is_dialled=True, acked_incarnation=resume_point[0])
        except trio.TooSlowError:
            return "does not answer"
        except (OSError, LinkError, ValueError, trio.BrokenResourceError) as error:
            return str(error) or type(error).__name__
        finally:
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await close_quietly(stream)

    async def _accept(self, plain: trio.SocketStream, place: AdmissionSlot[trio.CancelScope]) -> None:
        stream: TlsStream | None = None
        try:
            with trio.fail_after(HANDSHAKE_S):
                stream = await wrap_tls(plain, self._options.contexts.server, server_side=True)
                name = self._get_certified_name(stream)
                hello, rest = await read_hello(stream)
                peer = self._peers.get(name)
                if (
                    peer is not None
                    and peer.connection is not None
                    and not self._replaces_connection(name, is_dialled=False)
                ):
                    return
                self._check_hello(name, hello)
                is_known = peer is not None and peer.incarnation == hello.incarnation
                resumes = is_known and hello.peer_incarnation == self._options.identity.incarnation
                resume_point = (peer.incarnation, peer.core.taken) if peer is not None and resumes else (0, 0)
                await stream.send_all(encode_hello(self._options.identity, *resume_point))
            place.leave()
            self._known.add(name, address_of(stream), boot_time())
            await self._run(name, hello, stream, rest, is_dialled=False, acked_incarnation=resume_point[0])
        except trio.TooSlowError:
            self.counts["refused_slow"] += 1
        except (OSError, LinkError, ValueError, trio.BrokenResourceError) as error:
            self.counts["refused"] += 1
            say(logger, "federation.link_refused", why=failure_text(error, "handshake"))
        finally:
            with trio.CancelScope(shield=True):
                await close_quietly(plain if stream is None else stream)

    def _get_certified_name(self, stream: TlsStream) -> str:
        federation, tier, name = peer_identity(stream)
        own = self._options.identity
        if (federation, tier) != (own.cluster, TIER_FEDERATE):
            raise LinkError(f"a certificate of {federation}/{tier}/{name}, not of {own.cluster}/{TIER_FEDERATE}")
        if name == own.node:
            raise LinkError("the neighbour has the name of this agent")
        if self._options.accept and name not in self._options.accept:
            raise LinkError(f"{name} is not in federate.accept")
        return name

    def _check_hello(self, name: str, hello: LinkHello) -> None:
        own = self._options.identity
        if (hello.cluster, hello.tier, hello.node) != (own.cluster, TIER_FEDERATE, name):
            raise LinkError(f"HELLO of {hello.cluster}/{hello.tier}/{hello.node}, the certificate names {name}")

    def _replaces_connection(self, name: str, *, is_dialled: bool) -> bool:
        """Whether a new connection replaces the present one: the smaller name's does, and a newer one."""
        peer = self._peers[name]
        if peer.connection is None or peer.connection.is_dialled == is_dialled:
            return True
        return is_dialled == (self._options.identity.node < name)

    async def _run(
        self, name: str, hello: LinkHello, stream: TlsStream, rest: bytes, *, is_dialled: bool, acked_incarnation: int
    ) -> str:
        """Serve one connection to its end; return how it ended.

        Args:
          acked_incarnation: Incarnation of the peer whose frames our HELLO acknowledged; 0: none.
        """
        self._check_hello(name, hello)
        peer = self._peers.setdefault(name, _Peer(name))
        if hello.incarnation < peer.incarnation:
            raise LinkError(f"{name} has a former incarnation")
        if peer.connection is not None:
            peer.connection.end("another connection")
            self._down(peer)
        own = self._options.identity.incarnation
        is_resumed = peer.link > 0 and acked_incarnation == hello.incarnation and hello.peer_incarnation == own
        if not is_resumed:
            peer.core, peer.incarnation = LinkCore(), hello.incarnation
            self._last_link += 1
            peer.link = self._last_link
        try:
            peer.core.connected(hello.taken if is_resumed else 0)
        except LinkError:
            peer.incarnation = peer.link = 0
            raise
        connection = peer.connection = _Connection(peer, stream, self, is_dialled)
        policy = self._options.policies.get(name, NeighbourPolicy())
        self.counts["resumed" if is_resumed else "begun"] += 1
        say(logger, "federation.link_up", peer=name, how="goes on" if is_resumed else "begins")
        self._put_events([FederationLinkUp(name, hello.incarnation, is_resumed, policy, peer.link)])
        try:
            await connection.run(rest)
        finally:
            if peer.connection is connection:
                self._down(peer)
        return connection.why

    def _down(self, peer: _Peer) -> None:
        peer.connection = None
        peer.core.disconnected()
        peer.disconnected_since = boot_time()
        self._put_events([FederationLinkDown(peer.name)])

    def _reset_link(self, peer: _Peer, reason: str) -> None:
        if peer.connection is not None:
            peer.connection.end(reason)
            self._down(peer)
        peer.incarnation = peer.link = 0
        peer.core = LinkCore()

    def take(self, peer: _Peer, data: bytes) -> None:
        """Pass frames to the core."""
        frames = peer.core.receive(data)
        if frames:
            name = peer.name
            self._put_events([NeighbourFrame(name, frame.payload) for frame in frames])

    async def _check_silence(self) -> None:
        """Reset links that are disconnected too long, and close silent connections."""
        while True:
            await trio.sleep(CHECK_S)
            now = boot_time()
            for peer in self._peers.values():
                if peer.connection is None:
                    if peer.link and now - peer.disconnected_since > RESUME_S:
                        self._reset_link(peer, "away")
                elif now - peer.connection.last_seen > self._options.silence_s and now > peer.held_until:
                    peer.connection.end("silent")


class _Connection:
    """I/O of one connection."""

    def __init__(self, peer: _Peer, stream: TlsStream, links: FederationLinks, is_dialled: bool) -> None:
        self.is_dialled = is_dialled
        self.last_seen = boot_time()
        self.why = "closed"
        self._peer, self._core, self._stream, self._links = peer, peer.core, stream, links
        self._scope = trio.CancelScope()
        self._wake = trio.Event()
        self._has_ended = False

    def wake(self) -> None:
        """Output is pending."""
        self._wake.set()

    def end(self, why: str) -> None:
        """End the connection: later input is ignored."""
        if not self._has_ended:
            self.why, self._has_ended = why, True
        self._scope.cancel()

    async def run(self, rest: bytes) -> None:
        """Serve until it ends."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read(rest)
                nursery.cancel_scope.cancel()

    async def _read(self, data: bytes) -> None:
        try:
            while not self._has_ended:
                if data:
                    self._links.take(self._peer, data)
                    if self._core.wants_flush:
                        self.wake()
                wait = self._links.room()
                if wait is not None:
                    await wait  # type: ignore[misc]
                while (held := self._peer.held_until - boot_time()) > 0:
                    await trio.sleep(min(held, 1.0))
                    self.last_seen = boot_time()
                data = await self._stream.receive_some(READ_BYTES)
                self.last_seen = boot_time()
                if not data:
                    return self.end("closed by the neighbour")
        except LinkError as error:
            self.end(str(error))
            self._links.counts["refused_frames"] += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            self.end(f"broken: {error.__cause__ or error}")

    async def _write(self) -> None:
        try:
            while not self._has_ended:
                data = self._core.take_output()
                if data:
                    await self._stream.send_all(data)
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(f"broken: {error.__cause__ or error}")
