"""Plan of a local cluster: nodes, ports, certificates, and a configuration file for each node.

Chooses names, ports and the defaults of `stratamq up`; starts no process (``stratamq/processes.py``). Ports are chosen
before any node starts, because all tiers start concurrently and a restarted node keeps its ports. Two `up` processes
never choose the same port, even before a node binds it.
"""

import datetime
import fcntl
import json
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from conf.errors import ExitCode, UserError
from conf.settings import EdgeConfig
from membership.keyring import generate_key, write_key_file
from stratamq.client_files import LOCAL_ROLES, write_roles
from stratamq.packages import load_config
from stratamq.toml_text import toml_document
from wire.links.authority import DevelopmentAuthority

__all__ = ["CHOSEN_PORTS", "ClusterPlan", "NodePlan", "UpOptions", "hold_port", "make_plan"]

CLUSTER = "stratamq"  # default of node.cluster, so that the shipped files work with the data of `up`
TLS_PORT = 8883  # plus i for edge i; another free port if it is in use
ADMIN_PORT = 18_083
ROUTER_PORT = 7947  # router i: plus 10 i; likewise
# Below Linux's ephemeral ports, so no outgoing connection takes a port before its node binds it.
CHOSEN_PORTS = range(20_000, 32_000)
CHOICES_MAX = 1000
REPLICAS_MAX = 3

_held: dict[int, IO[bytes]] = {}  # locks of the ports that this process chose, against other clusters


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `stratamq up`; ``data`` None is ephemeral, a port None is not configured."""

    edges: int = 2
    routers: int = 1
    storages: int = 1
    data: Path | None = Path("data")
    tls_port: int | None = None
    plain_port: int | None = None
    ws_port: int | None = None
    settings: tuple[str, ...] = ()
    foreground: bool = False
    restart: bool = True
    balance: bool = False
    admin: bool = False
    admin_port: int | None = None

    def named_ports(self) -> set[int]:
        """Return the ports that the command line configures, of all edges."""
        bases = (self.tls_port, self.plain_port, self.ws_port)
        return {base + index for base in bases if base for index in range(self.edges + self.balance)}


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One process."""

    name: str
    tier: str
    config: Path
    listeners: dict[str, int] = field(default_factory=dict)  # edges: "tls" | "plain" | "ws" -> port
    paths: dict[str, str] = field(default_factory=dict)  # edges: WebSocket listener -> path


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All processes, in the reverse order of their stop: routers, storage nodes, edges."""

    data: Path
    tls: Path
    nodes: tuple[NodePlan, ...]
    routers: tuple[str, ...]  # link addresses
    replicas: int
    admin: NodePlan | None = None  # started when the others are ready

    def of_tier(self, tier: str) -> list[NodePlan]:
        """Return the nodes of a tier."""
        return [node for node in self.nodes if node.tier == tier]


class _Ports:
    """Allocates each port once, and stores ports that must not change between runs."""

    def __init__(self, data: Path, named: set[int]) -> None:
        """Reserve the ports of the command line."""
        self._named = named
        self._file = data / "ports.json"
        self._given: set[int] = set()
        self._rng = random.Random()
        try:
            self._saved: dict[str, int] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            self._saved = {}

    def exactly(self, port: int) -> int:
        """Return the requested port, or a chosen one for 0; another program may still use it."""
        if port == 0:
            return self.choose()
        if port > 65535:
            raise UserError(f"port {port}: the ports of all edges must be below 65536", ExitCode.USAGE)
        if port in self._given:
            why = "edge N listens on the given ports plus N: use ports that are far enough apart, or --edges 1"
            raise UserError(f"port {port} is used twice: {why}", ExitCode.USAGE)
        if not _is_free(port):
            raise UserError(
                f"port {port} is in use: stop the program that listens there, or use another port (0: any free port)"
            )
        self._given.add(port)
        return port

    def preferably(self, port: int) -> int:
        """Return a port if it is free, otherwise another one."""
        return self._take(port) or self.choose()

    def choose(self) -> int:
        """Return a free port."""
        for _ in range(CHOICES_MAX):
            port = self._take(self._rng.choice(CHOSEN_PORTS))
            if port:
                return port
        raise UserError(f"no free port between {CHOSEN_PORTS.start} and {CHOSEN_PORTS.stop}")

    def saved(self, key: str, preferred: int | None) -> int:
        """Return the port of an earlier run if it is free, otherwise the preferred or another one; stores it."""
        port = self._take(self._saved.get(key, 0)) or (
            self.choose() if preferred is None else self.preferably(preferred)
        )
        self._saved[key] = port
        self._file.write_text(json.dumps(self._saved, indent=1) + "\n")
        return port

    def _take(self, port: int) -> int:
        if not 0 < port <= 65535 or port in self._given or port in self._named or not hold_port(port):
            return 0
        self._given.add(port)
        return port


def hold_port(port: int) -> bool:
    """Return whether a port is free and not reserved by another process of this user; reserve it."""
    if not _is_free(port):
        return False
    if port in _held:
        return True
    locks = Path(tempfile.gettempdir()) / f"stratamq-ports-{os.getuid()}"
    try:
        locks.mkdir(mode=0o700, exist_ok=True)
        lock = (locks / str(port)).open("ab")
    except OSError:
        return True  # no lock file can be created: the first process to bind the port gets it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _held[port] = lock
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like the node, to ignore TIME_WAIT
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def make_plan(options: UpOptions, data: Path, now: datetime.datetime) -> ClusterPlan:
    """Choose ports, create missing certificates, and write each node's configuration.

    Raises:
        UserError: Invalid options or settings (all, exit code 2), ports in use, or the folder is not writable.
    """
    if options.routers not in (1, 3, 5):
        raise UserError(f"--routers {options.routers}: a Raft group has 1, 3 or 5 members", ExitCode.USAGE)
    chosen = options.data is None or options.tls_port == 0  # without a fixed TLS port, no port is fixed
    try:
        ports = _Ports(data, options.named_ports())
        names = [f"router-{index}" for index in range(options.routers)]
        links = [ports.saved(name, None if chosen else ROUTER_PORT + 10 * i) for i, name in enumerate(names)]
        routers = tuple(f"127.0.0.1:{port}" for port in links)
        plan = _Writer(options, data, ports, dict(zip(names, routers, strict=True)), now).write()
    except OSError as error:
        raise UserError(f"data folder {data} cannot be written: {error.strerror or error}") from None
    _check(plan, options.settings)
    return plan


def _check(plan: ClusterPlan, settings: Sequence[str]) -> None:
    """Validate every tier's configuration once, so errors are reported once; store the WebSocket paths."""
    lines: list[str] = []
    planned = [*plan.nodes, *([plan.admin] if plan.admin is not None else [])]
    for tier, node in {node.tier: node for node in planned}.items():
        try:
            config = load_config(tier, node.config, settings)
        except UserError as error:
            lines += error.message.split("\n")
            continue
        if isinstance(config, EdgeConfig):
            for edge in plan.of_tier("edge"):
                edge.paths.update({each.name: each.path for each in config.edge.listeners if each.protocol == "ws"})
    if lines:
        raise UserError("\n".join(dict.fromkeys(lines)), ExitCode.USAGE)


class _Writer:
    """Writes certificates and configuration files of one cluster."""

    def __init__(
        self, options: UpOptions, data: Path, ports: _Ports, routers: dict[str, str], now: datetime.datetime
    ) -> None:
        self._options = options
        self._data = data
        self._ports = ports
        self._routers = routers
        self._authority = DevelopmentAuthority(data / "tls", CLUSTER, now)
        self._replicas = min(REPLICAS_MAX, max(1, options.storages))
        self._gossip_seed = f"127.0.0.1:{ports.saved('router-0.gossip', None)}"

    def write(self) -> ClusterPlan:
        """Write all files; return the plan."""
        self._authority.operator()
        self._authority.operator("admin", "admin")
        self._authority.gateway()
        self._authority.client()
        write_roles(self._data / "roles.toml", LOCAL_ROLES)
        nodes = [self._router(name) for name in self._routers]
        nodes += [self._storage(f"storage-{index}") for index in range(self._options.storages)]
        first = int(self._options.balance)  # the balancer has the configured ports, the edges the following ones
        nodes += [self._edge(f"edge-{index}", first + index) for index in range(self._options.edges)]
        if self._options.balance:
            nodes.append(self._balancer())
        tls = self._authority.folder
        admin = self._admin() if self._options.admin else None
        return ClusterPlan(self._data, tls, tuple(nodes), tuple(self._routers.values()), self._replicas, admin)

    def _router(self, name: str) -> NodePlan:
        room: dict[str, object] = {"replicas": self._replicas, "min_in_sync": max(1, self._replicas - 1)}
        if len(self._routers) > 1:
            room["members"] = [f"{member}@{address}" for member, address in self._routers.items()]
        port = int(self._routers[name].rpartition(":")[2])
        return self._node(name, "router", {"router": room}, link_port=port)

    def _storage(self, name: str) -> NodePlan:
        return self._node(name, "storage", {"storage": {"export_dir": str(self._data / "exports")}}, link_port=0)

    def _edge(self, name: str, index: int) -> NodePlan:
        options, ports = self._options, self._ports
        server = self._authority.server()
        # Client certificates are not requested: all clients may connect, and requests make handshakes 20 % slower.
        shown = {"certificate": server.certificate, "key": server.key}
        if options.tls_port is not None:
            tls_port = ports.exactly(options.tls_port and options.tls_port + index)
        elif options.data is None:
            tls_port = ports.choose()
        else:
            tls_port = ports.preferably(TLS_PORT + index)
        listeners: dict[str, dict[str, object]] = {"tls": {"port": tls_port, "tls": True, **shown}}
        for listener, base, protocol in (("plain", options.plain_port, "mqtt"), ("ws", options.ws_port, "ws")):
            if base is not None:
                port = ports.exactly(base and base + index)
                listeners[listener] = {"port": port, "tls": False, "protocol": protocol}
        roles = {"authenticated_roles": ["device"], "anonymous_roles": ["device", "figures"]}
        for table in listeners.values():
            table |= {"bind": "127.0.0.1", "allow_anonymous": True, "roles_file": self._data / "roles.toml", **roles}
        room: dict[str, object] = {"user_property_bytes_max": 128 * 1024, "client_id_bytes_max": 65_535}
        # No limit per address, because all clients of a local cluster have the same address.
        room |= {"session_rate": 0.0, "failed_logins_max": 0, "flapping_ends_max": 0, "listeners": listeners}
        node = self._node(name, "edge", {"edge": room}, link_port=0)
        node.listeners.update({listener: int(str(table["port"])) for listener, table in listeners.items()})
        return node

    def _balancer(self) -> NodePlan:
        """Plan the load balancer, whose listeners have the configured ports."""
        options, ports = self._options, self._ports
        tls_port = ports.exactly(options.tls_port) if options.tls_port is not None else ports.preferably(TLS_PORT)
        listeners: dict[str, dict[str, object]] = {"tls": {"port": tls_port}}
        for listener, base in (("plain", options.plain_port), ("ws", options.ws_port)):
            if base is not None:
                listeners[listener] = {"port": ports.exactly(base), "opaque": listener == "ws"}
        name = "balance-0"
        node = self._node(name, "balance", {"balance": {"listeners": listeners}}, link_port=0)
        node.listeners.update({listener: int(str(table["port"])) for listener, table in listeners.items()})
        return node

    def _admin(self) -> NodePlan:
        """Plan the HTTP service, which uses the administrator's certificate."""
        options, ports = self._options, self._ports
        if options.admin_port is not None:
            port = ports.exactly(options.admin_port)
        elif options.data is None or options.tls_port == 0:
            port = ports.choose()
        else:
            port = ports.preferably(ADMIN_PORT)
        room: dict[str, object] = {"port": port, "login_code": True, "audits_dir": self._data / "audits"}
        return self._node("admin", "admin", {"admin": room}, link_port=0)

    def _gossip_key(self) -> Path:
        path = self._authority.folder / "gossip.key"
        if not path.exists():
            write_key_file(path, [generate_key()])
        return path

    def _node(self, name: str, tier: str, rooms: dict[str, dict[str, object]], *, link_port: int) -> NodePlan:
        authority = self._authority
        if tier == "admin":
            certificate = authority.operator(name, tier)
        else:
            certificate = authority.gateway(name) if tier == "balance" else authority.node(tier, name)
        folder = self._data / name
        folder.mkdir(parents=True, exist_ok=True)
        node: dict[str, object] = {
            "cluster": CLUSTER,
            "id": name,
            "data_dir": folder,
            "seeds": list(self._routers.values()),
            "link_bind": "127.0.0.1",
            "link_port": link_port,
            "certificate": certificate.certificate,
            "key": certificate.key,
            "authority": certificate.authority,
        }
        gossip: dict[str, object] = {
            "cluster": CLUSTER,
            "bind": self._gossip_seed if name == "router-0" else "127.0.0.1:0",
            "seeds": [self._gossip_seed],
            "profile": "local",
            "key_file": self._gossip_key(),
        }
        port = self._ports.saved(f"{name}.metrics", None)  # stable for Prometheus scrapers
        metrics: dict[str, object] = {"port": port, "prepare": False}  # all nodes start at once, on one machine
        document: dict[str, dict[str, object]] = {"node": node, "membership": gossip, "metrics": metrics, **rooms}
        if tier == "admin":
            del document["membership"]
        config = folder / f"{tier}.toml"
        config.write_text(f"# Written by `stratamq up` at every start.\n{toml_document(document)}")
        return NodePlan(name, tier, config)
