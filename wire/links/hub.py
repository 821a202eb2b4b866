"""Links of a router or storage node: listen, dial, keep connections to every peer.

Decides when to dial and when to try again. Leaves who is admitted and where a link resumes to
``wire/links/link_table.py``, certificates to ``wire/links/tls.py``, and what frames mean to its owner's callbacks,
which are called synchronously from the loop. The edge has its own loop and uses the same cores.
Source: design sections 7 and 9; docs/adr/0005-wire-format.md.
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

DRAIN_S = 0.5  # at this node's end, for what was queued
DRAIN_LOOK_S = 0.01
CONNECTION_FAILURES = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    LinkError,
    UserError,
)


class _Target:
    """Somewhere to dial; at a seed's address any router may answer."""

    __slots__ = ("address", "cancel", "node", "seed", "tier")

    def __init__(self, node: str, tier: str, address: str) -> None:
        self.node = node  # of a seed: who answered last
        self.seed = not node
        self.tier = tier
        self.address = address
        self.cancel = trio.CancelScope()


class LinkHub:
    """All links of one node.

    Args:
        identity: This node; an empty address is replaced by the one listened on.
        contexts: Mutual TLS; None for plaintext, which the log says at start.
        on_frame: A frame from a peer, once and in order; ``LinkError`` closes that connection, anything else is a bug.
        on_up: A connection to this incarnation of a peer stands.
        on_down: It ended; the link keeps what was not taken and goes on after a reconnect.
        on_reset: This incarnation is over, another one appeared or it was forgotten: everything of it is void.
        rng: For the jitter of reconnects.
        on_read: The frames of one read of a connection were handed over.
        early: Links are read where trio would wait (``early_reads``, which calls this); None: by tasks.
        give_way: Between two pieces of an early read.
        roster: Who is registered, by this node's map; None at routers.

    Attributes:
        known: Addresses of nodes of the map, of seeds, and of peers whose certificates were accepted.
        handshakes: Accepted connections whose HELLO was not accepted yet.
        router_fault: Why the router that was dialled last and answered takes no link, or none of ours; "" if it does.
        reads: Reads the links early, and what else the owner has; while ``run`` runs, if asked for and possible.
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
            on_up=self._stands,
            on_down=self._ended,
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

    # -- what the owner calls

    @property
    def identity(self) -> NodeIdentity:
        """This node, with the address that it listens on."""
        return self.table.identity

    @property
    def connections_refused(self) -> int:
        """Connections that others opened and this node did not take."""
        return sum(self.refusals.values())

    def refused_by_reason(self) -> dict[tuple[str, ...], float]:
        """Return what was refused so far, for the metrics page: connections, incarnations that broke the rules."""
        counts = {**self.refusals, "condemned": self.table.incarnations_condemned}
        return {(reason,): float(count) for reason, count in counts.items()}

    @property
    def frames_refused(self) -> dict[str, int]:
        """Frames that ``send`` did not queue, by reason."""
        return self.table.frames_refused

    async def run(self, listen_address: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started with the address bound, "" for who listens nowhere.

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
        """Say who else there is: node -> (tier, address, incarnation; 0: unknown). Dials those it is ours to dial.

        The link to a known incarnation exists from here on: what is sent to it waits for the connection, and an older
        incarnation of that node is over (``on_reset``). Call it before sending what the new map asks for. Links to
        nodes that are not named any more stay until ``forget``, or another incarnation.
        """
        wanted = self.table.learn(peers)
        self.known.fix("map", (host_of(address) for _, address, _ in peers.values()))
        for key in [key for key in self._targets if key[0] and key not in wanted]:
            self._targets.pop(key).cancel.cancel()
        for (node, address), tier in wanted.items():
            self._add_target(_Target(node, tier, address), (node, address))

    def set_names(self, nodes: Iterable[str]) -> None:
        """Say which names the map has, of dead nodes too; what is known of one that it has no more is forgotten."""
        self.table.names(nodes)

    def set_seeds(self, addresses: Sequence[str]) -> None:
        """Dial routers whose names are not known yet; HELLO tells them."""
        self.known.fix("seeds", map(host_of, addresses))
        for key in [key for key in self._targets if not key[0] and key[1] not in addresses]:
            self._targets.pop(key).cancel.cancel()
        for address in addresses:
            self._add_target(_Target("", TIER_ROUTER, address), ("", address))

    def send(self, node: str, kind: int, payload: bytes) -> bool:
        """Queue a frame; it leaves in this turn of the loop, or after a reconnect.

        Returns:
            False when no incarnation of the node is known, or its link has no room: nothing was queued, that is
            counted.
        """
        return self.table.send(node, kind, payload)

    def send_all(self, frames: Iterable[tuple[str, int, bytes]]) -> set[str]:
        """Queue what a turn of the owner sends, as (node, kind, payload); it leaves at once, in one write per link.

        Returns:
            Nodes of which a frame was not queued.
        """
        return self.table.send_all(frames)

    async def drain(self) -> None:
        """Wait, a moment at most, until sockets have taken everything that was queued: this node ends."""
        with trio.move_on_after(DRAIN_S):
            while any(link.has_frames for peer in self.connected() if (link := self.link(peer.node)) is not None):
                await trio.sleep(DRAIN_LOOK_S)
            await trio.sleep(DRAIN_LOOK_S)  # what a task wrote last

    def link(self, node: str) -> LinkCore | None:
        """Return a peer's link, for its counters, ``room`` and ``peer_taken``."""
        peer = self.table.get(node)
        return None if peer is None else peer.core

    def peer(self, node: str) -> PeerKey | None:
        """Return the incarnation of a node that the link belongs to, connected or not."""
        peer = self.table.get(node)
        return None if peer is None else peer.key

    def whence(self, node: str) -> tuple[str, str]:
        """Return (address, serial number of the certificate) of a peer's connection; "" for what is not known."""
        peer = self.table.get(node)
        connection = peer.connection if peer is not None else None
        return connection.whence if isinstance(connection, LinkConnection) else ("", "")

    def connected(self) -> list[PeerKey]:
        """Return the peers with a standing connection, by name."""
        return self.table.connected()

    def condemn(self, peer: PeerKey, why: str) -> None:
        """End the link of an incarnation that broke the protocol; it is refused until it starts again."""
        self.table.condemn(peer, why)

    def pause(self, node: str) -> None:
        """Read nothing more of a node until ``go_on``, on its next connections neither; it is sent to as ever."""
        self._paused.add(node)
        connection = self._connection_of(node)
        if connection is not None:
            connection.pause()

    def go_on(self, node: str) -> None:
        """Read a node again; its owner says so for each that it paused, also when that is over."""
        self._paused.discard(node)
        connection = self._connection_of(node)
        if connection is not None:
            connection.go_on()

    def _connection_of(self, node: str) -> LinkConnection | None:
        peer = self.table.get(node)
        connection = peer.connection if peer is not None else None
        return connection if isinstance(connection, LinkConnection) else None

    def forget(self, node: str) -> None:
        """A node's incarnation is over (dead in the map): drop its link and what it held; ``on_reset`` follows."""
        self.table.forget(node)

    def _stands(self, key: PeerKey) -> None:
        if key.tier == TIER_ROUTER:
            self.router_fault = ""
        self._down[key.node] = trio.Event()
        say(logger, "link.up", tier=key.tier, peer=key.node, incarnation=key.incarnation)
        self._on_up(key)

    def _ended(self, key: PeerKey) -> None:
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
                    await down.wait()  # for ever is right: the connection's idle timeout bounds it
                    failures = 0
                elif target.seed and self._named(target.address):
                    failures += 1  # the map names who is there; that target dials
                elif await self._dial(target, quiet=failures > 0):
                    failures = 0
                else:
                    failures += 1
                await trio.sleep(backoff_s(failures, self._rng))

    def _named(self, address: str) -> bool:
        return any(node and known == address for node, known in self._targets)

    async def _dial(self, target: _Target, *, quiet: bool) -> bool:
        """Connect and serve until the connection ends; False when it never stood."""
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
                told, ours = self.table.greeting(target.node)
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
            )  # of the map: another node said where it is
            if target.tier == TIER_ROUTER:
                self.router_fault = why if isinstance(error, LinkError) and not isinstance(error, PeerGone) else ""
            say(logger, "link.not_dialled", tier=target.tier, peer=target.node, address=where, why=why, level=level)
            if stream is not None:
                await close_quietly(stream)
            return False
        return await self._serve(stream, key, hello, rest, told=told, dialled=True)

    # -- accepting

    def _certified(self, stream: Stream) -> tuple[str, str, str] | None:
        """Judge a peer's certificate before anything that it says is read; None on a plaintext link.

        Raises:
            LinkError: It names no node that has business here, or is revoked.
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
        """End links whose certificates the lists that are in force now revoke."""
        assert self._contexts is not None
        for connection in list(self._connections):
            why = self._contexts.revoked.end_of(connection.certificate)
            if why:
                connection.cut(why)

    async def _accept(self, stream: trio.SocketStream, place: AdmissionSlot[trio.CancelScope]) -> None:
        accepted = await self._shake_hands(stream)
        place.leave()
        if accepted is not None:
            secured, key, hello, rest, told = accepted
            await self._serve(secured, key, hello, rest, told=told, dialled=False)

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
                    await secured.send_all(encode_hello(self.identity, later))  # lets the other side say what is wrong
                try:
                    key, told, ours = self.table.accepted(hello, certified)
                except OtherCluster:
                    await secured.send_all(encode_hello(self.identity))  # as well
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
        return secured, key, hello, rest, told

    def _authenticated(self, certified: tuple[str, str, str] | None, stream: Stream) -> None:
        """Know the address of a peer whose certificate was accepted; plaintext links prove nothing."""
        if certified is not None:
            self.known.add("/".join(certified), address_of(stream), boot_time())

    async def _hello_of(self, stream: Stream) -> tuple[LinkHello, bytes]:
        """Read a HELLO; one of another version is answered, which lets the other side say what is wrong."""
        try:
            return await read_hello(stream)
        except OtherVersion:
            await stream.send_all(encode_hello(self.identity))
            raise

    # -- one connection

    async def _serve(
        self, stream: Stream, key: PeerKey, hello: LinkHello, rest: bytes, *, told: HelloResume, dialled: bool
    ) -> bool:
        """Run a connection whose HELLOs were exchanged until it ends.

        Args:
            told: (incarnation, taken) of our HELLO: the peer resumes from there only if this is its incarnation.
        Returns:
            Whether it stood.
        """
        table = self.table
        try:
            peer = table.peer_of(key)
            take = partial(table.frame, peer)
            connection = LinkConnection(stream, peer.core, take, self._on_read, self.reads, speak_s_of(key.tier))
            self._check_revoked(stream)  # again: lists may have come since the handshake, and would not find this link
            table.join(peer, connection, hello, told, dialled=dialled)
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
