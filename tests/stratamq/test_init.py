"""`stratamq init`: layout, written files, refusals, and protection of existing files."""

import datetime
import json
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from conf.errors import ExitCode, UserError
from conf.settings import EdgeConfig, NodeConfig, RouterConfig
from stratamq.init_folder import ClusterFolder
from stratamq.init_plan import LayoutNode, lay_out, parse_node
from stratamq.packages import load_config
from stratamq.start_checks import check_authorities, check_files
from wire.links.operator_access import find_access
from wire.links.tls import (
    CertificateFiles,
    certified_uris,
    check_certificate,
    client_listener_context,
    link_contexts,
    shared_authority,
)

NOW = datetime.datetime.now(datetime.UTC)
SPREAD = (
    *(f"router/router-{n}=10.0.0.{n + 1}" for n in range(3)),
    *(f"storage/storage-{n}=10.0.1.{n + 1}" for n in range(4)),
    "edge/edge-0=mqtt.example.org",
    "edge/edge-1=mqtt.example.org",
)


def load(folder: Path, node: LayoutNode) -> NodeConfig:
    return load_config(node.tier, folder / f"{node.name}.toml", (), {})


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_one_of_each_on_loopback(tmp_path: Path) -> None:
    """Certificates match their files and each other; the start checks pass; there is one copy."""
    folder = tmp_path / "cluster"
    layout = ClusterFolder(folder, NOW).create("stratamq", ())
    assert [node.name for node in layout.nodes] == ["router-0", "storage-0", "edge-0"]
    for node in layout.nodes:
        config = load(folder, node)
        link = config.node
        assert link.certificate is not None and link.key is not None and link.authority is not None
        files = CertificateFiles(link.certificate, link.key, link.authority)
        check_certificate(files, ("stratamq", node.tier, node.name), NOW)
        link_contexts(files)
        check_authorities(node.tier, config)
        check_files(node.tier, config)
        assert link.link_bind == "127.0.0.1" and link.seeds == ("127.0.0.1:7947",)
    router, edge = load(folder, layout.nodes[0]), load(folder, layout.nodes[2])
    assert isinstance(router, RouterConfig) and (router.router.replicas, router.router.min_in_sync) == (1, 1)
    assert isinstance(edge, EdgeConfig)
    (listener,) = edge.edge.listeners
    assert (listener.bind, listener.port, listener.allow_anonymous) == ("127.0.0.1", 8883, False)
    assert listener.certificate is not None and listener.key is not None and listener.client_ca is not None
    client_listener_context(listener.certificate, listener.key, listener.client_ca, True)
    nodes = folder / "tls"
    assert shared_authority(listener.client_ca, nodes / "ca.pem", nodes / "edge-0.pem") == ""
    assert "signs the nodes" in shared_authority(nodes / "ca.pem", nodes / "ca.pem", listener.certificate)
    assert find_access("", folder).routers == ["127.0.0.1:7947"]
    open_to_others = [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]
    assert {path.suffix for path in open_to_others} <= {
        ".pem",
        ".json",
    }  # no secrets; the command's umask restricts them


def test_names_and_addresses_of_several_hosts(tmp_path: Path) -> None:
    """Addresses are bound, names are advertised; ports of a host are unique; three copies on four storage nodes."""
    folder = tmp_path / "cluster"
    layout = ClusterFolder(folder, NOW).create("plant", SPREAD)
    router, edge = load(folder, layout.nodes[1]), load(folder, layout.nodes[-1])
    assert isinstance(router, RouterConfig) and isinstance(edge, EdgeConfig)
    assert (router.router.replicas, router.router.min_in_sync) == (3, 2)
    assert router.router.members == tuple(f"router-{n}@10.0.0.{n + 1}:7947" for n in range(3))
    assert (router.node.link_bind, router.node.advertise, router.membership.bind) == ("10.0.0.2", "", "10.0.0.2:7946")
    assert (edge.node.link_bind, edge.node.advertise) == ("0.0.0.0", "mqtt.example.org:7959")
    assert edge.membership.advertise == "mqtt.example.org:7956" and edge.membership.profile == "lan"
    assert (edge.edge.listeners[0].bind, edge.edge.listeners[0].port) == ("0.0.0.0", 8884)
    assert b"10.0.1.2" not in (folder / "router-0.toml").read_bytes()
    from cryptography import x509

    shown = x509.load_pem_x509_certificate((folder / "clients" / "edge-1.pem").read_bytes())
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["mqtt.example.org", "localhost"]


def test_init_overwrites_no_file(tmp_path: Path) -> None:
    """Neither by a second `init` nor by an added node; a failure creates no files."""
    folder = tmp_path / "cluster"
    made = ClusterFolder(folder, NOW)
    made.create("stratamq", ())
    before = content(folder)
    with pytest.raises(UserError, match=r"is not empty: add a node with --add"):
        made.create("stratamq", ())
    with pytest.raises(UserError, match=r"edge/EDGE-0: the name is already in use"):
        made.add(["edge/EDGE-0"])
    (folder / "edge-7.toml").touch()
    with pytest.raises(UserError, match=r"edge-7\.toml already exists"):
        made.add(["edge/edge-7"])
    (folder / "edge-7.toml").unlink()
    (folder / "tls" / "ca.key").rename(tmp_path / "ca.key")
    with pytest.raises(UserError, match=r"ca\.key is missing: restore the"):
        made.add(["edge/edge-7"])
    (tmp_path / "ca.key").rename(folder / "tls" / "ca.key")
    assert content(folder) == before
    with pytest.raises(UserError, match=r"no storage node"):
        ClusterFolder(tmp_path / "none", NOW).create("stratamq", ["router/router-0"])
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match=r"`stratamq init .*none` creates a cluster") as missing:
        ClusterFolder(tmp_path / "none", NOW).add(["edge/a"])
    assert missing.value.exit_code == ExitCode.USAGE


def test_roles_of_an_operator_stay_and_a_folder_without_any_gets_them(tmp_path: Path) -> None:
    """An added edge needs the file on its host; earlier releases created none."""
    folder = tmp_path / "cluster"
    made = ClusterFolder(folder, NOW)
    made.create("stratamq", ())
    roles = folder / "roles.toml"
    assert roles.stat().st_mode & 0o777 == 0o600
    roles.write_text("[roles.device]\n")
    added = made.add(["edge/edge-1"])[1]
    assert roles.read_text() == "[roles.device]\n" and roles in made.files(added[0])
    roles.unlink()
    added = made.add(["edge/edge-2", "storage/storage-1"])[1]
    assert "[roles.device]" in roles.read_text() and roles not in made.files(added[1])


def test_nodes_are_added_later(tmp_path: Path) -> None:
    """Each kind: same authorities, free ports, seeds of the first routers; a router joins."""
    folder = tmp_path / "cluster"
    made = ClusterFolder(folder, NOW)
    made.create("stratamq", ())
    before = content(folder)
    layout, added, _ = made.add(["edge/edge-2=10.0.0.7", "router/router-1", "storage/storage-1"])
    assert layout.unreached.startswith("router-0, storage-0, edge-0, router-1, storage-1 on loopback cannot be reached")
    edge, router, storage = (load(folder, node) for node in added)
    assert isinstance(router, RouterConfig) and router.router.join and not router.router.members
    assert router.node.link_port == 7957 and router.node.seeds == edge.node.seeds == ("127.0.0.1:7947",)
    assert (storage.node.link_port, storage.metrics.port) == (7958, 9758)
    assert (edge.node.link_bind, edge.node.link_port) == ("10.0.0.7", 7949)
    for node, config in zip(added, (edge, router, storage), strict=True):
        link = config.node
        assert link.certificate is not None and link.key is not None and link.authority is not None
        files = CertificateFiles(link.certificate, link.key, link.authority)
        check_certificate(files, ("stratamq", node.tier, node.name), NOW)
    record = str(folder / "cluster.json")
    assert {path: data for path, data in content(folder).items() if path in before and path != record} == {
        path: data for path, data in before.items() if path != record
    }
    assert json.loads((folder / "cluster.json").read_text())["routers"] == ["127.0.0.1:7947", "127.0.0.1:7957"]
    assert [node.name for node in made.add(["edge/edge-3"])[0].nodes][-2:] == ["storage-1", "edge-3"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["router-0"], "expected TIER/NAME or TIER/NAME=HOST, TIER one of router, storage, edge"),
        (["broker/a"], "expected TIER/NAME"),
        (["edge/a="], "expected TIER/NAME"),
        (["edge/../a"], "a name has at most 64 letters"),
        (["edge/ca"], "ca is reserved"),
        (["storage/roles"], "roles is reserved"),
        (["edge/router-0.toml"], "is reserved"),
        (["edge/a=host:8883"], "neither an address nor a host name"),
        (["edge/a=0.0.0.0"], "not an address that other nodes can reach"),
        (["router/a", "router/b"], "2 routers: a Raft group has 1, 3 or 5 members"),
        (["router/a", "storage/a", "edge/b"], "storage/a: the name is already in use"),
        (["edge/x y", "edge/"], "x y: .*\n.*edge/: "),
    ],
)
def test_mistakes_are_usage_errors(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        lay_out("stratamq", words)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("word", "address"), [("edge/a", "127.0.0.1:1"), ("edge/a=[fd00::5]", "[fd00::5]:1")])
def test_addresses_that_others_dial(word: str, address: str) -> None:
    assert parse_node(word).address(1) == address


def test_an_administrators_certificate_lies_beside_the_operators(tmp_path: Path) -> None:
    """A folder of an earlier release gets the administrator's certificate with its next node."""
    made = ClusterFolder(tmp_path / "cluster", NOW)
    made.create("stratamq", ())
    tls = tmp_path / "cluster" / "tls"
    named = {
        n: certified_uris(load_pem_x509_certificate((tls / f"{n}.pem").read_bytes())) for n in ("admin", "operator")
    }
    assert named == {n: [f"stratamq://stratamq/{n}/{n}"] for n in named}
    for ending in ("pem", "key"):
        (tls / f"admin.{ending}").unlink()
    assert find_access("", tmp_path / "cluster").contexts is not None  # uses the operator's certificate
    made.add(["edge/edge-7"])
    assert (tls / "admin.pem").exists() and (tls / "admin.key").stat().st_mode & 0o777 == 0o600
    (tls / "admin.key").write_bytes((tls / "operator.key").read_bytes())
    with pytest.raises(UserError, match=r"admin.pem"):  # uses the administrator's certificate
        find_access("", tmp_path / "cluster")


def test_init_gateway_creates_only_certificates(tmp_path: Path) -> None:
    """`init` creates one, `--add gateway/NAME` further ones; the layout does not contain them."""
    made = ClusterFolder(tmp_path / "cluster", NOW)
    made.create("stratamq", ())
    before = content(tmp_path / "cluster")
    layout, added, gateways = made.add(["gateway/bridge-1"])
    assert (added, gateways) == ([], ["bridge-1"]) and len(layout.nodes) == 3
    tls = tmp_path / "cluster" / "tls"
    assert sorted(set(content(tmp_path / "cluster")) - set(before)) == [
        str(path) for path in made.gateway_files("bridge-1")[::-1]
    ]
    for name in ("gateway", "bridge-1"):
        certificate = load_pem_x509_certificate((tls / f"{name}.pem").read_bytes())
        assert certified_uris(certificate) == [f"stratamq://stratamq/gateway/{name}"]
        assert (tls / f"{name}.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match=r"bridge-1.pem already exists"):
        made.add(["gateway/bridge-1"])
    with pytest.raises(UserError, match=r"edge-0.pem already exists"):
        made.add(["gateway/edge-0"])
    with pytest.raises(UserError, match=r"a name has at most 64 letters"):
        made.add(["gateway/../a"])
