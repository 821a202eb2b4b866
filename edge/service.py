"""The edge's process: sockets, certificates and dials around the core and its loop. No MQTT decisions."""

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from access.identity.peer_lists import read_peer_lists
from access.identity.principal import GATEWAY
from access.operators.audit_service import AuditService
from conf.addresses import host_of
from conf.errors import UserError
from conf.events import say
from conf.settings import EdgeConfig, NodeConfig
from edge.canary import Canary
from edge.clients.arrivals import Arrivals
from edge.cluster.link_dialer import DialTarget, LinkDialer
from edge.core import EdgeCore
from edge.drain import Drain
from edge.event_families import expose_durations, expose_events, expose_traffic
from edge.ledger import EdgeLedger
from edge.limits_of_settings import edge_limits, hot_limits
from edge.listeners.advertised import advertised_addresses
from edge.listeners.handoff_socket import HandoffSocket
from edge.listeners.listener_endpoints import LISTENER_VERBS, ListenerEndpoints
from edge.listeners.listeners import (
    EdgeListener,
    address_of,
    bind_socket,
    has_received,
    peer_name,
    peer_of,
    start_listening,
)
from edge.listeners.socket_handoff import SocketHandoff
from edge.live_limits import LiveLimits
from edge.load import loaded_gossip
from edge.login.chains import Chains
from edge.login.client_lists import ClientFiles, client_lists
from edge.login.gateway_certificates import GatewayCertificates, gateway_signers
from edge.login.login_shells import LoginShells
from edge.login.logins import ConnectingClient
from edge.loop.descriptors import connections_allowed
from edge.loop.host import host
from edge.loop.loop import Loop
from edge.loop.options import ConnOptions
from edge.loop.state import LINK, LoopConnection
from edge.node.limits import ListenerPolicy
from edge.reload import ListenerCertificates, ListenerLimitsReload, ListenerLogins, ListenerRuleFiles
from edge.rights.sources import RuleBook
from edge.startup_conditions import StartupConditions
from mqtt.reasons import ReasonCode
from wire.clock import boot_time
from wire.links.connection import HELLO_TIMEOUT_S, open_stream
from wire.links.tls import peer_identity
from wire.messages.hello import TIER_EDGE
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.socket_handoff import HandoffReply
from wire.node.loop_lag import StepLag, WindowedMax
from wire.node.node_queries import show_process
from wire.node.ordered import Ordered
from wire.node.process import NodeProcess, own_version, run_process
from wire.node.startup_log import WaitingLog
from wire.sstable.ledger import FileLedger
from wire.trio_epoll import trio_epoll_fd

__all__ = ["EdgeService", "main"]

logger = logging.getLogger(__name__)

NS = 1_000_000_000
STARTING_S = 0.05  # between checks of readiness
BEAT_S = 1.0  # afterwards, together with heartbeats: changes that require dials wake it earlier
DIAL_TIMEOUT_S = 3.0


def main(config: NodeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    """Run an edge until it is stopped; return the exit code."""
    assert isinstance(config, EdgeConfig)

    async def service(process: NodeProcess) -> None:
        await EdgeService(process, config).run()

    return run_process(config, TIER_EDGE, ready, service, read_peer_lists)


class EdgeService:
    """One edge process."""

    def __init__(self, process: NodeProcess, config: EdgeConfig) -> None:
        self._process = process
        self._config = config
        self._rng = random.Random(process.folder.incarnation)
        self._relinked = trio.Event()
        self._open = False  # clients are admitted
        self._lists: dict[str, ClientFiles] = {}  # by listener
        self._own = WindowedMax()  # work outside of clients' packets

    async def run(self) -> None:
        """Serve until cancelled, or until the map ends this incarnation."""
        node, settings = self._config.node, self._config.edge
        limit, allowed = connections_allowed()
        say(logger, "edge.file_limit", limit=limit, connections=allowed)
        with ExitStack() as stack:
            links = stack.enter_context(bind_socket(node.link_bind, node.link_port, "links of other nodes"))
            start_listening(links, 256, "links of other nodes")
            chains = Chains(secrets.token_bytes(32))
            for listener in settings.listeners:
                self._process.reload.add(ListenerLogins(listener.name, self._config, chains, self._end_those))
                lists = client_lists(listener, chains.revoked_of(listener.name), self._end_those)
                self._process.reload.add(lists)
                self._process.watch(lists)
                self._lists[listener.name] = lists
            rules = ListenerRuleFiles(self._config, self._replace_rules)
            self._process.reload.add(rules)
            signers = gateway_signers(self._config)
            revoked = self._process.contexts.revoked if self._process.contexts is not None else None
            self._gateways = GatewayCertificates(node.cluster, signers, revoked)
            authority = signers.path if signers is not None else None
            self._listening = [EdgeListener(listener, authority) for listener in settings.listeners]
            for listening in self._listening:
                stack.enter_context(listening.socket)
                self._add_reload(listening)
            bound = address_of(links)
            clients = advertised_addresses(self._listening, node.advertise or bound, node.seeds)
            desk = SocketHandoff(self._hand_over_state, self._take_handed_over, self._count)
            handed_over = HandoffSocket(self._process.folder.path, desk, self._count, lambda: self._loop.kick())
            self.core = EdgeCore(
                self._process.identity._replace(address=node.advertise or bound),
                self._process.entry(bound, clients | handed_over.addresses),
                edge_limits(settings),
                hot_limits(settings),
                version=own_version(),
                ended_incarnation=self._process.folder.ended_incarnation,
                certify=self._certify,
                read_certificate=self._gateways.read,
                peer_of=peer_of,
                peer_name=peer_name,
                chains=chains,
                rules=rules.book,
                utc=time.time,
                accept=self.accept,
                has_received=lambda conn: has_received(conn.fd),
                relinked=self._schedule_dials,
            )
            if settings.ledger is not None:
                self._open_ledger(settings.ledger)
            audit = AuditService(node, self._process.folder.path)
            self.core.node.audit, self._process.reloaded = audit.note, audit.reloaded
            gossip = self._gossip = loaded_gossip(self._process, self._config, self.core.clients)
            loop = self._loop = Loop(self.core.hot, trio_epoll_fd())
            shells = LoginShells(settings, chains, self.core.logins, loop.kick)
            self._process.reload.add(*shells.reloads, self._live_limits(loop))
            shells.register(self._process.metrics)
            self._process.lease = self.core.lease
            show_process(self.core.operators.query_server, self._process, self.core.node.journal)
            self._process.links = lambda: [key.node for key in self.core.peers.connected()]
            audit.came = loop.kick
            audit.register(self._process.metrics)
            self._create_endpoints(loop, chains, allowed)
            if self._process.contexts is not None:
                self._process.contexts.revoked.call_at_put(self._cut_revoked)
            try:
                loop.listen(links, None)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(host, loop, trio_epoll_fd())
                    nursery.start_soon(gossip.run, bound, clients)
                    nursery.start_soon(handed_over.run)
                    for run in (*shells.runs, audit.run):
                        nursery.start_soon(run)
                    self._set_order_handler(Ordered(self._process.reload_now, self._order_finished, nursery.start_soon))
                    nursery.start_soon(self._wait_for_stop)
                    await self._beat(nursery, loop, {"link": bound, **clients})
                    nursery.cancel_scope.cancel()
            finally:
                loop.close()
                if self.core.ledger is not None:
                    self.core.ledger.close()

    def _is_revoked_gateway(self, client: ConnectingClient) -> bool:
        by_gateway = client.principal is not None and client.principal.method == GATEWAY
        return by_gateway and self._gateways.is_revoked(client.conn)

    def _end_those(self, is_gone: Callable[[ConnectingClient], bool]) -> None:
        self.core.logins.end_those(is_gone)
        self._loop.kick()

    def _replace_rules(self, rules: RuleBook) -> None:
        self.core.replace_rules(rules)
        self._loop.kick()

    def _add_reload(self, listening: EdgeListener) -> None:
        self._process.reload.add(ListenerCertificates(listening, self._gateways))
        self._process.reload.add(ListenerLimitsReload(listening, self._replace_limits))

    def _live_limits(self, loop: Loop) -> LiveLimits:
        core, settings = self.core, self._config.edge
        parts = core.conduct, core.connecting, core.retained, core.subscribing
        return LiveLimits(settings, core.node, core.hot, core.memory, core.rights, parts, loop.kick)

    def _replace_limits(self, policy: ListenerPolicy) -> None:
        self.core.limit_updater.put({policy.name: policy})
        self.core.rights.judge_again()
        self.core.node.wake()
        self._loop.kick()

    def _set_order_handler(self, ordered: Ordered) -> None:
        def take(router: str, order: OrderNode) -> None:
            if order.verb == "client drain":
                self.core.node.tell(router, self._drain.order(order))
            elif order.verb in LISTENER_VERBS:
                self.core.node.tell(router, self._doors.order(order))
            else:
                ordered.take(router, order)
            self._loop.kick()

        self.core.node.ordered = take

    def _alive_loads(self) -> dict[str, float]:
        """Return the loads of the members that gossip considers alive."""
        members = self._gossip.believes() if self._gossip is not None else {}
        return {name: each.load for name, each in members.items() if each.state == "alive"}

    def _order_finished(self, router: str, answer: NodeOrdered) -> None:
        self.core.node.tell(router, answer)
        self._loop.kick()

    def _schedule_dials(self) -> None:
        self._relinked.set()
        self._loop.kick()

    async def _wait_for_stop(self) -> None:
        await self._process.stopping.wait()
        self._relinked.set()

    def _open_ledger(self, folder: Path) -> None:
        node, now_ns = self._config.node.id, time.time_ns()
        try:
            sink = FileLedger(folder / node, node, self._process.folder.incarnation, TIER_EDGE, now_ns // 1_000_000)
        except OSError as error:
            raise UserError(f"edge.ledger {folder}: {error.strerror or error}") from None
        self.core.set_ledger(EdgeLedger(sink, node, lambda: time.time_ns() - int(boot_time() * NS), _wall_ms))

    async def _beat(self, nursery: trio.Nursery, loop: Loop, addresses: dict[str, str]) -> None:
        """Dial nodes of the map, open the listeners once clients can be served, detect the end of this incarnation.

        The core's own deadlines do not involve trio: the loop sleeps at most until the next of them.
        """
        said_ready = False
        waiting = WaitingLog(logger)
        reasons = StartupConditions(self.core.node, lambda: self.core.ready, self._config.node.seeds, self.core.peers)
        self._process.metrics.explain(
            lambda: self._drain.reason() or reasons.reason(boot_time()) or self._canary.reason()
        )
        while True:
            self._relinked = trio.Event()
            self._dial(nursery)
            with trio.move_on_after(
                BEAT_S - boot_time() % BEAT_S if said_ready and not self._drain.busy else STARTING_S
            ):
                await self._relinked.wait()
            self._process.turns.note(loop.longest_ns / NS, now := time.monotonic())
            self._own.note(loop.longest_own_ns / NS, now)
            loop.longest_ns = loop.longest_own_ns = 0
            if self._process.stopping.is_set() and not self.core.stopping.order.begun:
                for listening in self._listening:
                    loop.forget_listener(listening.socket)
                    listening.socket.close()
                self.core.stop()
                loop.kick()
            if not self._process.stopping.is_set():
                self._drain.look(boot_time())
                if said_ready:
                    self._canary.look(boot_time())
            self._process.check_cluster(self.core.lease.cluster, self.core.peers)
            if self.core.stopping.order.ended:
                say(logger, "node.stopped", waits="")
                return
            if self.core.lease.ended and not self.core.stopping.order.begun:
                say(logger, "node.incarnation_ended")
                self._process.restart = True
                self.core.clients.close_all(ReasonCode.SERVER_SHUTTING_DOWN)
                return
            if not said_ready and self.core.ready and not self._process.stopping.is_set():
                said_ready = self._open = True
                self._drain.open()
                self._process.ready(dict(addresses))
            waiting.look(boot_time(), reasons.reason(boot_time()))

    # --- sockets

    def accept(self, listener: object, fd: int, address: str, port: int = 0) -> None:
        """Attach a connection that the kernel accepted, or close it; listener None is that of links."""
        if listener is None:
            self._accept_link(fd, address)
        else:
            assert isinstance(listener, EdgeListener)
            self._arrivals.accept(listener, fd, address, port)

    def _count(self, what: str) -> None:
        self.core.node.count(what)

    def _hand_over_state(self, name: str) -> HandoffReply:
        """Return the reply to a balancer that offers a client of a listener."""
        core = self.core
        if not self._open or self._process.stopping.is_set() or not core.node.has_lease():
            return HandoffReply.NOT_READY
        if not any(listener.policy.name == name for listener in self._listening):
            return HandoffReply.NO_LISTENER
        mine = core.map.nodes.get(self._config.node.id)
        if (mine is not None and mine.admin_state) or self._doors.is_paused(name):
            return HandoffReply.DRAINING
        return HandoffReply.FULL if core.clients.connecting >= core.limits.connections_max else HandoffReply.TAKEN

    def _take_handed_over(self, name: str, fd: int, waited_s: float) -> None:
        listener = next(each for each in self._listening if each.policy.name == name)
        self.core.node.wake()
        address = "" if listener.proxy_admission is not None else peer_of(fd)
        self._arrivals.accept(listener, fd, address, 0, waited_s, shared=True)  # the balancer closes its copy later

    def _accept_link(self, fd: int, address: str) -> None:
        pending, now = self.core.peers.pending, boot_time()
        place, displaced = pending.admit(now, address)
        if displaced is not None:
            self.core.hot.close(displaced, linger=False)
        if place is None:
            os.close(fd)
            return
        contexts = self._process.contexts
        tls = contexts.server if contexts is not None else None
        options = ConnOptions(tls=tls, connect_timeout_ns=int(HELLO_TIMEOUT_S * NS))
        pending.attached(place, self.core.hot.attach(fd, LINK, options, int(now * NS)), address)

    def _certify(self, conn: LoopConnection) -> tuple[str, str, str] | None:
        if self._process.contexts is None:
            return None
        if conn.tls is None:
            return ("", "", "")  # a link without a finished handshake has no identity
        self._process.contexts.revoked.check(conn.tls.getpeercert(True))
        try:
            return peer_identity(conn.tls)
        except ValueError:
            return ("", "", "")

    def _cut_revoked(self) -> None:
        """Close links with certificates that the current lists revoke."""
        assert self._process.contexts is not None
        for conn in self.core.peers.connections():
            why = self._process.contexts.revoked.end_of(conn.tls.getpeercert(True))
            if why:
                say(logger, "link.cut", why=why)
                self.core.hot.close(conn, linger=False)
        self._end_those(self._is_revoked_gateway)

    # --- dialling

    def _dial(self, nursery: trio.Nursery) -> None:
        """Keep links to every node that this edge must dial, and to the seeds until the map is known."""
        for dial in self._dialling.due():
            nursery.start_soon(self._dial_one, dial)

    async def _dial_one(self, dial: DialTarget) -> None:
        await trio.sleep(dial.wait_s)
        try:
            with trio.fail_after(DIAL_TIMEOUT_S):
                stream = await open_stream(dial.address)
        except (OSError, UserError, trio.TooSlowError, ExceptionGroup) as error:
            say(logger, "link.not_made", peer=dial.name, address=dial.address, why=error)
            self._dialling.failed(dial.name)
            self._relinked.set()
            return
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain = _detach(stream)
        contexts = self._process.contexts
        dialled, hello = self.core.peers.hello_for(dial.node, dial.tier)
        options = ConnOptions(
            tls=contexts.client if contexts is not None else None,
            server_hostname="stratamq" if contexts is not None else None,
            connect_timeout_ns=int(DIAL_TIMEOUT_S * NS),
            context=dialled,
        )
        conn = self.core.hot.attach(plain, LINK, options, int(boot_time() * NS))
        conn.context = dialled
        self.core.hot.write(conn, hello)
        self._dialling.connected(dial.name, conn)

    def _create_endpoints(self, loop: Loop, chains: Chains, allowed: int) -> None:
        """Create the parts that admit, refuse, drain and probe."""
        metrics, core, seeds = self._process.metrics, self.core, self._config.node.seeds
        core.peers.pending.known.fix("seeds", map(host_of, seeds))
        actors = core.node, core.hot, loop, core.clients, core.conduct
        self._arrivals = Arrivals(*actors, self._listening, boot_time, allowed)
        core.access.join(self._arrivals)
        metrics.pool("edge_links", lambda: core.peers.pending.pool.counts)
        metrics.pool("edge_clients", lambda: self._arrivals.pool.counts)
        metrics.gauge(
            "connections_waiting",
            "Connections queued by the accept rate limit, by listener.",
            self._arrivals.waiting,
            ("listener",),
        )
        self._dialling = LinkDialer(core.peers, lambda: core.map, seeds, self._rng)
        self._doors = ListenerEndpoints(core.node, self._listening, loop, self.accept)
        core.operators.query_server.show("listeners", self._doors.look())
        drain_rate = self._config.edge.drain_rate
        self._drain = Drain(core.node, core.clients, self._doors, loop.kick, drain_rate, self._alive_loads)
        self._drain.register(metrics)
        self._canary = Canary(core.node, core.requests, core.cache, boot_time, loop.kick)
        self._canary.register(metrics)
        self._register_metrics(loop, chains)

    def _register_metrics(self, loop: Loop, chains: Chains) -> None:
        metrics, core = self._process.metrics, self.core
        counters = metrics.shared(core.hot.counters)
        trio.lowlevel.add_instrument(StepLag(self._own))
        metrics.gauge(
            "own_work_longest_seconds",
            "Longest step outside of client packets (gossip, heartbeats, map, metrics, timers) in the last 30 to 60 s.",
            self._own.longest_s,
        )
        metrics.check("client_lists", lambda: not any(files.problem() for files in self._lists.values()))
        metrics.gauge(
            "client_lists_seconds_left",
            "Seconds until the first revocation list for a listener's clients becomes stale, negative afterwards.",
            lambda: {(name,): files.seconds_left for name, files in self._lists.items() if files.lists is not None},
            ("listener",),
        )
        metrics.gauge("sockets", "Open connections, including links.", lambda: float(counters()["connections"]))
        metrics.gauge("clients", "Client connections.", lambda: float(len(core.clients)))
        expose_traffic(metrics, core.clients.doors, counters, core.routes.local)
        expose_events(metrics, lambda: core.counts, counters)
        expose_durations(metrics, core.hot, core.subscribing.times)
        metrics.gauge(
            "logins_that_end", "Sessions with an expiry of their credentials.", lambda: float(core.logins.ends)
        )
        metrics.counter(
            "login_answers_total",
            "Results of authentication steps and chains, by listener.",
            lambda: {(listener, what): float(count) for listener, what, count in chains.outcomes()},
            ("listener", "answer"),
        )
        metrics.gauge("routes_cached", "Topics in the route cache.", lambda: float(counters()["routes"]))
        metrics.gauge(
            "outbox_bytes",
            "Bytes of messages that storage has not acknowledged.",
            lambda: float(counters()["outbox_bytes"]),
        )
        metrics.counter(
            "pacing_switched_on_total",
            "Number of times that pacing of iterations was enabled to enlarge batches.",
            lambda: float(loop.pacing_switched_on()),
        )
        metrics.check("lease", core.node.has_lease, depends=True)
        metrics.check("storage", core.follower.storage_linked, depends=True)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _detach(stream: trio.SocketStream) -> int:
    """Take the descriptor out of a trio stream."""
    return stream.socket.detach()
