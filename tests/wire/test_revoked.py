"""Revoked certificates of nodes and operators: handshakes are refused, established links are cut (T3, T8, C5)."""

import datetime
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from access.identity.peer_lists import read_peer_lists
from conf.errors import UserError
from conf.metrics import Metrics
from conf.node_settings import NodeSettings
from conf.settings import load
from tests.patience import PATIENCE_S
from tests.wire.revocation_lists import revocation_list
from tests.wire.test_hub import Node, certificates, linked, start
from wire.links.authority import DevelopmentAuthority
from wire.links.revoked import RevokedPeers
from wire.links.tls import LinkContexts
from wire.node.link_lists import LinkFiles, link_lists, register_link_lists
from wire.node.reload import NodeReload

MINUTE = 1 / 1440


class Site:
    """An authority in a folder, with one file of revoked certificates."""

    def __init__(self, folder: Path) -> None:
        self.tls = folder / "tls"
        self.authority = DevelopmentAuthority(self.tls, "test", datetime.datetime.now(datetime.UTC))
        self.file = folder / "nodes.crl"
        self.files = self.authority.node("router", "router-0")
        self.revoke()

    def revoke(self, *names: str, days: tuple[float, float] = (-1, 1)) -> None:
        self.file.write_bytes(revocation_list(self.tls, [self.tls / f"{name}.pem" for name in names], days))

    def settings(self, crl_files: Iterable[Path] | None = None) -> NodeSettings:
        files = ",".join(str(path) for path in ([self.file] if crl_files is None else crl_files))
        named = (f"node.{name}={getattr(self.files, name)}" for name in ("certificate", "key", "authority"))
        return load("router", environment={}, flags=(*named, f"node.crl_files={files}")).node

    def contexts(self, tier: str, name: str) -> LinkContexts:
        return certificates(self.tls, tier, name)

    def lists(self, contexts: LinkContexts) -> LinkFiles:
        return link_lists(contexts.revoked, self.settings(), read_peer_lists)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def looked(lists: LinkFiles) -> str:
    lists.take(lists.look())
    return lists.problem()


@pytest.mark.parametrize("tier", ["storage", "operator"])
async def test_hub_refuses_a_revoked_peer_before_its_hello(site: Site, tier: str) -> None:
    theirs, mine = site.contexts(tier, "it"), site.contexts("router", "router-0")
    site.revoke("it")
    site.lists(mine)
    router, peer = Node("router", "router-0", contexts=mine), Node(tier, "it", contexts=theirs)
    async with linked(router, peer, up=False):
        with trio.fail_after(PATIENCE_S):
            while not router.hub.refusals["certificate"]:
                await trio.sleep(0.01)
        assert not router.log
        assert mine.revoked.refused == router.hub.refusals["certificate"]


async def test_hub_does_not_connect_to_a_revoked_node(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    theirs, mine = site.contexts("router", "router-0"), site.contexts("storage", "storage-0")
    site.revoke("router-0")
    site.lists(mine)
    router, peer = Node("router", "router-0", contexts=theirs), Node("storage", "storage-0", contexts=mine)
    with caplog.at_level(logging.INFO, "wire.links.hub"):
        async with linked(router, peer, up=False):
            with trio.fail_after(PATIENCE_S):
                while not mine.revoked.refused:
                    await trio.sleep(0.01)
            assert not router.log
            assert not peer.log
    assert "the peer's certificate is refused: revoked" in caplog.text


async def test_hub_cuts_only_established_links_that_are_revoked(site: Site) -> None:
    mine = site.contexts("router", "router-0")
    lists = site.lists(mine)
    router = Node("router", "router-0", contexts=mine)
    good = Node("storage", "good", contexts=site.contexts("storage", "good"))
    bad = Node("storage", "bad", contexts=site.contexts("storage", "bad"))
    async with trio.open_nursery() as nursery:
        address = await start(nursery, router)
        for node in (good, bad):
            await start(nursery, node)
            node.hub.set_seeds([address])
        await router.until(lambda: len(router.hub.connected()) == 2)
        site.revoke("bad")
        assert not looked(lists)
        await router.until(lambda: len(router.hub.connected()) == 1)
        assert [peer.node for peer in router.hub.connected()] == ["good"]
        with trio.fail_after(PATIENCE_S):  # its redial is refused
            while not router.hub.refusals["certificate"]:
                await trio.sleep(0.01)
        assert mine.revoked.cut == 1
        assert ("down", "good", 1) not in router.log
        nursery.cancel_scope.cancel()


async def test_hub_keeps_established_links_when_the_list_expires(site: Site) -> None:
    """An expired list cuts no link that it does not revoke; new handshakes are refused until it is renewed."""
    mine = site.contexts("router", "router-0")
    now = [1.0]
    mine.revoked = RevokedPeers(lambda: now[0])
    lists = link_lists(mine.revoked, site.settings(), read_peer_lists, lambda: now[0])
    router = Node("router", "router-0", contexts=mine)
    peer = Node("storage", "it", contexts=site.contexts("storage", "it"))
    async with linked(router, peer):
        now[0] = 1e12
        assert "stale" in looked(lists)
        mine.revoked.put(mine.revoked.lists)
        await trio.testing.wait_all_tasks_blocked()
        assert [each.node for each in router.hub.connected()] == ["it"]
        assert not mine.revoked.cut
        late = Node("storage", "late", contexts=site.contexts("storage", "late"))
        async with trio.open_nursery() as nursery:
            await start(nursery, late)
            late.hub.set_seeds([router.hub.identity.address])
            with trio.fail_after(PATIENCE_S):
                while not mine.revoked.refused:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert not late.log


def test_hub_checks_the_newest_list_when_the_link_starts(site: Site) -> None:
    """The list may change during the handshake."""
    peers = RevokedPeers()
    lists = link_lists(peers, site.settings(), read_peer_lists)
    site.contexts("storage", "it")
    der = certificate(site, "it")
    peers.check(der)
    site.revoke("it")
    looked(lists)
    assert peers.end_of(der) == "the peer's certificate is refused: revoked"
    assert peers.end_of(None)  # a link without a certificate cannot be verified
    assert peers.end_of(b"nonsense")


def certificate(site: Site, name: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return x509.load_pem_x509_certificate((site.tls / f"{name}.pem").read_bytes()).public_bytes(Encoding.DER)


@pytest.mark.parametrize("kind", ["empty", "cut", "gone", "folder", "foreign", "stale", "nul", "long"])
def test_revocation_files_broken_file_keeps_the_former_list_and_logs_once(
    site: Site, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The metric and ``/readyz`` report it until it is repaired (C5)."""
    site.contexts("storage", "bad")
    site.revoke("bad")
    peers = RevokedPeers()
    lists = link_lists(peers, site.settings(), read_peer_lists)
    metrics = Metrics("router", "router-0", "1")
    register_link_lists(metrics, lists, peers)
    good = site.file.read_bytes()
    assert metrics.readiness()["link_lists"]
    broken(site, kind, tmp_path)
    with caplog.at_level(logging.INFO, "wire.node.revocation_files"):
        for _ in range(3):
            assert "the former list stays" in looked(lists)
    assert len(caplog.records) == 1
    assert str(site.file) in caplog.text
    assert not metrics.readiness()["link_lists"]
    assert metrics.read()["link_lists_current"] == 0.0
    assert peers.end_of(certificate(site, "bad"))
    if kind == "folder":
        site.file.rmdir()
    site.file.write_bytes(good)
    caplog.clear()
    with caplog.at_level(logging.INFO, "wire.node.revocation_files"):
        assert not looked(lists)
        assert not looked(lists)
    assert [record.message for record in caplog.records] == ["revocation lists of links: in order again"]
    assert metrics.readiness()["link_lists"]


def broken(site: Site, kind: str, tmp_path: Path) -> None:
    good = site.file.read_bytes()
    if kind in ("gone", "folder"):
        site.file.unlink()
        if kind == "folder":
            site.file.mkdir()
    elif kind == "foreign":
        DevelopmentAuthority(tmp_path / "other", "test", datetime.datetime.now(datetime.UTC))
        site.file.write_bytes(revocation_list(tmp_path / "other"))
    elif kind == "stale":
        site.revoke(days=(-2, -1))
    elif kind == "long":
        with site.file.open("r+b") as file:
            file.truncate(1 << 30)
    else:
        site.file.write_bytes({"empty": b"", "cut": good[:-40], "nul": bytes(1000)}[kind])


def test_revocation_files_unchanged_files_are_not_read_again(site: Site) -> None:
    reads = []

    def read(node: NodeSettings) -> None:
        reads.append(node)

    lists = link_lists(RevokedPeers(), site.settings(), read)
    for _ in range(3):
        looked(lists)
    assert len(reads) == 1
    site.revoke()
    looked(lists)
    assert len(reads) == 2


def test_revocation_files_unusable_at_start_is_refused(site: Site, tmp_path: Path) -> None:
    """A missing file, a list of another authority, links without certificates."""
    with pytest.raises(UserError, match=r"gone\.crl"):
        read_peer_lists(site.settings([tmp_path / "gone.crl"]))
    with pytest.raises(UserError, match="plaintext"):
        read_peer_lists(load("router", environment={}, flags=(f"node.crl_files={site.file}",)).node)
    other = DevelopmentAuthority(tmp_path / "other", "test", datetime.datetime.now(datetime.UTC), "Other")
    both = tmp_path / "both.pem"
    both.write_bytes(site.files.authority.read_bytes() + other.certificate.read_bytes())
    site.file.write_bytes(revocation_list(tmp_path / "other"))
    settings = site.settings().model_copy(update={"authority": both})
    with pytest.raises(UserError, match="no list of the authority that signed"):
        read_peer_lists(settings)
    assert read_peer_lists(site.settings([])) is None


def test_revocation_files_reload_is_atomic(site: Site) -> None:
    """A reload may add the setting; one mistake keeps the whole old state."""
    site.contexts("storage", "bad")
    peers = RevokedPeers()
    named = tuple(f"node.{name}={getattr(site.files, name)}" for name in ("certificate", "key", "authority"))
    before = load("router", environment={}, flags=named)
    after = load("router", environment={}, flags=(*named, f"node.crl_files={site.file}"))
    lists = link_lists(peers, before.node, read_peer_lists)
    reload = NodeReload(before, lambda: after)
    reload.add(lists)
    assert not peers.end_of(certificate(site, "bad"))
    site.revoke("bad")
    outcome = reload.apply(reload.prepare())
    assert outcome.ok
    assert any("nodes.crl" in line for line in outcome.lines)
    assert peers.end_of(certificate(site, "bad"))
    site.file.write_bytes(b"")
    assert not reload.apply(reload.prepare()).ok
    assert peers.end_of(certificate(site, "bad"))
