"""Links of a router or storage node: listen, dial, keep connections to every peer.

Decides when to dial and when to retry. ``wire/links/link_table.py`` decides admission and resume positions,
``wire/links/tls.py`` checks certificates. The owner's callbacks interpret frames; the loop calls them synchronously.
The edge has its own loop and uses the same cores. Source: design sections 7 and 9; docs/adr/0005-wire-format.md.
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import trio

from conf.addresses import host_of
from conf.admission import POOLS, AdmissionPool, AdmissionSlot, KnownAddresses
from conf.admitted import serve_admitted
from conf.errors import UserError
from conf.events import say
from wire.clock import boot_time, tier_phase
from wire.cpu_yield import GiveWay, stay
from wire.decoding import plain_text
from wire.links.admission import HelloResume, check_certificate
from wire.links.allowed import link_tiers
from wire.links.connection import (
    HELLO_TIMEOUT_S,
    LinkConnection,
    PeerGone,
    Stream,
    address_of,
    certificate_of,
    certified_identity,
    close_quietly,
    failure_text,
    open_stream,
    read_hello,
    split_address,
    watch,
    wrap_tls,
)
from wire.links.link import RESEND_BYTES_MAX, LinkCore
from wire.links.link_table import LinkTable
from wire.links.reactor_hook import ReactorHook, early_reads
from wire.links.redial import backoff_s
from wire.links.roster import Roster
from wire.links.silence import speak_s_of
from wire.links.tls import LinkContexts
from wire.messages.hello import (
    TIER_ROUTER,
    LinkError,
    LinkHello,
    NodeIdentity,
    OtherCluster,
    OtherVersion,
    PeerKey,
    encode_hello,
)

__all__ = ["LinkHub"]

logger = logging.getLogger(__name__)

DRAIN_S = 0.5  # for queued frames when this node stops
DRAIN_POLL_S = 0.01
CONNECTION_FAILURES = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    LinkError,
    UserError,
)


class _Target:
    """An address to dial; at a seed's address any router may answer."""

    __slots__ = ("address", "cancel", "node", "seed", "tier")

    def __init__(self, node: str, tier: str, address: str) -> None:
        self.node = node  # of a seed: the node that answered last
        self.seed = not node
        self.tier = tier
        self.address = address
        self.cancel = trio.CancelScope()


class LinkHub:
    """All links of one node.

    Args:
        identity: This node; an empty address is replaced by the one listened on.
        contexts: Mutual TLS; None for plaintext, which is logged at start.
        on_frame: A frame from a peer, once and in order; ``LinkError`` closes that connection, any other error is a
            bug.
        on_up: A connection to this incarnation of a peer was established.
        on_down: It ended; the link keeps untaken frames and resumes after a reconnect.
        on_reset: The incarnation was replaced or forgotten: all state about it is void.
        rng: For the jitter of reconnects.
        on_read: The frames of one read of a connection were handed over.
        early: Reads links in the reactor hook and reports to this callback (``early_reads``); None: tasks read.
        give_way: Called between two pieces of an early read.
        roster: Registered nodes of this node's map; None at routers.

    Attributes:
        known: Addresses of nodes of the map, of seeds, and of peers whose certificates were accepted.
        handshakes: Accepted connections whose HELLO was not accepted yet.
        router_fault: Why the router that answered last takes no link of this node, or why this node refused it; "" if
            linked.
        reads: Reads the links and the owner's other descriptors early, while ``run`` runs, if requested and available.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        contexts: LinkContexts | None,
        *,
        on_frame: Callable[[PeerKey, int, bytes], None],
        on_up: Callable[[PeerKey], None],
        on_down: Callable[[PeerKey], None],
        on_reset: Callable[[PeerKey], None],
        rng: random.Random,
        on_read: Callable[[], None] = lambda: None,
        resend_bytes_max: int = RESEND_BYTES_MAX,
        early: Callable[[float, float], None] | None = None,
        give_way: GiveWay = stay,
        roster: Roster | None = None,
    ) -> None:
        self._contexts = contexts
        self._early, self._give_way = early, give_way
        self.reads: ReactorHook | None = None
        self._rng = rng
        self._on_up, self._on_down, self._on_read = on_up, on_down, on_read
        self._down: dict[str, trio.Event] = {}  # by node; set when its present connection ended
        self.table = LinkTable(
            identity,
            on_frame=on_frame,
            on_up=self._link_up,
            on_down=self._link_down,
            on_reset=on_reset,
            resend_bytes_max=resend_bytes_max,
            roster=roster,
        )
        self._targets: dict[tuple[str, str], _Target] = {}  # by (node or "", address)
        self._connections: set[LinkConnection] = set()
        self._paused: set[str] = set()  # nodes whose links are not read
        if contexts is not None:
            contexts.revoked.call_at_put(self._cut_revoked)
        self._nursery: trio.Nursery | None = None
        self.known = KnownAddresses()
        self.handshakes: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["node_links"], self.known.knows)
        self.router_fault = ""
        self.refusals = {"certificate": 0, "hello": 0}  # connections, by reason

    # -- for the owner

    @property
    def identity(self) -> NodeIdentity:
        """This node, with the address that it listens on."""
        return self.table.identity

    @property
    def connections_refused(self) -> int:
        """Number of incoming connections that this node refused."""
        return sum(self.refusals.values())

    def refused_by_reason(self) -> dict[tuple[str, ...], float]:
        """Return the number of refusals by reason, for the metrics page: connections, fenced incarnations."""
        counts = {**self.refusals, "condemned": self.table.incarnations_fenced}
        return {(reason,): float(count) for reason, count in counts.items()}

    @property
    def frames_refused(self) -> dict[str, int]:
        """Frames that ``send`` did not queue, by reason."""
        return self.table.frames_refused

    async def run(self, listen_address: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started with the bound address, "" if it does not listen.

        Raises:
            UserError: The address cannot be bound.
        """
        listeners: list[trio.SocketListener] = []
        bound = ""
        if listen_address:
            host, port = split_address(listen_address)
            try:
                listeners = await trio.open_tcp_listeners(port, host=host)
            except OSError as error:
                raise UserError(f"cannot listen for nodes on {listen_address}: {error.strerror or error}") from None
            bound = f"{host}:{listeners[0].socket.getsockname()[1]}"
        if not self.identity.address:
            self.table.identity = self.identity._replace(address=bound)
        if self._contexts is None:
            say(logger, "link.plaintext", address=bound)
        try:
            with early_reads(self._early, self._give_way) as self.reads:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    for target in self._targets.values():
                        nursery.start_soon(self._dial_forever, target)
                    for listener in listeners:
                        nursery.start_soon(serve_admitted, listener, self.handshakes, boot_time, self._accept)
                    nursery.start_soon(watch, self._connections, tier_phase(self.identity.tier))
                    task_status.started(bound)
        finally:
            self._nursery = None

    def set_peers(self, peers: Mapping[str, tuple[str, str, int]]) -> None:
        """Set the peers: node -> (tier, address, incarnation; 0: unknown). Dials those that this node has to dial.

        The link to a known incarnation exists from this call on: frames for it are queued until it connects. An older
        incarnation of that node is reset (``on_reset``). Call this before sending requests of the new map. Links to
        nodes that are absent stay until ``forget`` or a later incarnation.
        """
        wanted = self.table.learn(peers)
        self.known.fix("map", (host_of(address) for _, address, _ in peers.values()))
        for key in [key for key in self._targets if key[0] and key not in wanted]:
            self._targets.pop(key).cancel.cancel()
        for (node, address), tier in wanted.items():
            self._add_target(_Target(node, tier, address), (node, address))

    def set_names(self, nodes: Iterable[str]) -> None:
        """Set the node names of the map, of dead nodes too; state of a removed name is forgotten."""
        self.table.names(nodes)

    def set_seeds(self, addresses: Sequence[str]) -> None:
        """Dial routers whose names are unknown until their HELLO."""
        self.known.fix("seeds", map(host_of, addresses))
        for key in [key for key in self._targets if not key[0] and key[1] not in addresses]:
            self._targets.pop(key).cancel.cancel()
        for address in addresses:
            self._add_target(_Target("", TIER_ROUTER, address), ("", address))

    def send(self, node: str, kind: int, payload: bytes) -> bool:
        """Queue a frame; it is sent in this loop iteration, or after a reconnect.

        Returns:
            False when no incarnation of the node is known, or its link's buffer is full: the frame was counted instead
            of queued.
        """
        return self.table.send(node, kind, payload)

    def send_all(self, frames: Iterable[tuple[str, int, bytes]]) -> set[str]:
        """Queue the frames of one iteration, as (node, kind, payload), and write at once, in one write per link.

        Returns:
            Nodes of which a frame was not queued.
        """
        return self.table.send_all(frames)

    async def drain(self) -> None:
        """Wait at most ``DRAIN_S`` until sockets have taken all queued bytes; used when this node stops."""
        with trio.move_on_after(DRAIN_S):
            while any(link.has_frames for peer in self.connected() if (link := self.link(peer.node)) is not None):
                await trio.sleep(DRAIN_POLL_S)
            await trio.sleep(DRAIN_POLL_S)  # for the last write of a task

    def link(self, node: str) -> LinkCore | None:
        """Return a peer's link, for its counters, ``room`` and ``peer_taken``."""
        peer = self.table.get(node)
        return None if peer is None else peer.core

    def peer(self, node: str) -> PeerKey | None:
        """Return the incarnation of a node that the link belongs to, connected or not."""
        peer = self.table.get(node)
        return None if peer is None else peer.key

    def whence(self, node: str) -> tuple[str, str]:
        """Return (address, serial number of the certificate) of a peer's connection; "" where unknown."""
        peer = self.table.get(node)
        connection = peer.connection if peer is not None else None
        return connection.whence if isinstance(connection, LinkConnection) else ("", "")

    def connected(self) -> list[PeerKey]:
        """Return the connected peers, by name."""
        return self.table.connected()

    def condemn(self, peer: PeerKey, why: str) -> None:
        """Fence an incarnation that violated the protocol: end its link and refuse it until it starts again."""
        self.table.condemn(peer, why)

    def pause(self, node: str) -> None:
        """Stop reading a node until ``go_on``, across reconnects; sending is unaffected."""
        self._paused.add(node)
        connection = self._connection_of(node)
        if connection is not None:
            connection.pause()

    def go_on(self, node: str) -> None:
        """Resume reading a node; the owner calls this for each paused node, also after its incarnation ended."""
        self._paused.discard(node)
        connection = self._connection_of(node)
        if connection is not None:
            connection.go_on()

    def _connection_of(self, node: str) -> LinkConnection | None:
        peer = self.table.get(node)
        connection = peer.connection if peer is not None else None
        return connection if isinstance(connection, LinkConnection) else None

    def forget(self, node: str) -> None:
        """Drop the link of a dead incarnation and its frames; ``on_reset`` follows."""
        self.table.forget(node)

    def _link_up(self, key: PeerKey) -> None:
        if key.tier == TIER_ROUTER:
            self.router_fault = ""
        self._down[key.node] = trio.Event()
        say(logger, "link.up", tier=key.tier, peer=key.node, incarnation=key.incarnation)
        self._on_up(key)

    def _link_down(self, key: PeerKey) -> None:
        down = self._down.pop(key.node, None)
        if down is not None:
            down.set()
        self._on_down(key)

    # -- dialling

    def _add_target(self, target: _Target, key: tuple[str, str]) -> None:
        if key not in self._targets:
            self._targets[key] = target
            if self._nursery is not None:
                self._nursery.start_soon(self._dial_forever, target)

    async def _dial_forever(self, target: _Target) -> None:
        """Keep a connection to a target, until the target is withdrawn."""
        failures = 0
        with target.cancel:
            while True:
                down = self._down.get(target.node)
                if down is not None:
                    await down.wait()  # unbounded: the connection's idle timeout ends it
                    failures = 0
                elif target.seed and self._named(target.address):
                    failures += 1  # the map names the node at this address; that target dials
                elif await self._dial(target, quiet=failures > 0):
                    failures = 0
                else:
                    failures += 1
                await trio.sleep(backoff_s(failures, self._rng))

    def _named(self, address: str) -> bool:
        return any(node and known == address for node, known in self._targets)

    async def _dial(self, target: _Target, *, quiet: bool) -> bool:
        """Connect and serve until the connection ends; False if it was never established."""
        level = logging.DEBUG if quiet else logging.INFO
        step = "TLS handshake"
        stream: Stream | None = None
        try:
            with trio.fail_after(HELLO_TIMEOUT_S):
                stream = await open_stream(target.address)
                if self._contexts is not None:
                    stream = await wrap_tls(stream, self._contexts.client, server_side=False)
                certified = self._certified(stream)
                step = "exchange of HELLO"
                position, ours = self.table.greeting(target.node)
                await stream.send_all(ours)
                hello, rest = await read_hello(stream)
                expected = "" if target.seed else target.node
                key = self.table.dialled(hello, certified, target.tier, expected)
                target.node = key.node
                self._authenticated(certified, stream)
        except CONNECTION_FAILURES as error:
            where, why = (
                plain_text(target.address),
                failure_text(error, step),
            )  # from the map: chosen by another node
            if target.tier == TIER_ROUTER:
                self.router_fault = why if isinstance(error, LinkError) and not isinstance(error, PeerGone) else ""
            say(logger, "link.not_dialled", tier=target.tier, peer=target.node, address=where, why=why, level=level)
            if stream is not None:
                await close_quietly(stream)
            return False
        return await self._serve(stream, key, hello, rest, position=position, dialled=True)

    # -- accepting

    def _certified(self, stream: Stream) -> tuple[str, str, str] | None:
        """Check a peer's certificate before any of its bytes are decoded; None on a plaintext link.

        Raises:
            LinkError: It names no node that may link to this one, or is revoked.
        """
        certified = certified_identity(stream)
        if certified is not None:
            check_certificate(self.identity, certified, link_tiers(self.identity.tier))
        self._check_revoked(stream)
        return certified

    def _check_revoked(self, stream: Stream) -> None:
        if self._contexts is not None:
            self._contexts.revoked.check(certificate_of(stream))

    def _cut_revoked(self) -> None:
        """End links whose certificates are revoked by the current lists."""
        assert self._contexts is not None
        for connection in list(self._connections):
            why = self._contexts.revoked.end_of(connection.certificate)
            if why:
                connection.cut(why)

    async def _accept(self, stream: trio.SocketStream, place: AdmissionSlot[trio.CancelScope]) -> None:
        accepted = await self._shake_hands(stream)
        place.leave()
        if accepted is not None:
            secured, key, hello, rest, position = accepted
            await self._serve(secured, key, hello, rest, position=position, dialled=False)

    async def _shake_hands(
        self, stream: trio.SocketStream
    ) -> tuple[Stream, PeerKey, LinkHello, bytes, HelloResume] | None:
        """Do the TLS handshake and exchange HELLOs; None if the peer was refused and the stream is closed."""
        secured: Stream = stream
        refusal = "certificate"
        try:
            with trio.fail_after(HELLO_TIMEOUT_S):
                if self._contexts is not None:
                    secured = await wrap_tls(stream, self._contexts.server, server_side=True)
                certified = self._certified(secured)
                refusal = "hello"
                hello, rest = await self._hello_of(secured)
                known = self.table.get(hello.node)
                later = known.key.incarnation if known is not None and known.key.incarnation > hello.incarnation else 0
                if hello.cluster != self.identity.cluster or later:
                    await secured.send_all(encode_hello(self.identity, later))  # lets the peer report the reason
                try:
                    key, position, ours = self.table.accepted(hello, certified)
                except OtherCluster:
                    await secured.send_all(encode_hello(self.identity))  # likewise
                    raise
                await secured.send_all(ours)
        except CONNECTION_FAILURES as error:
            self.refusals[refusal] += 1
            step = "TLS handshake" if refusal == "certificate" else "exchange of HELLO"
            say(logger, "link.refused", why=failure_text(error, step))
            await close_quietly(secured)
            return None
        except trio.Cancelled:
            await close_quietly(secured)  # displaced, or this node ends: the socket may belong to the TLS stream
            raise
        self._authenticated(certified, secured)
        return secured, key, hello, rest, position

    def _authenticated(self, certified: tuple[str, str, str] | None, stream: Stream) -> None:
        """Record the address of a peer whose certificate was accepted; plaintext links prove no identity."""
        if certified is not None:
            self.known.add("/".join(certified), address_of(stream), boot_time())

    async def _hello_of(self, stream: Stream) -> tuple[LinkHello, bytes]:
        """Read a HELLO; one of another version is answered, so that the peer can report the reason."""
        try:
            return await read_hello(stream)
        except OtherVersion:
            await stream.send_all(encode_hello(self.identity))
            raise

    # -- one connection

    async def _serve(
        self, stream: Stream, key: PeerKey, hello: LinkHello, rest: bytes, *, position: HelloResume, dialled: bool
    ) -> bool:
        """Run a connection until it ends, after the exchange of HELLOs.

        Args:
            position: (incarnation, taken) of our HELLO: the peer resumes from there only if this is its incarnation.
        Returns:
            Whether it was established.
        """
        table = self.table
        try:
            peer = table.peer_of(key)
            take = partial(table.frame, peer)
            connection = LinkConnection(stream, peer.core, take, self._on_read, self.reads, speak_s_of(key.tier))
            self._check_revoked(stream)  # again: lists that arrived since the handshake did not see this link
            table.join(peer, connection, hello, position, dialled=dialled)
            if key.node in self._paused:
                connection.pause()
        except LinkError as error:
            say(logger, "link.failed", peer=key.node, why=error)
            await close_quietly(stream)
            return False
        self._connections.add(connection)
        try:
            await connection.run(rest)
        finally:
            self._connections.discard(connection)
            table.ended(peer, connection)
            connection.close()
        say(logger, "link.down", tier=key.tier, peer=key.node, why=connection.why)
        return True
