"""An edge process of the simulation: EdgeCore with the compiled broker loop; sockets are simulated streams.

Replaces the epoll and trio parts of ``edge/loop/loop.py`` and ``edge/service.py``: iterations, reads, dialling.
"""

import random
from collections import deque

from access.identity.chain import Ticket
from edge.clients.client import Client
from edge.cluster.link_dialer import DialTarget, LinkDialer
from edge.core import EdgeCore
from edge.drain import Drain
from edge.loop.options import ConnOptions, HotLimits
from edge.loop.state import CLIENT, LINK, LoopConnection
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.service import DIAL_TIMEOUT_S, NS
from tests.simulation.link_process import CLUSTER
from tests.simulation.network import Endpoint
from tests.simulation.policy_edge import CLOSED, UsersOfCluster
from tests.simulation.process import Process, World
from wire.links.redial import BACKOFF_MIN_S
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import TIER_EDGE, NodeIdentity

__all__ = ["EdgeProcess"]

LINKS, CLIENTS, USERS = 1, 2, 3  # ports; the last is the closed listener of the cluster's users
SWEEP_S = 1.0
DRAIN_RATE = 10  # clients a second
TURN_S = 0.05  # interval of time-driven work: paced and lagging clients, dialling


class _Socket:
    """A stream and its connection in the loop."""

    def __init__(self, conn: LoopConnection, end: Endpoint) -> None:
        self.conn = conn
        self.end = end


class _Doors:
    """Whether clients are accepted."""

    def __init__(self) -> None:
        self.are_open = False

    def open(self) -> None:
        """Accept connections."""
        self.are_open = True

    def shut(self) -> None:
        """Refuse connections, without a backlog."""
        self.are_open = False


class EdgeProcess(Process):
    """One edge over its lives."""

    tier = TIER_EDGE

    def __init__(
        self,
        world: World,
        node: str,
        seeds: list[str],
        limits: EdgeLimits,
        hot_limits: HotLimits,
        clock_offset_s: float,
        *,
        has_users: bool = False,
    ) -> None:
        super().__init__(world, node, clock_offset_s)
        self.node = node
        self.seeds = seeds
        self.has_users = has_users
        self.users: UsersOfCluster | None = None
        self.limits = limits
        self.hot_limits = hot_limits
        self.incarnation = 0
        self.client_reads = 0  # number of reads from clients
        self.full: set[str] = set()  # clients by host that do not read: their sockets accept no byte

    # -- lives

    def start(self, incarnation: int, ended_incarnation: int, seed: str) -> None:
        """Begin a life; an edge stores only its incarnation on disk."""
        self.incarnation = incarnation
        self._rng = random.Random(seed)
        self._names = 0
        identity = NodeIdentity(CLUSTER, self.node, TIER_EDGE, incarnation, f"{self.node}:{LINKS}")
        entry = NodeEntry(self.node, TIER_EDGE, incarnation, identity.address, {"plain": f"{self.node}:{CLIENTS}"})
        users = self.users = UsersOfCluster(random.Random(f"{seed}/users")) if self.has_users else None
        self.core = EdgeCore(
            identity,
            entry,
            self.limits,
            self.hot_limits,
            ended_incarnation=ended_incarnation,
            chains=users.chains if users is not None else None,
            rules=users.rules if users is not None else None,
            new_client_id=self._new_client_id,
        )
        if users is not None:
            users.join(self.core.logins)
        self._sockets: dict[int, _Socket] = {}
        self._dialling = LinkDialer(self.core.peers, lambda: self.core.map, self.seeds, self._rng)
        self._swept = 0.0
        self._ready = False
        self._doors = _Doors()
        self.drain = Drain(self.core.node, self.core.clients, self._doors, self.poke, DRAIN_RATE, dict[str, float])
        self.begin()
        self._dial()

    def _new_client_id(self) -> str:
        self._names += 1
        return f"auto-{self.node}-{self.incarnation}-{self._names}"

    def kill(self, *, power: bool = False) -> None:
        """End the life."""
        if self.up:
            self.end(power=power)

    def stop(self) -> None:
        """SIGTERM."""
        self.core.stop()
        self.poke()

    def stopped(self) -> None:
        """End the process after the orderly stop."""

    def ended(self) -> None:
        """Have the cluster start another incarnation after the map ended this one."""

    # -- sockets

    def listens(self, port: int) -> bool:
        """Accept clients once the edge can serve them."""
        if port == USERS and not self.has_users:
            return False
        return self.up and (port == LINKS or (self._doors.are_open and not self.core.stopping.order.begun))

    def accepted(self, end: Endpoint, port: int) -> None:
        """Accept a link or a client."""
        hot, core = self.core.hot, self.core
        now_ns = int(self.clock() * NS)
        if port == LINKS:
            conn = hot.attach(-1, LINK, ConnOptions(), now_ns)
        else:
            limits = core.limits
            options = ConnOptions(
                packet_bytes_max=limits.unauthenticated_bytes_max,
                connect_timeout_ns=int(limits.connect_timeout_s * NS),
                first_packet_ns=int(limits.connect_packet_timeout_s * NS),
            )
            conn = hot.attach(-1, CLIENT, options, now_ns)
            client = Client(conn, CLOSED if port == USERS else ListenerPolicy("plain", True))
            conn.context = client
            core.clients.adopt(client)
        self._add(conn, end)

    def written(self, end: Endpoint, data: bytes) -> None:
        """Called with the bytes that leave for a client or a node; watches override it."""

    def _add(self, conn: LoopConnection, end: Endpoint) -> None:
        self._sockets[conn.number] = _Socket(conn, end)
        end.notify = self.poke

    # -- dialling

    def _dial(self) -> None:
        for dial in self._dialling.due():
            self.later(dial.wait_s, self._connect, dial)
        self.later(BACKOFF_MIN_S, self._dial)

    def _connect(self, dial: DialTarget) -> None:
        life = self.life

        def connected(end: Endpoint | None) -> None:
            if life != self.life or not self.up:
                if end is not None:
                    end.close()
            elif end is None:
                self._dialling.failed(dial.name)
            else:
                self._connected(dial, end)

        self.world.network.connect(self.host, dial.address, DIAL_TIMEOUT_S, connected)

    def _connected(self, dial: DialTarget, end: Endpoint) -> None:
        dialled, hello = self.core.peers.hello_for(dial.node, dial.tier)
        options = ConnOptions(connect_timeout_ns=int(DIAL_TIMEOUT_S * NS), context=dialled)
        conn = self.core.hot.attach(-1, LINK, options, int(self.clock() * NS))
        conn.context = dialled
        self._add(conn, end)
        self.core.hot.write(conn, hello)
        self._dialling.connected(dial.name, conn)
        self.poke()

    # -- iterations

    def turn(self) -> None:
        """One iteration of the loop."""
        hot = self.core.hot
        now = self.clock()
        now_ns = int(now * NS)
        hot.begin_turn(now_ns)
        sockets = self._sockets.values()
        for socket in [one for one in sockets if one.end.inbox or one.end.eof or one.end.reset]:
            self._read(socket)
        if not self.stops_here("read", self._end_turn):
            self._end_turn()

    def _end_turn(self) -> None:
        """Finish an iteration with a new clock reading after the reads."""
        now = self.clock()
        self.core.hot.end_turn(int(now * NS))
        self._flush_turn(now, deque(self.core.hot.dirty_conns()))

    def _flush_turn(self, now: float, dirty: deque[LoopConnection]) -> None:
        hot = self.core.hot
        now_ns = int(now * NS)
        while dirty:
            if self.stops_here("flush", lambda: self._flush_later(now, dirty)):
                return
            self._flush_one(dirty.popleft())
        if now - self._swept >= SWEEP_S:
            self._swept = now
            hot.sweep(now_ns)
            self._flush()
        if self.core.stopping.order.ended:
            self.world.scheduler.note(f"{self.node} has stopped")
            self.stopped()
            return
        if self.core.lease.ended and not self.core.stopping.order.begun:
            self.world.scheduler.note(f"{self.node} is ended by the map")
            self.core.clients.close_all(0x8B)
            hot.end_turn(now_ns)
            self._flush()
            self.ended()
            return
        if self.users is not None:
            self.users.hash_all(self.later, self._hashed)
        self._look_at_drain(now)
        if hot.wants_turn():
            self.poke()
        self.wake_by(min(self.core.next_deadline(), now + TURN_S))

    def _look_at_drain(self, now: float) -> None:
        if self.core.stopping.order.begun:
            return
        self.drain.look(now)
        if not self._ready and self.core.ready:
            self._ready = True
            self.drain.open()

    def _flush_later(self, now: float, dirty: deque[LoopConnection]) -> None:
        """Continue after a stop: the loop checks the fence time before it writes."""
        self.core.fence_over(int(self.clock() * NS))
        self._flush_turn(now, dirty)

    def _hashed(self, number: int, ticket: Ticket, result: object) -> None:
        self.core.logins.done(number, ticket, result)
        self.poke()

    def _read(self, socket: _Socket) -> None:
        conn, end, hot = socket.conn, socket.end, self.core.hot
        if end.reset or (end.eof and not end.inbox):
            if not conn.closed and (end.reset or not conn.parked):  # a parked connection is not read, nor its end
                hot.end_of_file(conn)
            if conn.closed:
                self._sockets.pop(conn.number, None)
                end.close()
            return
        if conn.closed:
            end.inbox.clear()
        elif end.inbox and (not conn.parked or hot.reads_ahead(conn)) and (hot.reading or conn.kind == LINK):
            self.client_reads += conn.kind == CLIENT and not conn.parked
            hot.feed(conn, end.read())
            if end.eof or end.inbox:
                self.poke()

    def _flush(self) -> None:
        for conn in self.core.hot.dirty_conns():
            self._flush_one(conn)

    def flush_all(self) -> None:
        """Write output that sockets had refused."""
        for socket in list(self._sockets.values()):
            self._flush_one(socket.conn)

    def _flush_one(self, conn: LoopConnection) -> None:
        hot = self.core.hot
        socket = self._sockets.get(conn.number)
        if socket is None or (socket.end.other.host in self.full and not conn.closed):
            return
        data = hot.take_output(conn)
        while data:
            socket.end.send(data)
            self.written(socket.end, data)
            data = hot.take_output(conn)
        if conn.closed:
            socket.end.close()
            self._sockets.pop(conn.number, None)
        elif not conn.parked and (hot.reading or conn.kind == LINK) and (socket.end.inbox or socket.end.eof):
            self.poke()
