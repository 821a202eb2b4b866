"""Links of a router or storage node: listen, dial, keep one ``LinkCore`` per peer alive across connections.

Decides who dials, when a silent connection is given up and when to try again. Leaves numbering to ``wire/link.py``,
identity to ``wire/hello.py`` and ``wire/tls.py``, and what frames mean to its owner's callbacks, which are called
synchronously from the loop. The edge has its own loop and uses the same cores.
Source: design sections 7 and 9; docs/adr/0005-wire-format.md.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio

from conf.errors import UserError
from wire.connection import (
    HELLO_TIMEOUT_S,
    Connection,
    Stream,
    certified_identity,
    close_quietly,
    read_hello,
    split_address,
    wrap_tls,
)
from wire.hello import (
    DIAL_RANK,
    TIER_OPERATOR,
    TIER_ROUTER,
    Hello,
    LinkError,
    NodeIdentity,
    PeerKey,
    check_hello,
    dials,
    encode_hello,
    may_send,
)
from wire.link import RESEND_BYTES_MAX, LinkCore, LinkFull
from wire.tls import LinkContexts

__all__ = ["LinkHub"]

logger = logging.getLogger(__name__)

BACKOFF_MIN_S = 0.05  # first wait after a failed dial
BACKOFF_MAX_S = 1.0  # a peer that comes back is found within about this
HANDSHAKES_MAX = 256  # connections between accept and HELLO; more are closed at once and try again
PEERS_MAX = 1024  # lives of nodes kept; past it the longest-disconnected is forgotten, and reset
MISMATCHES_MAX = 3  # contradicting HELLOs before both sides begin anew
CONNECTION_FAILURES = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    LinkError,
    UserError,
)


class _Peer:
    """One life of a node: its link and, while there is one, its connection."""

    __slots__ = ("address", "condemned", "connection", "core", "dialled_by_us", "down", "key", "mismatches")

    def __init__(self, key: PeerKey, resend_bytes_max: int) -> None:
        self.key = key
        self.core = LinkCore(resend_bytes_max)
        self.connection: Connection | None = None
        self.dialled_by_us = False
        self.address = ""
        self.mismatches = 0  # connections in a row whose HELLO contradicted the link
        self.condemned = ""  # why no further connection of this life is taken
        self.down = trio.Event()  # set when the present connection ended


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
        on_up: A connection to this life of a peer stands.
        on_down: It ended; the link keeps what was not taken and goes on after a reconnect.
        on_reset: This life is over, another one appeared or it was forgotten: everything of it is void.
        rng: For the jitter of reconnects.
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
        resend_bytes_max: int = RESEND_BYTES_MAX,
        accept_tiers: frozenset[str] | None = None,  # None: every tier; operators only at routers
    ) -> None:
        self.identity = identity
        self._contexts = contexts
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._on_reset = on_reset
        self._rng = rng
        self._resend_bytes_max = resend_bytes_max
        every_tier = frozenset(DIAL_RANK) if identity.tier == TIER_ROUTER else frozenset(DIAL_RANK) - {TIER_OPERATOR}
        self._accept_tiers = every_tier if accept_tiers is None else accept_tiers
        self._peers: dict[str, _Peer] = {}  # by node; in order of first appearance
        self._targets: dict[tuple[str, str], _Target] = {}  # by (node or "", address)
        self._nursery: trio.Nursery | None = None
        self._handshakes = 0
        self.frames_refused: dict[str, int] = {"no_peer": 0, "no_room": 0}
        self.connections_refused = 0

    # -- what the owner calls

    async def run(self, listen_address: str, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started with the address bound.

        Raises:
            UserError: The address cannot be bound.
        """
        host, port = split_address(listen_address)
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise UserError(f"cannot listen for nodes on {listen_address}: {error.strerror or error}") from None
        bound = f"{host}:{listeners[0].socket.getsockname()[1]}"
        if not self.identity.address:
            self.identity = self.identity._replace(address=bound)
        if self._contexts is None:
            logger.warning("links on %s are PLAINTEXT: nodes are not authenticated (node.plaintext_links)", bound)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for target in self._targets.values():
                    nursery.start_soon(self._dial_forever, target)
                nursery.start_soon(trio.serve_listeners, self._accept, listeners)
                task_status.started(bound)
        finally:
            self._nursery = None

    def set_peers(self, peers: Mapping[str, tuple[str, str, int]]) -> None:
        """Say who else there is: node -> (tier, address, incarnation; 0: unknown). Dials those it is ours to dial.

        The link to a known incarnation exists from here on: what is sent to it waits for the connection, and an older
        life of that node is over (``on_reset``). Call it before sending what the new map asks for. Links to nodes that
        are not named any more stay until ``forget``, or another life.
        """
        wanted = {}
        for node, (tier, address, incarnation) in peers.items():
            if node == self.identity.node:
                continue
            known = self._peers.get(node)
            if incarnation > (known.key.incarnation if known is not None else 0):
                self._peer_of(PeerKey(node, tier, incarnation))
            if address and dials(self.identity.tier, self.identity.node, tier, node):
                wanted[(node, address)] = tier
        for key in [key for key in self._targets if key[0] and key not in wanted]:
            self._targets.pop(key).cancel.cancel()
        for (node, address), tier in wanted.items():
            self._add_target(_Target(node, tier, address), (node, address))

    def set_seeds(self, addresses: Sequence[str]) -> None:
        """Dial routers whose names are not known yet; HELLO tells them."""
        for key in [key for key in self._targets if not key[0] and key[1] not in addresses]:
            self._targets.pop(key).cancel.cancel()
        for address in addresses:
            self._add_target(_Target("", TIER_ROUTER, address), ("", address))

    def send(self, node: str, kind: int, payload: bytes) -> bool:
        """Queue a frame; it leaves in this turn of the loop, or after a reconnect.

        Returns:
            False when no life of the node is known, or its link has no room: nothing was queued, that is counted.
        """
        peer = self._peers.get(node)
        if peer is None:
            self.frames_refused["no_peer"] += 1
            return False
        try:
            peer.core.send(kind, payload)
        except LinkFull:
            self.frames_refused["no_room"] += 1
            return False
        if peer.connection is not None:
            peer.connection.wake()
        return True

    def flush(self) -> None:
        """Let everything leave that is due; frames of one turn of the loop share a write anyway."""
        for peer in self._peers.values():
            if peer.connection is not None and peer.core.wants_flush:
                peer.connection.wake()

    def link(self, node: str) -> LinkCore | None:
        """Return a peer's link, for its counters, ``room`` and ``peer_taken``."""
        peer = self._peers.get(node)
        return None if peer is None else peer.core

    def peer(self, node: str) -> PeerKey | None:
        """Return the life of a node that the link belongs to, connected or not."""
        peer = self._peers.get(node)
        return None if peer is None else peer.key

    def connected(self) -> list[PeerKey]:
        """Return the peers with a standing connection, by name."""
        return sorted(peer.key for peer in self._peers.values() if peer.connection is not None)

    def forget(self, node: str) -> None:
        """A node's life is over (dead in the map): drop its link and what it held; ``on_reset`` follows."""
        peer = self._peers.pop(node, None)
        if peer is not None:
            self._drop_connection(peer)
            self._on_reset(peer.key)

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
                peer = self._peers.get(target.node)
                if peer is not None and peer.connection is not None:
                    await peer.down.wait()  # for ever is right: the connection's idle timeout bounds it
                    failures = 0
                elif target.seed and self._named(target.address):
                    failures += 1  # the map names who is there; that target dials
                elif await self._dial(target, quiet=failures > 0):
                    failures = 0
                else:
                    failures += 1
                await trio.sleep(self._backoff_s(failures))

    def _named(self, address: str) -> bool:
        return any(node and known == address for node, known in self._targets)

    def _backoff_s(self, failures: int) -> float:
        ceiling = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 10))
        return max(BACKOFF_MIN_S, ceiling * (0.5 + 0.5 * self._rng.random()))

    async def _dial(self, target: _Target, *, quiet: bool) -> bool:
        """Connect and serve until the connection ends; False when it never stood."""
        level = logging.DEBUG if quiet else logging.INFO
        stream: Stream | None = None
        try:
            with trio.fail_after(HELLO_TIMEOUT_S):
                host, port = split_address(target.address)
                stream = await trio.open_tcp_stream(host, port)
                if self._contexts is not None:
                    stream = await wrap_tls(stream, self._contexts.client, server_side=False)
                known = self._peers.get(target.node)
                incarnation, taken = (known.key.incarnation, known.core.taken) if known else (0, 0)
                await stream.send_all(encode_hello(self.identity, incarnation, taken))
                hello, rest = await read_hello(stream)
                key = check_hello(self.identity, hello, certified_identity(stream))
                if key.tier != target.tier or (key.node != target.node and not target.seed):
                    raise LinkError(f"expected {target.tier} {target.node}, found {key.tier} {key.node}")
                target.node = key.node
                self._admit(key)
        except CONNECTION_FAILURES as error:
            logger.log(level, "cannot link to %s %s at %s: %s", target.tier, target.node, target.address, error)
            if stream is not None:
                await close_quietly(stream)
            return False
        return await self._serve(stream, key, hello, rest, told=(incarnation, taken), dialled=True)

    # -- accepting

    async def _accept(self, stream: trio.SocketStream) -> None:
        secured: Stream = stream
        try:
            self._handshakes += 1
            if self._handshakes > HANDSHAKES_MAX:
                raise LinkError(f"more than {HANDSHAKES_MAX} handshakes at once")
            with trio.fail_after(HELLO_TIMEOUT_S):
                if self._contexts is not None:
                    secured = await wrap_tls(stream, self._contexts.server, server_side=True)
                hello, rest = await read_hello(secured)
                if hello.cluster != self.identity.cluster:
                    await secured.send_all(encode_hello(self.identity))  # lets the other side say what is wrong
                key = check_hello(self.identity, hello, certified_identity(secured))
                self._admit(key)
                known = self._peers.get(key.node)
                told = (key.incarnation, known.core.taken) if known and known.key == key else (0, 0)
                if known is not None:
                    self._drop_connection(known)  # before "taken" is told: it must not move afterwards
                await secured.send_all(encode_hello(self.identity, *told))
        except CONNECTION_FAILURES as error:
            self.connections_refused += 1
            logger.info("refused a link: %s", error)
            await close_quietly(secured)
            return
        finally:
            self._handshakes -= 1
        await self._serve(secured, key, hello, rest, told=told, dialled=False)

    def _admit(self, key: PeerKey) -> None:
        if key.tier not in self._accept_tiers:
            raise LinkError(f"a {self.identity.tier} takes no link from {key.tier} {key.node}")
        known = self._peers.get(key.node)
        if known is None:
            return
        if known.key.tier != key.tier:
            raise LinkError(f"{key.node} was a {known.key.tier} and now claims to be a {key.tier}")
        if known.key.incarnation > key.incarnation:
            raise LinkError(f"{key.node} incarnation {key.incarnation} is over, {known.key.incarnation} was seen")
        if known.key == key and known.condemned:
            raise LinkError(f"{key.node} broke the protocol and is refused until it starts again: {known.condemned}")
        # Two routers that know each other only as seeds dial each other: the one that the rule names wins.
        ours = dials(self.identity.tier, self.identity.node, key.tier, key.node)
        if known.connection is not None and known.key == key and ours and known.dialled_by_us:
            raise LinkError(f"{key.node} is linked already")

    # -- one connection

    async def _serve(
        self, stream: Stream, key: PeerKey, hello: Hello, rest: bytes, *, told: tuple[int, int], dialled: bool
    ) -> bool:
        """Run a connection whose HELLOs were exchanged until it ends.

        Args:
            told: (incarnation, taken) of our HELLO: the peer resumes from there only if this is its life.
        Returns:
            Whether it stood.
        """
        peer = self._peer_of(key)
        resumed = hello.taken if hello.peer_incarnation == self.identity.incarnation else 0
        connection = Connection(stream, peer.core, lambda kind, payload: self._frame(peer, kind, payload))
        self._drop_connection(peer)
        try:
            if peer.core.taken != (told[1] if told[0] == key.incarnation else 0):
                raise LinkError(f"{key.node}: another connection moved the link meanwhile")
            peer.core.connected(resumed)
        except LinkError as error:
            logger.warning("link to %s: %s", key.node, error)
            self._mismatch(peer)
            await close_quietly(stream)
            return False
        peer.connection, peer.dialled_by_us, peer.down, peer.mismatches = connection, dialled, trio.Event(), 0
        peer.address = hello.address
        logger.info("link to %s %s is up (incarnation %d)", key.tier, key.node, key.incarnation)
        try:
            self._on_up(key)
            await connection.run(rest)
        finally:
            if peer.connection is connection:
                self._drop_connection(peer)
            connection.close()
            if key.tier == TIER_OPERATOR and self._peers.get(key.node) is peer:
                self.forget(key.node)
        logger.info("link to %s %s is down: %s", key.tier, key.node, connection.why)
        return True

    def _mismatch(self, peer: _Peer) -> None:
        """Begin anew with a peer that forgot this link (it was told that we are dead, or had too many peers).

        Not at the first contradiction: two connections that cross each other contradict one another once.
        """
        peer.mismatches += 1
        if peer.mismatches >= MISMATCHES_MAX and self._peers.get(peer.key.node) is peer:
            logger.warning("the link to %s begins anew: the other side forgot it", peer.key.node)
            self.forget(peer.key.node)

    def _peer_of(self, key: PeerKey) -> _Peer:
        """Return the link of this life, ending another life of the same node."""
        peer = self._peers.get(key.node)
        if peer is not None and peer.key != key:
            self.forget(key.node)
            peer = None
        if peer is None:
            if len(self._peers) >= PEERS_MAX:
                self._evict()
            peer = self._peers[key.node] = _Peer(key, self._resend_bytes_max)
        return peer

    def _evict(self) -> None:
        for node, peer in self._peers.items():
            if peer.connection is None:
                logger.warning("forgetting the link to %s: more than %d peers", node, PEERS_MAX)
                self.forget(node)
                return
        logger.warning("more than %d peers are connected", PEERS_MAX)

    def _drop_connection(self, peer: _Peer) -> None:
        connection = peer.connection
        if connection is None:
            return
        peer.connection = None
        connection.close()
        peer.core.disconnected()
        peer.down.set()
        self._on_down(peer.key)

    def _frame(self, peer: _Peer, kind: int, payload: bytes) -> None:
        if not may_send(peer.key.tier, self.identity.tier, kind):
            peer.condemned = f"a {peer.key.tier} may not send frame kind {kind} to a {self.identity.tier}"
            raise LinkError(peer.condemned)
        try:
            self._on_frame(peer.key, kind, payload)
        except (LinkError, msgspec.MsgspecError) as error:
            # Frames read together with this one count as taken and will not come again: the link cannot go on.
            peer.condemned = f"frame kind {kind}: {error}"
            raise LinkError(peer.condemned) from None
