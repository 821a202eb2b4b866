"""The process of any tier around its core: data folder, identity, certificates, clock, signals, metrics page.

A service is a trio function that runs inside ``run_process``. SIGTERM sets ``NodeProcess.stopping``, and the service
stops in order by itself. On a timeout, or on SIGINT, it is cancelled; acknowledged data is on disk in any case.
"""

import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import trio

from conf.data_folder import CLUSTER_FILE, DataFolder
from conf.errors import ExitCode, UserError
from conf.events import say
from conf.metrics import Metrics, bind_health, bind_metrics, page_hosts, prepare_page, serve_metrics
from conf.settings import NodeConfig
from wire.clock import boot_time
from wire.cpu_yield import GiveWay, YieldBeforeSteps, stay
from wire.links.tls import CertificateFiles, LinkContexts, link_contexts
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import NodeIdentity
from wire.node.certificate_ends import CertificateEnds, register_certificate_ends
from wire.node.host_figures import register_host_figures
from wire.node.known_cluster import KnownCluster
from wire.node.lease_holder import LeaseHolder
from wire.node.link_lists import LinkFiles, ReadLists, link_lists, register_link_lists
from wire.node.loop_lag import LoopLag
from wire.node.reload import NodeReload, Reloaded
from wire.node.reload_parts import LinkCertificates, Logs
from wire.node.reloading import Reloading, WatchedFiles
from wire.node.scheduling import take_turns
from wire.node.signals import obey_signals, state_lines

__all__ = [
    "EXIT_DAMAGED",
    "EXIT_PUT_ASIDE",
    "EXIT_RESTART",
    "NodeProcess",
    "collect_rarely",
    "own_version",
    "run_process",
]

logger = logging.getLogger(__name__)

EXIT_RESTART = 75  # EX_TEMPFAIL: the map ended this incarnation; start the process again
EXIT_PUT_ASIDE = 74  # EX_IOERR: a damaged store was quarantined; start the process again
# Connections, routes and sessions live long and form no cycles. A full collection, which the last threshold
# counts, takes 0.1 s and finds no garbage. Young objects are collected in small portions: survivors are walked
# twice whatever the first two thresholds are, and their product bounds the delay of a message.
GC_THRESHOLDS = (2_000, 2, 100_000)

EXIT_DAMAGED = 65  # EX_DATAERR: acknowledged data is lost; an operator must act before the process can serve


class ClusterLinks(Protocol):
    """The part of a node's links that detects another cluster."""

    other_cluster: str  # why the node at a seed's address was refused: another cluster; "" if none was

    def belong(self, cluster_id: str) -> None:
        """Set the cluster ID that this node read from its map, and end links to nodes of another one."""


def own_version() -> str:
    """Return the version of this installation."""
    try:
        return version("stratamq")
    except PackageNotFoundError:
        return "0+unknown"


def collect_rarely() -> None:
    """Exclude existing objects from garbage collection: a tier's objects are freed by reference counts."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _not_yet(part: WatchedFiles) -> None:
    raise AssertionError(f"{part} was watched before the process runs")


async def _not_now(dry_run: bool) -> Reloaded:
    raise AssertionError(f"a reload (dry run: {dry_run}) was ordered before the process runs")


@dataclass
class NodeProcess:
    """State of this process: its identity towards other nodes, and its metrics."""

    config: NodeConfig
    tier: str
    folder: DataFolder
    contexts: LinkContexts | None
    metrics: Metrics
    ready: Callable[[dict[str, object]], None]
    reload: NodeReload  # the service adds its tier's parts
    lists: LinkFiles | None  # None: links are plaintext
    reloaded: Callable[[Reloaded], None] = lambda _: None  # the service adds it to its audit log
    reload_now: Callable[[bool], Awaitable[Reloaded]] = _not_now  # True: only reports the difference
    watch: Callable[[WatchedFiles], None] = _not_yet  # checks a part's files between reloads
    restart: bool = False  # the map ended this incarnation
    put_aside: bool = False  # its damaged store is quarantined: the next incarnation starts without it
    stopping: trio.Event = field(default_factory=trio.Event)  # set by SIGTERM: stop in order
    signals: dict[str, int] = field(default_factory=dict)  # received, by name
    lease: LeaseHolder | None = None  # set by the service; like ``links``, for the state log
    links: Callable[[], list[str]] = list  # linked nodes
    page: tuple[str, int] | None = None  # address of its metrics page
    turns: LoopLag = field(default_factory=LoopLag)
    give_way: GiveWay = stay  # between two pieces of an iteration

    @property
    def identity(self) -> NodeIdentity:
        """Identity for HELLO; without an address until it is bound."""
        node = self.config.node
        identity = NodeIdentity(node.cluster, node.id, self.tier, self.folder.incarnation, node.advertise)
        return identity._replace(cluster_id=self.folder.cluster_id)

    @property
    def cluster(self) -> dict[str, object]:
        """Name and ID of this process's cluster, for the ready message; empty before they are known."""
        cluster_id = self.lease.cluster.cluster_id if self.lease is not None else self.folder.cluster_id
        return {"cluster": f"{self.config.node.cluster} ({cluster_id})"} if cluster_id else {}

    def check_cluster(self, known: KnownCluster, links: "ClusterLinks") -> None:
        """Store the cluster of the first map in the data folder; end this process if another cluster answers.

        Raises:
            UserError: The data folder belongs to another cluster than the routers that were reached.
        """
        refusal = known.refusal or ("" if known.has_map else links.other_cluster)
        if refusal:
            raise UserError(
                f"{refusal}: correct node.seeds, or choose another node.data_dir; "
                f"{self.folder.path / CLUSTER_FILE} names the cluster that the data belongs to",
                ExitCode.USAGE,
            )
        if known.has_map and known.cluster_id != self.folder.cluster_id:
            links.belong(known.cluster_id)
            try:
                self.folder.belong(self.config.node.cluster, known.cluster_id)
            except OSError as error:
                raise UserError(f"{self.folder.path / CLUSTER_FILE}: {error.strerror or error}") from None
            say(logger, "cluster.joined", cluster=self.folder.cluster, cluster_id=known.cluster_id)

    def entry(self, bound: str, clients: dict[str, str] | None = None) -> NodeEntry:
        """Return this node's entry for the map."""
        node = self.config.node
        return NodeEntry(
            node.id,
            self.tier,
            self.folder.incarnation,
            node.advertise or bound,
            clients or {},
            node.zone,
            node.weight,
        )

    def describe(self) -> list[str]:
        """Return the node's name, its lease and map, and the linked nodes, a line each."""
        lines = [f"node {self.config.node.id}, {self.tier}, incarnation {self.folder.incarnation}"]
        lease = self.lease
        if lease is not None:
            left_s = max(0.0, lease.lease_until - boot_time())
            lines.append(f"lease {left_s:.2f} s, leader {lease.leader or 'unknown'}")
            lines.append(f"map epoch {lease.map.epoch}, settled {lease.settled_epoch}, {len(lease.map.nodes)} nodes")
        links = self.links()
        return [*lines, f"{len(links)} links: {', '.join(links)}"]

    @property
    def is_ready(self) -> bool:
        """Whether every condition of ``/readyz`` is met."""
        return all(self.metrics.readiness().values())

    @property
    def drains(self) -> bool | None:
        """Whether the map orders this node to drain; None: it follows no map."""
        if self.lease is None:
            return None
        mine = self.lease.map.nodes.get(self.config.node.id)
        return mine is not None and bool(mine.admin_state)

    @property
    def link_address(self) -> str:
        """Address on which to listen for other nodes."""
        return f"{self.config.node.link_bind}:{self.config.node.link_port}"


def _contexts(config: NodeConfig) -> LinkContexts | None:
    node = config.node
    if node.plaintext_links:
        return None
    missing = [name for name in ("certificate", "key", "authority") if getattr(node, name) is None]
    if missing:
        names = ", ".join(f"node.{name}" for name in missing)
        raise UserError(f"links between nodes need {names} (or node.plaintext_links = true, for tests only)", 2)
    assert node.certificate is not None and node.key is not None and node.authority is not None
    return link_contexts(CertificateFiles(Path(node.certificate), Path(node.key), Path(node.authority)))


def _lists(config: NodeConfig, contexts: LinkContexts | None, read: ReadLists) -> LinkFiles | None:
    if contexts is None:
        read(config.node)  # refuses lists that would be ignored
        return None
    return link_lists(contexts.revoked, config.node, read)


def _reload(
    config: NodeConfig, contexts: LinkContexts | None, lists: LinkFiles | None, ends: CertificateEnds
) -> NodeReload:
    reload = NodeReload(config, config.again or _unreadable)
    reload.add(Logs(config))
    if contexts is not None:
        reload.add(LinkCertificates(contexts, config))
    if lists is not None:
        reload.add(lists)
    reload.add(ends)
    return reload


def _unreadable() -> NodeConfig:
    raise UserError("this process was started without settings that can be read again")


def run_process(
    config: NodeConfig,
    tier: str,
    ready: Callable[[dict[str, object]], None],
    service: Callable[[NodeProcess], Awaitable[None]],
    read_lists: ReadLists,
) -> int:
    """Run a tier's service until it ends or a signal stops it; return the exit code.

    Args:
        config: Of this process.
        tier: Its tier.
        ready: Called with the addresses when the node serves.
        service: Serves until cancelled.
        read_lists: Reads the revocation lists of links (``access/identity/peer_lists.py``).
    Raises:
        UserError: Folder, certificate, revocation list or address cannot be used.
    """
    folder = DataFolder(config.node.data_dir)
    if folder.cluster not in ("", config.node.cluster):
        raise UserError(
            f"node.cluster is {config.node.cluster}, but the data in {folder.path} belongs to cluster {folder.cluster} "
            f"({folder.cluster_id})",
            ExitCode.USAGE,
        )
    contexts, metrics = _contexts(config), Metrics(tier, config.node.id, own_version())
    lists = _lists(config, contexts, read_lists)
    yields_cpu = take_turns(config.node, config.sources)
    ends = CertificateEnds(config)
    reload = _reload(config, contexts, lists, ends)
    process = NodeProcess(config, tier, folder, contexts, metrics, ready, reload, lists)
    if yields_cpu:
        process.give_way = os.sched_yield
    register_certificate_ends(metrics, ends)
    prepare_page(config.metrics)
    try:
        trio.run(_main, process, service, ends)
    finally:
        folder.close()
    if process.put_aside:
        return EXIT_PUT_ASIDE
    return EXIT_RESTART if process.restart else 0


async def _main(process: NodeProcess, service: Callable[[NodeProcess], Awaitable[None]], ends: CertificateEnds) -> None:
    listener = bind_metrics(process.config.metrics) if process.config.metrics.enabled else None
    health = bind_health(process.config.metrics)
    pages = {
        name: one.getsockname()[:2] for name, one in (("metrics", listener), ("health", health)) if one is not None
    }
    process.page = pages.get("metrics", process.page)
    report_ready = process.ready

    async with trio.open_nursery() as nursery:

        def ready(addresses: dict[str, object]) -> None:
            report_ready(
                {**addresses, **process.cluster, **{name: f"{host}:{port}" for name, (host, port) in pages.items()}}
            )

        process.ready = ready
        if listener is not None:
            hosts = page_hosts(process.config.metrics, process.config.node.advertise)
            nursery.start_soon(serve_metrics, process.metrics, listener, False, hosts)
        if health is not None:
            nursery.start_soon(serve_metrics, process.metrics, health, True)
        collect_rarely()
        metrics = process.metrics
        trio.lowlevel.add_instrument(process.turns)
        if process.give_way is not stay:
            trio.lowlevel.add_instrument(YieldBeforeSteps(process.give_way))
        metrics.gauge(
            "turn_longest_seconds", "Longest event-loop iteration in the last 30 to 60 s.", process.turns.longest_s
        )
        metrics.show(
            "event_loop_lag_seconds",
            "Durations of event-loop iterations: the maximum delay of a message that arrives meanwhile.",
            lambda: process.turns.lengths,
        )
        metrics.counter(
            "signals_total",
            "Received signals, by name.",
            lambda: {(name,): float(count) for name, count in process.signals.items()},
            ("signal",),
        )
        metrics.counter(
            "reloads_total",
            "Reloads, by outcome; a refused one changed nothing.",
            lambda: {(outcome,): float(count) for outcome, count in process.reload.outcomes.items()},
            ("outcome",),
        )
        register_host_figures(metrics, process.folder.path)
        metrics.gauge(
            "ready",
            "1 while /readyz succeeds; a node that drains or stops has no series.",
            lambda: {} if process.drains or process.stopping.is_set() else float(process.is_ready),
        )
        metrics.gauge("clock_seconds", "The node's clock, in seconds since 1970.", time.time)
        metrics.check("going_on", lambda: not process.stopping.is_set())
        reloading = Reloading(process.reload, lambda outcome: process.reloaded(outcome))
        await nursery.start(
            obey_signals,
            process.stopping,
            nursery.cancel_scope.cancel,
            process.signals,
            lambda: state_lines(process.describe(), metrics),
            reloading.want,
        )
        nursery.start_soon(reloading.run)
        process.reload_now = reloading.once
        process.watch = lambda part: nursery.start_soon(reloading.watch, part)
        ends.take(None)
        process.watch(ends)
        if process.lists is not None and process.contexts is not None:
            register_link_lists(metrics, process.lists, process.contexts.revoked)
            process.watch(process.lists)
        await service(process)
        nursery.cancel_scope.cancel()
