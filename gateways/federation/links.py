"""Links of an agent to its neighbours: TLS 1.3 with certificates of both, frames that arrive once and in order.

Decides which connection of two stands, whether a link goes on where it was, and when it is given up. Numbering is
``wire/links/link.py``; messages and what is dropped are the core's. Each side may dial; of two connections between the
same agents the one stands that the smaller name has dialled.
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
HANDSHAKE_S = 10.0  # TCP, TLS and HELLO: links over satellites are slow
RESUME_S = 60.0  # after which a link whose connection is away begins anew
READ_BYTES = 256 * 1024
SILENCE_HELLOS = 6  # intervals of hello without a byte, after which a connection is cut
SILENCE_S_MIN = 5.0
LOOK_S = 0.25
DELAY_S_MAX = 2.0  # between attempts: a federation waits for its links


class LinksOptions:
    """Options of the links of one agent.

    Args:
        identity: Federation, agent and incarnation.
        neighbours: Addresses to dial.
        accept: Names that may come in; empty: each of the federation.
        policies: By neighbour.
        hello_s: Interval of hellos, by which silence is judged.
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
    """A neighbour that was seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.core = LinkCore()
        self.incarnation = 0
        self.link = 0
        self.connection: _Connection | None = None
        self.away_since = boot_time()
        self.held_until = 0.0  # boot time; nothing is read before


class FederationLinks:
    """See the module.

    Attributes:
        counts: Of what happened, by name.
        handshakes: Accepted connections whose HELLO was not accepted yet.
    """

    def __init__(
        self,
        options: LinksOptions,
        random: Random,
        put_events: Callable[[list[Event]], None],
        room: Callable[[], object],
    ) -> None:
        """Set up; ``room`` returns None, or an awaitable that ends when the core has taken events."""
        self.counts: Counter[str] = Counter()
        self._options, self._random, self._put_events = options, random, put_events
        self._peers: dict[str, _Peer] = {}
        self._dialled: dict[str, str] = {}  # address -> agent that answers there
        self._last_link = 0
        self._known = KnownAddresses()
        self._known.fix("neighbours", map(host_of, options.neighbours))
        self.handshakes: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["federation_links"], self._known.knows)
        self.room = room
        self.reasons: dict[str, str] = {}  # address -> why there is no link

    def up(self) -> list[str]:
        """Return the neighbours whose link stands."""
        return sorted(name for name, peer in self._peers.items() if peer.connection is not None)

    def missing(self) -> list[str]:
        """Return the configured addresses without a link."""
        return [each for each in self._options.neighbours if not self._is_linked(each)]

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Take connections of neighbours, dial the configured ones, and give up what is away too long."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(serve_admitted, listener, self.handshakes, boot_time, self._accept)
            for address in self._options.neighbours:
                nursery.start_soon(self._dial_for_ever, address)
            nursery.start_soon(self._look)

    # --- effects

    def send(self, effect: Send) -> None:
        """Send a frame; one of a former link is dropped."""
        peer = self._peers.get(effect.neighbour)
        if peer is None or peer.link != effect.link:
            self.counts["dropped_former_link"] += 1
            return
        try:
            peer.core.send(FrameKind.CONTROL, effect.data)
        except LinkFull:
            self._give_up(peer, "the neighbour does not take what it is sent")
            return
        if peer.connection is not None:
            peer.connection.wake()

    def hold(self, neighbour: str, until: float) -> None:
        """Read nothing from a neighbour until then."""
        peer = self._peers.get(neighbour)
        if peer is not None:
            peer.held_until = max(peer.held_until, until)

    def close(self, neighbour: str, reason: str) -> None:
        """Close a link that broke the rules; it begins anew."""
        peer = self._peers.get(neighbour)
        if peer is not None:
            say(logger, "federation.link_closed", peer=neighbour, why=reason)
            self.counts["closed"] += 1
            self._give_up(peer, reason)

    # --- connections

    def _is_linked(self, address: str) -> bool:
        peer = self._peers.get(self._dialled.get(address, ""))
        return peer is not None and peer.connection is not None

    async def _dial_for_ever(self, address: str) -> None:
        delay = RetryDelay(self._random, most_s=DELAY_S_MAX)
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
                await trio.sleep(LOOK_S)

    async def _dial(self, address: str) -> str:
        """Make one attempt, and serve the connection that it leads to; return how it ended."""
        stream: TlsStream | None = None
        try:
            with trio.fail_after(HANDSHAKE_S):
                plain = await open_stream(address)
                stream = await wrap_tls(plain, self._options.contexts.client, server_side=False)
                name = self._certified(stream)
                self._dialled[address] = name
                self._known.add(name, address_of(stream), boot_time())
                peer = self._peers.get(name)
                if peer is not None and peer.connection is not None and not self._stands(name, is_dialled=True):
                    return "the neighbour has dialled"
                knows = (peer.incarnation, peer.core.taken) if peer is not None else (0, 0)
                await stream.send_all(encode_hello(self._options.identity, *knows))
                hello, rest = await read_hello(stream)
            return await self._run(name, hello, stream, rest, is_dialled=True, asked=knows[0])
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
                name = self._certified(stream)
                hello, rest = await read_hello(stream)
                peer = self._peers.get(name)
                if peer is not None and peer.connection is not None and not self._stands(name, is_dialled=False):
                    return
                self._check_hello(name, hello)
                is_known = peer is not None and peer.incarnation == hello.incarnation
                resumes = is_known and hello.peer_incarnation == self._options.identity.incarnation
                knows = (peer.incarnation, peer.core.taken) if peer is not None and resumes else (0, 0)
                await stream.send_all(encode_hello(self._options.identity, *knows))
            place.leave()
            self._known.add(name, address_of(stream), boot_time())
            await self._run(name, hello, stream, rest, is_dialled=False, asked=knows[0])
        except trio.TooSlowError:
            self.counts["refused_slow"] += 1
        except (OSError, LinkError, ValueError, trio.BrokenResourceError) as error:
            self.counts["refused"] += 1
            say(logger, "federation.link_refused", why=failure_text(error, "handshake"))
        finally:
            with trio.CancelScope(shield=True):
                await close_quietly(plain if stream is None else stream)

    def _certified(self, stream: TlsStream) -> str:
        federation, tier, name = peer_identity(stream)
        own = self._options.identity
        if (federation, tier) != (own.cluster, TIER_FEDERATE):
            raise LinkError(f"a certificate of {federation}/{tier}/{name}, not of {own.cluster}/{TIER_FEDERATE}")
        if name == own.node:
            raise LinkError("a neighbour with the name of this agent")
        if self._options.accept and name not in self._options.accept:
            raise LinkError(f"{name} is not among federate.accept")
        return name

    def _check_hello(self, name: str, hello: LinkHello) -> None:
        own = self._options.identity
        if (hello.cluster, hello.tier, hello.node) != (own.cluster, TIER_FEDERATE, name):
            raise LinkError(f"HELLO of {hello.cluster}/{hello.tier}/{hello.node}, the certificate names {name}")

    def _stands(self, name: str, *, is_dialled: bool) -> bool:
        """Whether a new connection takes the place of the one that stands: the smaller name's does, and a newer one."""
        peer = self._peers[name]
        if peer.connection is None or peer.connection.is_dialled == is_dialled:
            return True
        return is_dialled == (self._options.identity.node < name)

    async def _run(
        self, name: str, hello: LinkHello, stream: TlsStream, rest: bytes, *, is_dialled: bool, asked: int
    ) -> str:
        """Serve one connection to its end; return how it ended.

        Args:
            asked: Incarnation of the peer whose frames our HELLO counted; 0: none.
        """
        self._check_hello(name, hello)
        peer = self._peers.setdefault(name, _Peer(name))
        if hello.incarnation < peer.incarnation:
            raise LinkError(f"{name} of an incarnation before")
        if peer.connection is not None:
            peer.connection.end("another connection")
            self._down(peer)
        own = self._options.identity.incarnation
        is_resumed = peer.link > 0 and asked == hello.incarnation and hello.peer_incarnation == own
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
        peer.away_since = boot_time()
        self._put_events([FederationLinkDown(peer.name)])

    def _give_up(self, peer: _Peer, reason: str) -> None:
        if peer.connection is not None:
            peer.connection.end(reason)
            self._down(peer)
        peer.incarnation = peer.link = 0
        peer.core = LinkCore()

    def take(self, peer: _Peer, data: bytes) -> None:
        """Hand frames to the core."""
        frames = peer.core.receive(data)
        if frames:
            name = peer.name
            self._put_events([NeighbourFrame(name, frame.payload) for frame in frames])

    async def _look(self) -> None:
        """Give up links whose connection is away too long, and cut connections that are silent."""
        while True:
            await trio.sleep(LOOK_S)
            now = boot_time()
            for peer in self._peers.values():
                if peer.connection is None:
                    if peer.link and now - peer.away_since > RESUME_S:
                        self._give_up(peer, "away")
                elif now - peer.connection.heard > self._options.silence_s and now > peer.held_until:
                    peer.connection.end("silent")


class _Connection:
    """Bytes of one connection."""

    def __init__(self, peer: _Peer, stream: TlsStream, links: FederationLinks, is_dialled: bool) -> None:
        self.is_dialled = is_dialled
        self.heard = boot_time()
        self.why = "closed"
        self._peer, self._core, self._stream, self._links = peer, peer.core, stream, links
        self._scope = trio.CancelScope()
        self._wake = trio.Event()
        self._is_over = False

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    def end(self, why: str) -> None:
        """End the connection: nothing more is taken of it."""
        if not self._is_over:
            self.why, self._is_over = why, True
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
            while not self._is_over:
                if data:
                    self._links.take(self._peer, data)
                    if self._core.wants_flush:
                        self.wake()
                wait = self._links.room()
                if wait is not None:
                    await wait  # type: ignore[misc]
                while (held := self._peer.held_until - boot_time()) > 0:
                    await trio.sleep(min(held, 1.0))
                    self.heard = boot_time()
                data = await self._stream.receive_some(READ_BYTES)
                self.heard = boot_time()
                if not data:
                    return self.end("closed by the neighbour")
        except LinkError as error:
            self.end(str(error))
            self._links.counts["refused_frames"] += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            self.end(f"broken: {error.__cause__ or error}")

    async def _write(self) -> None:
        try:
            while not self._is_over:
                data = self._core.take_output()
                if data:
                    await self._stream.send_all(data)
                else:
                    self._wake = trio.Event()
                    await self._wake.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(f"broken: {error.__cause__ or error}")
