"""Plan of `stratamq init`: nodes, hosts, ports and settings.

Chooses names, ports and the number of copies; writes no files (``stratamq/init_folder.py``). Ports are fixed for
firewall rules; nodes on one host use consecutive ports.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from conf.errors import ExitCode, UserError
from conf.node_settings import NAME_PATTERN
from wire.links.authority import LOOPBACK

__all__ = ["GATEWAY", "Layout", "LayoutNode", "gateway_of", "lay_out", "parse_node"]

TIERS = ("router", "storage", "edge")
GATEWAY = "gateway/"  # prefix of a gateway name, for which only a certificate is created
DEFAULT_NODES = ("router/router-0", "storage/storage-0", "edge/edge-0")
COPIES_MAX = 3
# First port of each kind on a host. Gossip ports are of all tiers, the others of one tier. The step is 10, for client
# ports 1.
GOSSIP_PORT = 7946
LINK_PORTS = {"router": 7947, "storage": 7948, "edge": 7949}
METRICS_PORTS = {"router": 9747, "storage": 9748, "edge": 9749}
CLIENT_PORT = 8883
# Limits for unauthenticated peers, as in conf/edge.toml and conf/storage.toml.
EDGE_LIMITS: Mapping[str, object] = {
    "keep_alive_max_s": 1200,
    "connect_rate_max": 200.0,
    "publish_rate_max": 10000.0,
    "filters_per_packet_max": 100,
    "share_join_rate_max": 100.0,
    "user_properties_max": 64,
    "retained_rate_max": 1000.0,
    "takeovers_max": 5,
    "will_rate_max": 100.0,
}
STORAGE_LIMITS: Mapping[str, object] = {"retained_payload_max": 65_536}
# Names of other files.
TAKEN_NAMES = ("ca", "operator", "admin", "device", "gossip", "tls", "clients", "cluster", "roles", "gateway")
TAKEN_ENDINGS = (".toml", ".json", ".pem", ".key", ".new")
NAME_CHARACTERS_MAX = 64
HOST_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"


@dataclass(frozen=True, slots=True)
class LayoutNode:
    """One node: host and ports; ``client_port`` is 0 unless it is an edge."""

    tier: str
    name: str
    host: str
    link_port: int = 0
    gossip_port: int = 0
    metrics_port: int = 0
    client_port: int = 0

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the node."""
        return self.host in LOOPBACK or _is_loopback(self.host)

    @property
    def bind(self) -> str:
        """The listening address: the host if it is an address, all addresses if it is a name."""
        if self.host == "localhost":
            return "127.0.0.1"
        return self.host if _is_address(self.host) else "0.0.0.0"

    def address(self, port: int) -> str:
        """Return host:port for other nodes."""
        host = self.bind if self.local else self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a cluster, stored in cluster.json.

    Attributes:
        first: Names of the initial routers; later routers join them.
    """

    cluster: str
    nodes: tuple[LayoutNode, ...]
    first: tuple[str, ...]

    def of_tier(self, tier: str) -> list[LayoutNode]:
        """Return the nodes of a tier."""
        return [node for node in self.nodes if node.tier == tier]

    @property
    def copies(self) -> int:
        """Number of copies of every message; fixed at the cluster's first start."""
        return max(1, min(COPIES_MAX, len(self.of_tier("storage"))))

    def document(self) -> dict[str, object]:
        """Return the content of cluster.json, with the routers' addresses."""
        return {
            "cluster": self.cluster,
            "routers": [node.address(node.link_port) for node in self.of_tier("router")],
            "tls": "tls",
            "first": list(self.first),
            "nodes": [asdict(node) for node in self.nodes],
        }

    @classmethod
    def read(cls, document: Mapping[str, object]) -> "Layout":
        """Return a layout from the result of ``document``.

        Raises:
            KeyError, TypeError, ValueError: The document is invalid.
        """
        nodes, first = document["nodes"], document["first"]
        if not isinstance(nodes, list) or not isinstance(first, list):
            raise ValueError("nodes and first must be lists")
        return cls(str(document["cluster"]), tuple(LayoutNode(**node) for node in nodes), tuple(map(str, first)))

    @property
    def unreached(self) -> str:
        """Return a line with the loopback nodes that remote nodes cannot reach; "" if all are reachable."""
        local = [node.name for node in self.nodes if node.local]
        distant = [node.name for node in self.nodes if not node.local]
        if not local or not distant:
            return ""
        return f"{', '.join(local)} on loopback cannot be reached from {', '.join(distant)}: give every node a host"

    def add(self, node: LayoutNode) -> "Layout":
        """Return this layout with an additional node on free ports of its host.

        Raises:
            UserError: The name is in use; exit code 2.
        """
        if any(node.name.lower() == other.name.lower() for other in self.nodes):
            raise UserError(f"{node.tier}/{node.name}: the name is already in use", ExitCode.USAGE)
        here = [other for other in self.nodes if other.host == node.host or (other.local and node.local)]
        placed = LayoutNode(
            node.tier,
            node.name,
            node.host,
            _next(LINK_PORTS[node.tier], 10, {other.link_port for other in here}),
            _next(GOSSIP_PORT, 10, {other.gossip_port for other in here}),
            _next(METRICS_PORTS[node.tier], 10, {other.metrics_port for other in here}),
            _next(CLIENT_PORT, 1, {other.client_port for other in here}) if node.tier == "edge" else 0,
        )
        return Layout(self.cluster, (*self.nodes, placed), self.first)

    def settings(self, node: LayoutNode, folder: Path) -> dict[str, dict[str, object]]:
        """Return the sections of a node's configuration file."""
        tls = folder / "tls"
        founders = [other for other in self.of_tier("router") if other.name in self.first]
        everywhere_local = all(other.local for other in self.nodes)
        room: dict[str, object] = {
            "cluster": self.cluster,
            "id": node.name,
            "data_dir": folder / node.name,
            "seeds": [other.address(other.link_port) for other in founders],
            "link_bind": node.bind,
            "link_port": node.link_port,
            "certificate": tls / f"{node.name}.pem",
            "key": tls / f"{node.name}.key",
            "authority": tls / "ca.pem",
        }
        gossip: dict[str, object] = {
            "cluster": self.cluster,
            "bind": f"[{node.bind}]:{node.gossip_port}" if ":" in node.bind else f"{node.bind}:{node.gossip_port}",
            "seeds": [other.address(other.gossip_port) for other in founders],
            "profile": "local" if everywhere_local else "lan",
            "key_file": tls / "gossip.key",
        }
        if node.bind == "0.0.0.0" or ":" in node.bind:
            room["advertise"] = node.address(node.link_port)
            gossip["advertise"] = node.address(node.gossip_port)
        own = dict(STORAGE_LIMITS)
        if node.tier != "storage":
            own = self._router(node) if node.tier == "router" else self._edge(node, folder)
        rooms: dict[str, dict[str, object]] = {
            "node": room,
            "membership": gossip,
            "metrics": {"port": node.metrics_port},
        }
        return rooms | ({node.tier: own} if own else {})

    def _router(self, node: LayoutNode) -> dict[str, object]:
        if node.name not in self.first:
            return {"join": True}
        room: dict[str, object] = {"replicas": self.copies, "min_in_sync": max(1, self.copies - 1)}
        founders = [other for other in self.of_tier("router") if other.name in self.first]
        if len(founders) > 1:
            room["members"] = [f"{other.name}@{other.address(other.link_port)}" for other in founders]
        return room

    def _edge(self, node: LayoutNode, folder: Path) -> dict[str, object]:
        listener: dict[str, object] = {
            "bind": node.bind if node.local else "0.0.0.0",
            "port": node.client_port,
            "tls": True,
            "certificate": folder / "clients" / f"{node.name}.pem",
            "key": folder / "clients" / f"{node.name}.key",
            "client_ca": folder / "clients" / "ca.pem",
            "require_client_certificate": True,
            "backlog": 512,
            "accept_rate_max": 200.0,
            "accept_rate_address_max": 50.0,
            "subscribe_rate_max": 500.0,
            "sessions_user_max": 10_000,
            "retained_user_max": 100_000,
            "retained_bytes_user_max": 256 << 20,
            "roles_file": folder / "roles.toml",
            "authenticated_roles": ["device"],
        }
        return {**EDGE_LIMITS, "scram_secret_file": folder / "tls" / "scram.secret", "listeners": {"tls": listener}}


def lay_out(cluster: str, words: Sequence[str]) -> Layout:
    """Return the layout of a new cluster.

    Args:
        cluster: Name of the cluster.
        words: ``TIER/NAME[=HOST]`` of each node; empty: one router, one storage node and one edge on loopback.
    Raises:
        UserError: All errors, one line each; exit code 2.
    """
    if not re.match(NAME_PATTERN, cluster) or len(cluster) > NAME_CHARACTERS_MAX:
        raise UserError(
            f"--cluster {cluster} is invalid: use at most 64 letters, digits, dots, dashes and underscores", 2
        )
    nodes, mistakes = [], []
    for word in words or DEFAULT_NODES:
        try:
            nodes.append(parse_node(word))
        except UserError as error:
            mistakes.append(error.message)
    routers = [node.name for node in nodes if node.tier == "router"]
    if not mistakes and len(routers) not in (1, 3, 5):
        mistakes.append(f"{len(routers)} routers: a Raft group has 1, 3 or 5 members")
    for tier in ("storage", "edge"):
        if not mistakes and all(node.tier != tier for node in nodes):
            mistakes.append(f"no {tier} node: add one with --node {tier}/{tier}-0[=HOST]")
    if mistakes:
        raise UserError("\n".join(mistakes), ExitCode.USAGE)
    layout = Layout(cluster, (), tuple(routers))
    for node in nodes:
        layout = layout.add(node)
    return layout


def parse_node(word: str) -> LayoutNode:
    """Parse ``TIER/NAME[=HOST]``; without a host the node is on loopback.

    Raises:
        UserError: The text is invalid; exit code 2.
    """
    named, equals, host = word.partition("=")
    tier, slash, name = named.partition("/")
    if not slash or tier not in TIERS or (equals and not host):
        raise UserError(f"{word}: expected TIER/NAME or TIER/NAME=HOST, TIER one of {', '.join(TIERS)}", ExitCode.USAGE)
    _check_name(word, name)
    host = host.removeprefix("[").removesuffix("]") or "localhost"
    if not _is_address(host) and not re.match(HOST_PATTERN, host):
        raise UserError(f"{word}: {host} is neither an address nor a host name (without a port)", ExitCode.USAGE)
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        raise UserError(f"{word}: {host} is not an address that other nodes can reach", ExitCode.USAGE)
    return LayoutNode(tier, name, host)


def gateway_of(word: str) -> str:
    """Parse ``gateway/NAME``; return the name.

    Raises:
        UserError: The name is not a valid file name; exit code 2.
    """
    name = word.removeprefix(GATEWAY)
    _check_name(word, name)
    return name


def _check_name(word: str, name: str) -> None:
    if not re.match(NAME_PATTERN, name) or len(name) > NAME_CHARACTERS_MAX:
        raise UserError(f"{word}: a name has at most 64 letters, digits, dots, dashes and underscores", ExitCode.USAGE)
    if name.lower() in TAKEN_NAMES or name.lower().endswith(TAKEN_ENDINGS):
        raise UserError(
            f"{word}: {name} is reserved for other files of the folder; choose another name", ExitCode.USAGE
        )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _next(first: int, step: int, taken: set[int]) -> int:
    while first in taken:
        first += step
    return first
