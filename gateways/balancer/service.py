"""The balancer's process: links to routers, gossip, listeners and clients being forwarded."""

import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from access.identity.peer_lists import read_peer_lists
from conf.admission import POOLS, AdmissionPool, AdmissionSlot
from conf.errors import UserError
from conf.events import say
from conf.settings import BalanceConfig, NodeConfig
from gateways.balancer.arrival import Arrival
from gateways.balancer.balancer_listener import BalancerListener, activated_sockets
from gateways.balancer.directory import Directory, DirectoryRules, PlacementRequest
from gateways.balancer.first_bytes import WrongFirstBytes
from gateways.balancer.following import BalancerMapFollower
from gateways.balancer.forwarding import Forwarding
from gateways.balancer.hand_over import is_reachable
from gateways.balancer.reading import peek_connect, receive_connect
from gateways.balancer.reload import BalancerCertificates
from gateways.balancer.status import StatusSocket
from gateways.balancer.tls_relay import secure, tls_facts
from membership.node_gossip import NodeGossip
from mqtt.packets import Connect
from wire.clock import boot_time
from wire.decoding import Unreadable
from wire.links.allowed import ROLE
from wire.links.hub import LinkHub
from wire.links.refusals import Refusals
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_GATEWAY, TIER_ROUTER, PeerKey
from wire.node.process import NodeProcess, run_process
from wire.node.startup_log import WaitingLog

__all__ = ["BalanceService", "main"]

logger = logging.getLogger(__name__)

MAP_TICK_S = 0.5  # interval of map requests to silent routers
GOSSIP_S = 0.5
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STARTING_TICK_S = 0.05
DRAIN_CHECK_S = 0.05  # interval of checks while connections drain


def main(config: NodeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    """Run a balancer until it is stopped; return the exit code."""
    assert isinstance(config, BalanceConfig)

    async def service(process: NodeProcess) -> None:
        await BalanceService(process, config).run()

    return run_process(config, TIER_GATEWAY, ready, service, read_peer_lists)


def _local_path(address: str) -> str:
    """Return the path of a hand-over address on this host, "" for another host."""
    kind, _, rest = address.partition(":")
    boot, _, path = rest.partition(":")
    return path if kind == "unix" and boot == BOOT_ID.read_text().strip() and is_reachable(path) else ""


class _Unread(NamedTuple):
    """A client whose first bytes are being read, and the scope that cancels it."""

    scope: trio.CancelScope
    client: socket.socket


def _has_sent(unread: _Unread) -> bool:
    try:
        return bool(unread.client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
    except OSError:
        return True


class BalanceService:
    """One balancer process."""

    def __init__(self, process: NodeProcess, config: BalanceConfig) -> None:
        self._process = process
        self._config = config
        self._settings = settings = config.balance
        rng = random.Random(process.folder.incarnation)
        self._directory = Directory(
            DirectoryRules(
                tuple(listener.name for listener in settings.listeners),
                settings.policy,
                settings.forward,
                settings.prefer == "zone",
                config.node.zone,
                settings.slow_start_s,
            ),
            _local_path,
            rng,
        )
        self._hub = LinkHub(
            process.identity,
            process.contexts,
            on_frame=self._on_frame,
            on_up=lambda peer: self._follower.router_up(boot_time(), peer),
            on_down=lambda peer: self._follower.router_down(boot_time(), peer.node),
            on_reset=lambda peer: self._follower.router_down(boot_time(), peer.node),
            rng=rng,
        )
        self._map_refused: Counter[str] = Counter()
        refusals = Refusals(lambda reason: self._map_refused.update((reason.removeprefix("refused_"),)))
        self._follower = BalancerMapFollower(
            self._send,
            self._moved,
            process.folder.cluster_id,
            lambda now, peer, what: refusals.refuse(now, peer, what, ROLE),
        )
        self._gossip = NodeGossip(process, config.membership)
        self._certificates: dict[str, BalancerCertificates] = {}  # by TLS-terminating listener
        bounds = POOLS["balancer_arrivals"]
        bounds = bounds._replace(places_max=min(bounds.places_max, 2 * settings.connections_max))
        self._unread: AdmissionPool[_Unread] = AdmissionPool(bounds, lambda *_: False, _has_sent)
        self._listeners: list[BalancerListener] = []
        self._reads_connect: dict[str, bool] = {}

    async def run(self) -> None:
        """Serve until stopped."""
        process, settings = self._process, self._settings
        given = activated_sockets(os.environ, os.getpid())
        for listener in settings.listeners:
            if listener.certificate is not None and listener.key is not None:
                part = self._certificates[listener.name] = BalancerCertificates(listener)
                process.reload.add(part)
            wanted = settings.policy == "sticky" or settings.prefer == "zone" or listener.redirect
            self._reads_connect[listener.name] = listener.is_readable and (
                listener.read == "connect" or (listener.read == "auto" and wanted)
            )
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._forwarding = Forwarding(settings, self._directory, nursery.start_soon)
            for listener in settings.listeners:
                door = BalancerListener(listener, given.get(listener.name), self._count)
                self._listeners.append(door)
            self._register_metrics()
            await nursery.start(self._hub.run, "")
            self._hub.set_seeds(self._config.node.seeds)
            process.links = lambda: [peer.node for peer in self._hub.connected()]
            nursery.start_soon(self._forwarding.run)
            nursery.start_soon(self._gossip.run, "")
            nursery.start_soon(self._follow_gossip)
            nursery.start_soon(StatusSocket(process.folder.path, self.status).run)
            for door in self._listeners:
                nursery.start_soon(door.run, self._arrived)
            await self._follow_map()
            await self._drain()
            nursery.cancel_scope.cancel()

    async def _follow_map(self) -> None:
        """Follow the map and log readiness until stopped."""
        is_ready, waiting = False, WaitingLog(logger)
        while not self._process.stopping.is_set():
            self._follower.tick(boot_time())
            self._process.check_cluster(self._follower.cluster, self._hub.table)
            if not is_ready and self._follower.map.cluster:
                is_ready = True
                self._process.ready({door.settings.name: door.address for door in self._listeners})
            waiting.look(boot_time(), "" if is_ready else self._readiness_problem())
            with trio.move_on_after(MAP_TICK_S if is_ready else STARTING_TICK_S):
                await self._process.stopping.wait()

    @property
    def _held(self) -> int:
        """Connections that would end with this process."""
        return self._forwarding.held + len(self._unread)

    async def _drain(self) -> None:
        """Close the listeners and wait at most ``drain_s`` for connections that would be lost."""
        for door in self._listeners:
            door.close()
        held = self._held
        if held:
            say(logger, "balance.waits_for_connections", connections=held, seconds=self._settings.drain_s)
        with trio.move_on_after(self._settings.drain_s):
            while self._held:
                await trio.sleep(DRAIN_CHECK_S)

    # -- the map

    def _send(self, router: str, message: Control) -> bool:
        return self._hub.send(router, FrameKind.CONTROL, encode_control(message))

    def _on_frame(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        message = decode_control(payload)  # an Unreadable message is a LinkError, which ends the link
        if not self._follower.handle(boot_time(), peer.node, message):
            raise Unreadable(f"{peer.node} says {type(message).__name__}, kind {kind}, to a balancer")

    def _moved(self, cluster_map: ClusterMap) -> None:
        self._directory.map_moved(boot_time(), cluster_map)
        if not self._process.stopping.is_set():
            self._update_listeners()
        routers = {
            entry.node: (TIER_ROUTER, entry.address, entry.incarnation) for entry in cluster_map.live(TIER_ROUTER)
        }
        self._hub.set_peers(routers)

    def _update_listeners(self) -> None:
        """Open each listener that has a candidate edge; shut the others."""
        for door in self._listeners:
            try:
                if self._directory.candidates(door.settings.name):
                    door.open()
                else:
                    door.shut()
            except UserError as error:
                say(logger, "balance.listener_failed", problem=error)  # retried with the next map

    async def _follow_gossip(self) -> None:
        while True:
            await trio.sleep(GOSSIP_S)
            if self._gossip.gossip is None:
                continue
            members = self._gossip.gossip.members()
            now = boot_time()
            for member in members:
                self._directory.member_seen(now, member.name, member.state, member.metadata.clients)
            self._directory.members_are(member.name for member in members)
            self._directory.has_peers = any(
                member.metadata.tier == TIER_GATEWAY and member.state == "alive" and not member.is_self
                for member in members
            )

    # -- clients

    def _arrived(self, door: BalancerListener, client, address: str) -> None:  # type: ignore[no-untyped-def]
        now = boot_time()
        listener = door.settings
        wanted = PlacementRequest(listener.name, address)
        arrival = Arrival(client, listener, now, now + self._settings.choose_s, wanted)
        client.setblocking(False)
        if self._reads_connect[listener.name] or listener.name in self._certificates:
            crowded = self._held >= self._settings.connections_max
            unread = _Unread(trio.CancelScope(), client)
            place, displaced = self._unread.admit(now, address, unread, crowded=crowded)
            if displaced is not None:
                displaced.owner.scope.cancel()
            if place is None:
                self._forwarding.refuse(arrival, "full")
            else:
                self._nursery.start_soon(self._read_and_forward, arrival, place)
        elif self._forwarding.held >= self._settings.connections_max:
            self._forwarding.refuse(arrival, "full")
        else:
            self._forwarding.forward(arrival)

    async def _read_and_forward(self, arrival: Arrival, place: AdmissionSlot["_Unread"]) -> None:
        """Read the CONNECT for the choice, then forward; a new arrival may displace the client meanwhile."""
        scope = place.owner.scope
        try:
            with scope, trio.move_on_after(self._settings.connect_timeout_s) as timeout:
                await trio.lowlevel.wait_readable(arrival.client)
                place.heard()
                connect = await self._read(arrival)
        except WrongFirstBytes as error:
            self._forwarding.refuse(arrival, str(error))
            return
        except (OSError, trio.BrokenResourceError):
            self._forwarding.refuse(arrival, "failed")
            return
        finally:
            place.leave()
        if scope.cancelled_caught or timeout.cancelled_caught:
            self._forwarding.refuse(arrival, "full" if scope.cancelled_caught else "silent")
            return
        if connect is None and self._reads_connect[arrival.settings.name]:
            self._forwarding.refuse(arrival, "gone")
            return
        if connect is not None:
            arrival.version = connect.protocol_version
            key = connect.client_id or arrival.wanted.key
            arrival.wanted = PlacementRequest(
                arrival.settings.name, key, connect.client_id, in_clear=arrival.secured is not None
            )
        arrival.until = boot_time() + self._settings.choose_s
        self._forwarding.forward(arrival)

    async def _read(self, arrival: Arrival) -> Connect | None:
        name, bytes_max = arrival.settings.name, self._settings.first_bytes_max
        certificates = self._certificates.get(name)
        if certificates is None:
            return await peek_connect(arrival.client, bytes_max)
        arrival.secured = await secure(arrival.client, certificates.context)
        arrival.tls = tls_facts(arrival.secured)
        arrival.wanted = PlacementRequest(name, arrival.wanted.key, in_clear=True)
        if not self._reads_connect[name]:
            return None
        connect, arrival.first = await receive_connect(arrival.secured, bytes_max)
        return connect

    # -- status and metrics

    def _count(self, reason: str) -> None:
        self._forwarding.refused[reason] += 1

    def status(self) -> dict[str, object]:
        """Return the document of `stratamq balance status`."""
        now = boot_time()
        forwarding = self._forwarding
        return {
            **self._process.cluster,
            "map_epoch": self._follower.map.epoch,
            "map_age_s": round(self._follower.age_s(now), 1),
            "routers": [peer.node for peer in self._hub.connected()],
            "listeners": {
                door.settings.name: f"{door.address} {'open' if door.is_open else 'shut'}" for door in self._listeners
            },
            "relayed": forwarding.relayed,
            "waiting": forwarding.waiting,
            "refused": dict(forwarding.refused),
            "edges": list(self._edge_rows(now)),
        }

    def _edge_rows(self, now: float) -> Iterator[dict[str, object]]:
        """Yield one row per edge and state; clients and picks are per edge over all listeners."""
        names = [door.settings.name for door in self._listeners]
        candidates = {name: self._directory.candidates(name) for name in names}
        for edge in {edge.node: edge for name in names for edge in candidates[name]}.values():
            listeners = [name for name in names if edge in candidates[name]]
            addresses = [f"{name} {edge.addresses.get(name, '')}" for name in listeners]
            yield {
                "edge": edge.node,
                "state": "skipped" if edge.skip_until > now else "candidate",
                "listeners": ", ".join(listeners),
                "address": edge.socket or ", ".join(addresses),
                "clients": edge.clients,
                "picks": sum(picks for (node, _), picks in self._forwarding.picks.items() if node == edge.node),
            }
        left_out: dict[tuple[str, str], list[str]] = {}
        for name in names:
            for node, why in self._directory.left_out(name).items():
                left_out.setdefault((node, why), []).append(name)
        for (node, why), listeners in left_out.items():
            yield {"edge": node, "state": f"left out: {why}", "listeners": ", ".join(listeners)}

    def _register_metrics(self) -> None:
        metrics, forwarding = self._process.metrics, self._forwarding
        metrics.pool("balancer_arrivals", lambda: self._unread.counts)
        metrics.counter(
            "balancer_picks_total",
            "Clients forwarded to an edge, by edge and method.",
            lambda: {key: float(picks) for key, picks in forwarding.picks.items()},
            ("edge", "way"),
        )
        metrics.counter(
            "balancer_refused_total",
            "Connections that the balancer refused, by reason.",
            lambda: {(reason,): float(count) for reason, count in forwarding.refused.items()},
            ("reason",),
        )
        metrics.gauge(
            "balancer_map_age_seconds",
            "Seconds since a router of the map was linked; 0 while one is.",
            lambda: min(1e9, self._follower.age_s(boot_time())),
        )
        metrics.counter(
            "balancer_map_refused_total",
            "Refused messages about the map, by reason.",
            lambda: {(reason,): float(count) for reason, count in self._map_refused.items()},
            ("reason",),
        )
        metrics.gauge(
            "balancer_candidates",
            "Edges that may receive clients, by listener.",
            lambda: {
                (door.settings.name,): float(len(self._directory.candidates(door.settings.name)))
                for door in self._listeners
            },
            ("listener",),
        )
        metrics.gauge("balancer_relayed", "Relayed connections.", lambda: float(forwarding.relayed))
        metrics.gauge("balancer_waiting", "Clients waiting for an edge.", lambda: float(forwarding.waiting))
        metrics.check("edges", lambda: all(self._directory.candidates(door.settings.name) for door in self._listeners))
        metrics.explain(self._readiness_problem)

    def _readiness_problem(self) -> str:
        if not self._follower.map.cluster:
            return "no router has sent the map yet"
        empty = [door.settings.name for door in self._listeners if not self._directory.candidates(door.settings.name)]
        return f"no edge for listener {', '.join(empty)}" if empty else ""
