"""A router or storage process of the simulation: ``LinkTable`` over simulated streams, dialling, silence detection.

Replaces the trio parts of ``wire/links/hub.py`` and ``wire/links/connection.py``; the rules are those of the table and
of ``LinkCore``.
"""

import random
from collections.abc import Iterable

from tests.simulation.network import Endpoint
from tests.simulation.process import Process, World
from wire.links.admission import HelloResume
from wire.links.connection import HELLO_TIMEOUT_S, WATCH_S
from wire.links.link_table import LinkPeer, LinkTable
from wire.links.redial import BACKOFF_MIN_S, backoff_s
from wire.links.roster import Roster
from wire.links.silence import Silence, SilenceCheck
from wire.messages.hello import TIER_ROUTER, HelloReader, LinkError, LinkHello, NodeIdentity, PeerKey

__all__ = ["LinkConnection", "LinkProcess", "Target"]

CLUSTER = "sim"


class Target:
    """An address to dial."""

    def __init__(self, node: str, tier: str, address: str) -> None:
        self.node, self.tier, self.address = node, tier, address
        self.seed = not node
        self.failures = 0
        self.gone = False


class LinkConnection:
    """One stream of a link."""

    def __init__(self, process: "LinkProcess", end: Endpoint, target: Target | None) -> None:
        self.process = process
        self.end = end
        self.target = target
        self.reader: HelloReader | None = HelloReader()
        self.told = HelloResume()
        self.peer: LinkPeer | None = None
        self.silence = Silence(WATCH_S)
        self.awake = False  # may have data to write
        self.over = False
        end.notify = process.poke

    def wake(self) -> None:
        """Mark for the flush at the end of the iteration."""
        self.awake = True
        self.process.poke()

    flush = wake

    def close(self) -> None:
        """Close the connection."""
        self.over = True
        self.end.close()


class LinkProcess(Process):
    """A process with the links of ``LinkHub``."""

    tier = ""

    def __init__(self, world: World, node: str, seeds: list[str], clock_offset_s: float) -> None:
        super().__init__(world, node, clock_offset_s)
        self.node = node
        self.address = f"{node}:1"
        self.seeds = seeds
        self.incarnation = 0
        self.rng = random.Random()

    # -- lives

    def begin_links(self, incarnation: int, rng: random.Random) -> None:
        """Begin a life with empty tables, and start dialling."""
        self.rng = rng
        self.incarnation = incarnation
        self.table = LinkTable(
            NodeIdentity(CLUSTER, self.node, self.tier, incarnation, self.address),
            on_frame=self.on_frame,
            on_up=self.on_up,
            on_down=self.on_down,
            on_reset=self.on_reset,
            roster=self.roster(),
        )
        self._connections: list[LinkConnection] = []
        self._targets: dict[tuple[str, str], Target] = {}
        self.begin()
        for address in self.seeds:
            self._add_target(Target("", TIER_ROUTER, address), ("", address))
        self.later(WATCH_S, self._watch)

    # -- for the tier

    def roster(self) -> Roster | None:
        """Return the nodes that may link to this process; None: every node with a certificate."""
        return None

    def on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        """Process a frame."""
        raise NotImplementedError

    def on_up(self, peer: PeerKey) -> None:
        """Process a new link."""
        raise NotImplementedError

    def on_down(self, peer: PeerKey) -> None:
        """Process a closed link."""
        raise NotImplementedError

    def on_reset(self, peer: PeerKey) -> None:
        """Process a reset link, whose unprocessed frames are lost."""
        self.on_down(peer)

    def set_peers(self, peers: dict[str, tuple[str, str, int]]) -> None:
        """Set the other nodes, and dial those that this node must dial."""
        wanted = self.table.learn(peers)
        for key in [key for key in self._targets if key[0] and key not in wanted]:
            self._targets.pop(key).gone = True
        for (node, address), tier in wanted.items():
            self._add_target(Target(node, tier, address), (node, address))

    def set_names(self, nodes: Iterable[str]) -> None:
        """Set the names in the map."""
        self.table.names(nodes)

    # -- dialling

    def _add_target(self, target: Target, key: tuple[str, str]) -> None:
        if key not in self._targets:
            self._targets[key] = target
            self._dial(target)

    def _dial(self, target: Target) -> None:
        if target.gone:
            return
        peer = self.table.get(target.node)
        if peer is not None and peer.connection is not None:
            self.later(BACKOFF_MIN_S, self._dial, target)
        elif target.seed and any(node and known == target.address for node, known in self._targets):
            self._again(target)  # the map names this node; its own target is dialled
        else:
            life = self.life
            self.world.network.connect(
                self.host, target.address, HELLO_TIMEOUT_S, lambda end: self._dialled(life, target, end)
            )

    def _again(self, target: Target) -> None:
        target.failures += 1
        self.later(backoff_s(target.failures, self.rng), self._dial, target)

    def _dialled(self, life: int, target: Target, end: Endpoint | None) -> None:
        if life != self.life or not self.up or target.gone:
            if end is not None:
                end.close()
            return
        if end is None:
            self._again(target)
            return
        connection = LinkConnection(self, end, target)
        connection.told, hello = self.table.greeting(target.node)
        self._connections.append(connection)
        end.send(hello)
        self.later(HELLO_TIMEOUT_S, self._no_hello, connection)

    def accepted(self, end: Endpoint, port: int) -> None:
        """Accept a link."""
        del port
        connection = LinkConnection(self, end, None)
        self._connections.append(connection)
        self.later(HELLO_TIMEOUT_S, self._no_hello, connection)

    def _no_hello(self, connection: LinkConnection) -> None:
        if connection.reader is not None and not connection.over:
            self._close(connection)

    # -- iterations

    def read_links(self) -> None:
        """Process the received data of every connection."""
        for connection in list(self._connections):
            if connection.over:
                self._close(connection)
                continue
            end = connection.end
            if not (end.inbox or end.eof or end.reset):
                continue
            data = end.read()
            try:
                if data:
                    connection.silence.heard()
                    self._take(connection, data)
            except LinkError:
                self._close(connection)
                continue
            if connection.over or end.reset or (end.eof and not end.inbox):
                self._close(connection)

    def _take(self, connection: LinkConnection, data: bytes) -> None:
        if connection.reader is not None:
            hello = connection.reader.receive(data)
            if hello is None:
                return
            data = connection.reader.rest
            connection.reader = None
            self._greeted(connection, hello)
        peer = connection.peer
        if data and peer is not None:
            connection.awake = True  # acknowledgements are due
            for frame in peer.core.receive(data):
                if connection.over:
                    return
                self.table.frame(peer, frame.kind, frame.payload)

    def _greeted(self, connection: LinkConnection, hello: LinkHello) -> None:
        target = connection.target
        if target is not None:
            key = self.table.dialled(hello, None, target.tier, "" if target.seed else target.node)
            target.node, target.failures = key.node, 0
        else:
            key, connection.told, answer = self.table.accepted(hello, None)
            connection.end.send(answer)
        peer = self.table.peer_of(key)
        self.table.join(peer, connection, hello, connection.told, dialled=target is not None)
        connection.peer = peer
        connection.awake = True

    def _close(self, connection: LinkConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            if connection.peer is not None:
                self.table.ended(connection.peer, connection)
            if not connection.over:
                connection.close()
            if connection.target is not None:
                self._again(connection.target)

    def flush_links(self) -> None:
        """Send all due data."""
        for connection in self._connections:
            if not connection.awake:
                continue
            connection.awake = False
            peer = connection.peer
            if peer is None or connection.over or peer.connection is not connection:
                continue
            data = peer.core.take_output()
            while data:
                connection.silence.spoke()
                connection.end.send(data)
                data = peer.core.take_output()

    def _watch(self) -> None:
        for connection in self._connections:
            verdict = connection.silence.look()
            if verdict is SilenceCheck.GIVE_UP:
                connection.over = True
                connection.end.abort()
                self.poke()
            elif verdict is SilenceCheck.SPEAK and connection.peer is not None and not connection.over:
                connection.peer.core.keepalive()
                connection.wake()
        self.later(WATCH_S, self._watch)
