"""The process of any tier around its core: data folder, identity, certificates, clock, signals, metrics page.

A service is a trio function that runs inside ``run_process``. SIGTERM sets ``NodeProcess.stopping``, and the service
ends in order by itself; where it does not in time, or on SIGINT, it is cancelled, and the process ends with what was
acknowledged on disk anyway.
"""

import gc
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import trio

from conf.data_folder import DataFolder
from conf.errors import UserError
from conf.metrics import Metrics, bind_metrics, serve_metrics
from conf.settings import NodeConfig
from wire.clock import boot_time
from wire.links.tls import CertificateFiles, LinkContexts, link_contexts
from wire.messages.cluster_map import NodeEntry
from wire.messages.hello import NodeIdentity
from wire.node.lease_holder import LeaseHolder
from wire.node.signals import obey_signals, state_lines
from wire.node.turns import Turns

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
EXIT_PUT_ASIDE = 74  # EX_IOERR: a damaged store was put aside; start the process again
# Connections, routes and sessions live long and form no cycles: a look at all of them, which is what the last
# threshold counts, takes a tenth of a second and finds nothing. Young objects are looked at in small portions: what
# survives is walked twice whatever the first two thresholds are, and their product bounds how long a message waits.
GC_THRESHOLDS = (2_000, 2, 100_000)

EXIT_DAMAGED = 65  # EX_DATAERR: what the disk promised is gone; somebody must act before the process can serve


def own_version() -> str:
    """Return the version of this installation."""
    try:
        return version("stratamq")
    except PackageNotFoundError:
        return "0+unknown"


def collect_rarely() -> None:
    """Keep the collector away from what stays: what a tier no longer needs is freed by its reference counts."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@dataclass
class NodeProcess:
    """This process as other nodes see it, and what it shows of itself."""

    config: NodeConfig
    tier: str
    folder: DataFolder
    contexts: LinkContexts | None
    metrics: Metrics
    ready: Callable[[dict[str, object]], None]
    restart: bool = False  # the map ended this incarnation
    put_aside: bool = False  # its damaged store: the next incarnation begins without it
    stopping: trio.Event = field(default_factory=trio.Event)  # SIGTERM came: end in order
    signals: dict[str, int] = field(default_factory=dict)  # that came, by name
    lease: LeaseHolder | None = None  # of the service, once it has one: this and the next for the log of the state
    links: Callable[[], list[str]] = list  # nodes to which a link stands
    turns: Turns = field(default_factory=Turns)

    @property
    def identity(self) -> NodeIdentity:
        """Identity for HELLO; without an address until it is bound."""
        node = self.config.node
        return NodeIdentity(node.cluster, node.id, self.tier, self.folder.incarnation, node.advertise)

    def entry(self, bound: str, clients: dict[str, str] | None = None) -> NodeEntry:
        """Return this node as it registers in the map."""
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
        """Return the node's name, its lease and map, and the nodes that it is linked to, a line each."""
        lines = [f"node {self.config.node.id}, {self.tier}, incarnation {self.folder.incarnation}"]
        lease = self.lease
        if lease is not None:
            left_s = max(0.0, lease.lease_until - boot_time())
            lines.append(f"lease {left_s:.2f} s, leader {lease.leader or 'unknown'}")
            lines.append(f"map epoch {lease.map.epoch}, settled {lease.settled_epoch}, {len(lease.map.nodes)} nodes")
        links = self.links()
        return [*lines, f"{len(links)} links: {', '.join(links)}"]

    @property
    def link_address(self) -> str:
        """Where to listen for other nodes."""
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


def run_process(
    config: NodeConfig,
    tier: str,
    ready: Callable[[dict[str, object]], None],
    service: Callable[[NodeProcess], Awaitable[None]],
) -> int:
    """Run a tier's service until it ends or a signal comes; return the exit code.

    Raises:
        UserError: Folder, certificate or address cannot be used.
    """
    folder = DataFolder(config.node.data_dir)
    process = NodeProcess(config, tier, folder, _contexts(config), Metrics(tier, config.node.id, own_version()), ready)
    try:
        trio.run(_main, process, service)
    finally:
        folder.close()
    if process.put_aside:
        return EXIT_PUT_ASIDE
    return EXIT_RESTART if process.restart else 0


async def _main(process: NodeProcess, service: Callable[[NodeProcess], Awaitable[None]]) -> None:
    listener = bind_metrics(process.config.metrics) if process.config.metrics.enabled else None
    said = process.ready

    async with trio.open_nursery() as nursery:

        def ready(addresses: dict[str, object]) -> None:
            if listener is not None:
                host, port = listener.getsockname()[:2]
                addresses = {**addresses, "metrics": f"{host}:{port}"}
            said(addresses)

        process.ready = ready
        if listener is not None:
            nursery.start_soon(serve_metrics, process.metrics, listener)
        collect_rarely()
        metrics = process.metrics
        trio.lowlevel.add_instrument(process.turns)
        metrics.gauge(
            "turn_longest_seconds", "Longest turn of the process in the last 30 to 60 s.", process.turns.longest_s
        )
        metrics.counter(
            "signals_total",
            "Signals that came, by name.",
            lambda: {(name,): float(count) for name, count in process.signals.items()},
            ("signal",),
        )
        metrics.check("going_on", lambda: not process.stopping.is_set())
        await nursery.start(
            obey_signals,
            process.stopping,
            nursery.cancel_scope.cancel,
            process.signals,
            lambda: state_lines(process.describe(), metrics),
        )
        await service(process)
        nursery.cancel_scope.cancel()
