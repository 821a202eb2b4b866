"""The process of one datagram node: its folder, socket, metrics page, signals, and the loop around its core."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable
from typing import TypeAlias

import trio

from access.files import AccessFileError
from conf.data_folder import DataFolder
from conf.errors import ExitCode, UserError
from conf.events import say
from conf.gateway_config import GatewayConfig
from conf.metrics import Metrics
from conf.udp_settings import UdpSettings
from gateways.datagrams.attached import ClusterConnection, make_cluster_end
from gateways.datagrams.dtls import DTLS_BYTES, DtlsFiles, DtlsSocket
from gateways.datagrams.jurisdiction import JOIN_LEASE_S
from gateways.datagrams.keys import read_key, read_keys
from gateways.datagrams.messages import DATAGRAM_BYTES_MAX, Code, Datagram, Endpoint
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.node_events import Arrived, DatagramNodeSettings, DatagramReady, Event
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.rights import RoleRights
from gateways.datagrams.sealed import SEALED_BYTES, SealedPort
from gateways.datagrams.sockets import DatagramSocket, bind_udp, endpoint_of
from gateways.datagrams.subscribers import DatagramPeer
from gateways.process import open_pages
from wire.node.process import collect_rarely, own_version

__all__ = ["main"]

Port: TypeAlias = DatagramSocket | DtlsSocket

logger = logging.getLogger(__name__)

RAN_BEFORE = "ran"  # file in the data folder: former subscribers may still count on this root
GAVE_PARTS = "children"  # its content if the node had children: their leases may still be valid
IDLE_S = 60.0
WILDCARDS = ("0.0.0.0", "::")
LOOPBACK = ("127.", "::1")
IN_CLEAR = "-"  # name of children on a socket in clear


def main(config: GatewayConfig[UdpSettings], ready: Callable[[dict[str, object]], None]) -> int:
    """Run one node until a signal is received; return the exit code.

    Raises:
      UserError: A configuration error, or another process uses the folder; the node was not started.
    """
    folder = DataFolder(config.gateway.data_dir)
    try:
        return trio.run(_main, config, ready)
    finally:
        folder.close()


class _Loop:
    """One node between its core, its socket, and its end at the cluster."""

    def __init__(self, node: DatagramNode, port: Port, rights: RoleRights, udp: UdpSettings) -> None:
        self.node, self.port = node, port
        self._rights, self._udp = rights, udp
        self.cluster: ClusterConnection | None = None
        self._events: list[Event] = []
        self._is_lost = False  # the connection to the cluster ended
        self._refused: int | None = None  # code of the parent's last refusal
        self._has_events = trio.Event()

    async def run(self) -> None:
        """Handle datagrams and the time until cancelled."""
        self._step()
        while True:
            deadline = self.node.next_deadline()
            with trio.move_on_at(trio.current_time() + IDLE_S if deadline is None else deadline):
                await self.port.readable()
            more = True
            while more:
                more = self.port.read(trio.current_time(), self._received)
                self._step()
                if more:  # otherwise the wait yields to other tasks
                    await trio.lowlevel.checkpoint()

    async def run_cluster(self) -> None:
        """Handle the cluster's events until cancelled."""
        while True:
            await self._has_events.wait()
            self._has_events = trio.Event()
            self._step()

    def take(self, event: Event) -> None:
        """Queue an event of the cluster."""
        self._events.append(event)
        self._has_events.set()

    def lose_cluster(self) -> None:
        """Record the end of the cluster's connection."""
        self._is_lost = True
        self._has_events.set()

    def reload(self) -> None:
        """Reload roles and keys: all or none."""
        try:
            table = self._rights.read()
            keys = read_keys(self._udp.keys_file) if self._udp.keys_file is not None else {}
        except (AccessFileError, ValueError) as error:
            say(logger, "udp.settings_refused", why=error)
            return
        self._rights.take(table)
        if isinstance(self.port, DatagramSocket) and self.port.sealed is not None:
            self.port.sealed.set_keys(keys)
        self._apply(self.node.reauthorize(trio.current_time()))
        say(logger, "udp.settings_taken")

    def leave(self) -> None:
        """Return the subtree to the parent."""
        self._apply(self.node.leave(trio.current_time()))

    def _received(self, peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None:
        self._events.append(Arrived(peer, name, packet, length, is_proved))

    def _step(self) -> None:
        if self._is_lost:
            self._is_lost = False
            self._apply(self.node.lose_cluster())
        events, self._events = self._events, []
        self._apply(self.node.handle(trio.current_time(), events))

    def _apply(self, ready: DatagramReady) -> None:
        now = trio.current_time()
        for sent in ready.send:
            self.port.send(now, sent)
        for peer in ready.proved:
            self.port.prove(peer)
        if ready.join_refused is not None and ready.join_refused != self._refused:
            say(logger, "udp.parent_refuses", why=_refusal_text(ready.join_refused))
        self._refused = ready.join_refused if ready.join_refused is not None else self._refused
        for peer in ready.given_up:
            say(logger, "udp.peer_silent", peer=peer.endpoint)
        if self.cluster is not None:
            self.cluster.apply(ready)


async def _main(config: GatewayConfig[UdpSettings], ready: Callable[[dict[str, object]], None]) -> int:
    loop = _build(config)
    metrics = Metrics("gateway", config.gateway.id, own_version())
    _register_metrics(metrics, loop)
    stopping = trio.Event()
    title = f"udp {config.gateway.id}"
    addresses: dict[str, object] = {"udp": str(loop.port.endpoint)}
    async with trio.open_nursery() as nursery:
        addresses |= await open_pages(nursery, config.metrics, metrics, stopping, title, loop.reload)
        await nursery.start(loop.port.run)
        nursery.start_soon(loop.run)
        if loop.cluster is not None:
            nursery.start_soon(loop.run_cluster)
            nursery.start_soon(loop.cluster.run)
        collect_rarely()
        ready(addresses)
        await stopping.wait()
        loop.leave()
        await loop.port.flush()
        nursery.cancel_scope.cancel()
    loop.port.close()
    return ExitCode.OK


def _build(config: GatewayConfig[UdpSettings]) -> _Loop:
    udp = config.settings
    if udp.security == "plain" and not udp.allow_plain and not udp.bind.startswith(LOOPBACK):
        text = f"udp.security = plain at {udp.bind} lets any host send: use sealed, or set udp.allow_plain = true"
        raise UserError(text, ExitCode.USAGE)
    if not udp.advertise and udp.bind in WILDCARDS and (udp.parent or udp.children):
        text = f"udp.bind = {udp.bind} is not reachable for other nodes: set udp.advertise"
        raise UserError(text, ExitCode.USAGE)
    if udp.roles_file is None:
        raise UserError("udp.roles_file is missing: without rules no device may do anything", ExitCode.USAGE)
    try:
        rights = RoleRights(udp.roles_file, udp.device_roles)
        parent = DatagramPeer(endpoint_of(udp.parent)) if udp.parent else None
        make_port = _build_port_factory(udp, parent)
        advertised = endpoint_of(udp.advertise) if udp.advertise else None
    except AccessFileError as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    except ValueError as error:
        raise UserError(f"udp: {error}", ExitCode.USAGE) from None
    try:
        port = make_port(bind_udp(udp.bind, udp.port))
    except OSError as error:
        raise UserError(f"udp: {udp.bind}:{udp.port}: {error.strerror or error}", ExitCode.USAGE) from None
    node = DatagramNode(_settings(config, advertised or port.endpoint), rights, Proofs(secrets.token_bytes(32)), parent)
    loop = _Loop(node, port, rights, udp)
    if udp.cluster:
        loop.cluster = make_cluster_end(udp, config.gateway.id, loop.take, loop.lose_cluster)
    return loop


def _refusal_text(code: int) -> str:
    match code:
        case Code.MALFORMED:
            return (
                "it receives from another address than this node advertises: set udp.advertise to the reachable address"
            )
        case Code.NOT_AUTHORIZED:
            return "udp.children there does not grant this subtree"
        case Code.TAKEN:
            return "another node has this subtree, or a part of it"
        case Code.NOT_MINE:
            return "it does not decide for this subtree: set udp.parent to the node that does"
        case _:
            return f"code {code}"


def _build_port_factory(udp: UdpSettings, parent: DatagramPeer | None) -> Callable[[socket.socket], Port]:
    """Read all files; return the factory of the node's socket, from a bound one."""
    if udp.security == "dtls" and udp.dtls_certificate and udp.dtls_key and udp.dtls_authority:
        files = DtlsFiles(udp.dtls_certificate, udp.dtls_key, udp.dtls_authority)
        only = parent.endpoint if parent is not None else None
        return lambda bound: DtlsSocket(
            bound, files, opens=parent is not None, only=only, sessions_max=udp.sessions_max
        )
    sealed = _sealed(udp, parent)
    return lambda bound: DatagramSocket(bound, sealed)


def _sealed(udp: UdpSettings, parent: DatagramPeer | None) -> SealedPort | None:
    if udp.security != "sealed" or udp.keys_file is None:
        return None
    keys = read_keys(udp.keys_file)
    if parent is None or udp.key_file is None:
        return SealedPort(keys, sessions_max=udp.sessions_max)
    own = read_key(udp.key_file)
    return SealedPort(keys, udp.name, own, only=parent.endpoint, sessions_max=udp.sessions_max)


def _settings(config: GatewayConfig[UdpSettings], endpoint: Endpoint) -> DatagramNodeSettings:
    udp, now_ms = config.settings, int(time.time() * 1000)
    now = trio.current_time()
    mark = config.gateway.data_dir / RAN_BEFORE
    before = mark.read_text() if mark.exists() else None
    mark.write_text(GAVE_PARTS if udp.children or before == GAVE_PARTS else "")
    waits_s = 0.0
    if before is not None:
        waits_s = udp.restart_wait_s if not udp.parent else JOIN_LEASE_S if before == GAVE_PARTS else 0.0
    return DatagramNodeSettings(
        subtree=udp.subtree,
        endpoint=endpoint,
        grants={"" if name == IN_CLEAR else name: subtrees for name, subtrees in udp.children.items()},
        incarnation=now_ms,
        first_number=now_ms << 20,
        redirects=udp.security != "plain",
        attached=bool(udp.cluster),
        holds_from=now + waits_s if waits_s else 0.0,
        subscriptions_max=udp.subscriptions_max,
        subscriptions_per_address_max=udp.subscriptions_per_address_max,
        publishers_max=udp.publishers_max,
        joins_per_second_max=udp.joins_per_second_max,
        packet_bytes_max=DATAGRAM_BYTES_MAX - {"sealed": SEALED_BYTES, "dtls": DTLS_BYTES}.get(udp.security, 0),
    )


def _register_metrics(metrics: Metrics, loop: _Loop) -> None:
    node, port = loop.node, loop.port
    metrics.counter(
        "udp_events_total",
        "Events at this node, by name; docs/udp.md lists them.",
        lambda: {(name,): float(count) for name, count in node.counts.items()},
        ("event",),
    )
    metrics.counter(
        "udp_datagrams_total",
        "Datagrams in and out, and dropped by reason.",
        lambda: {(name,): float(count) for name, count in port.counts.items()},
        ("what",),
    )
    metrics.gauge(
        "udp_now",
        "Current subscriptions and joined children; totals of repeats and of messages given up.",
        lambda: {(name,): float(count) for name, count in node.statistics.items()},
        ("what",),
    )
    if isinstance(port, DtlsSocket):
        metrics.pool("dtls_handshakes", lambda: port.handshakes.counts)
    cluster = loop.cluster
    if cluster is not None:
        metrics.counter(
            "udp_cluster_total",
            "Connections to the cluster, messages published there, QoS 0 messages dropped while it was down, and "
            "Server References of edges, followed and refused.",
            lambda: {(name,): float(count) for name, count in cluster.counts.items()},
            ("what",),
        )
        metrics.check("cluster", lambda: cluster.is_up)
    metrics.check("subtree", lambda: node.holds(trio.current_time()))
