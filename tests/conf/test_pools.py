"""Each port open to strangers has a pool, and each pool a row in docs/security.md, a metric and an attack test."""

import ast
import re
from pathlib import Path

import pytest

from conf.admission import POOLS
from tests.packages import PACKAGES

ROOT = Path(__file__).parents[2]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
ROWS = {
    row[0]: row[1:]
    for row in re.findall(
        r"^\| `(\w+)` \| (.*?) \| ([\d ]+\d)\b.*? \| ([\d ]+) \| (?:.*?) \| `([\w/.:]+)` \|$",
        (ROOT / "docs" / "security.md").read_text(encoding="utf-8"),
        re.M,
    )
}
ACCEPTS = r"\.accept\(\)|open_tcp_listeners\(|serve_tcp\(|serve_listeners\(|DTLSEndpoint\(|accept_one\(|start_server\("
# Code that accepts connections, and the pools that bound the unauthenticated ones.
PORTS: dict[str, tuple[str, ...]] = {
    "conf/admitted.py": ("node_links", "federation_links", "gossip_exchanges", "admin_connections", "node_pages"),
    "edge/loop/descriptors.py": ("edge_links", "edge_clients"),
    "edge/loop/sockets.py": ("edge_links", "edge_clients"),
    "edge/listeners/listeners.py": ("edge_clients",),
    "gateways/balancer/balancer_listener.py": ("balancer_arrivals",),
    "gateways/datagrams/dtls.py": ("dtls_handshakes",),
    "gateways/federation/service.py": ("federation_links",),
    "wire/links/hub.py": ("node_links",),
    # Sockets in a folder of this user: the file's mode or SO_PEERCRED authenticates the peer.
    "edge/listeners/handoff_socket.py": (),
    "gateways/balancer/status.py": (),
    "gateways/bridges/service.py": (),
}


def calls(name: str) -> list[str]:
    """Return the first arguments of all calls of a function or method, as text."""
    found = []
    for text in SOURCES.values():
        if name not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name and node.args:
                found.append(ast.unparse(node.args[0]))
    return found


def test_each_port_that_accepts_is_listed_with_its_pools() -> None:
    """A new one fails here until it has a pool, or a reason."""
    accepting = {path for path, text in SOURCES.items() if re.search(ACCEPTS, text)}
    assert accepting == set(PORTS)
    assert {pool for pools in PORTS.values() for pool in pools} | {"admin_requests"} == set(POOLS)


def test_each_pool_is_used_shown_and_described() -> None:
    """By name in the sources, on the metrics page, and in the table with its values."""
    used = set(re.findall(r'POOLS\["(\w+)"\]', "".join(SOURCES.values())))
    shown = {name.strip("'") for name in calls("pool")}
    assert used == set(POOLS) and shown >= set(POOLS) and set(ROWS) == set(POOLS)


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_attacked_by_the_test_that_its_row_names(name: str) -> None:
    """The values of the row are those of the pool, and its test exists."""
    _, places, share, test = ROWS[name]
    bounds = POOLS[name]
    assert (int(places.replace(" ", "")), int(share.replace(" ", ""))) == (bounds.places_max, bounds.share_max)
    path, _, function = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert any(node.name == function for node in found), test
    assert bounds.share_max <= bounds.places_max // 2 and bounds.places_max >= 4
