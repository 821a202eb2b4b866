"""Reload of link certificates and log settings on a running node, and the reloading task."""

import datetime
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from conf.errors import UserError
from conf.settings import NodeConfig, load
from tests.patience import PATIENCE_S
from tests.wire.test_tls import handshake
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles, link_contexts, peer_identity
from wire.node.reload import NodeReload, Prepared
from wire.node.reload_parts import LinkCertificates, Logs
from wire.node.reloading import Reloading, say_outcome

NOW = datetime.datetime.now(datetime.UTC)


def config_of(files: CertificateFiles, *flags: str) -> NodeConfig:
    """Return a router's configuration with these certificates."""
    names = (f"node.certificate={files.certificate}", f"node.key={files.key}", f"node.authority={files.authority}")
    return load("router", environment={}, flags=(*names, *flags))


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "tls", "test", NOW)


def test_reloaded_certificate_is_used_by_the_next_handshake(authority: DevelopmentAuthority) -> None:
    """Hub and edge keep the holder; finished handshakes are unaffected."""
    old, new = authority.node("router", "router-0"), authority.node("router", "router-9")
    peer = link_contexts(authority.node("storage", "storage-0"))
    contexts = link_contexts(old)
    part = LinkCertificates(contexts, config_of(old))
    loaded = part.load(config_of(new))
    assert part.difference(loaded)[0].startswith(f"{new.certificate}: content none -> ")
    assert peer_identity(handshake(contexts.server, peer.client)[1])[2] == "router-0"
    before = part.current()
    part.put(loaded)
    assert peer_identity(handshake(contexts.server, peer.client)[1])[2] == "router-9"
    assert peer_identity(handshake(peer.server, contexts.client)[0])[2] == "router-9"
    part.put(before)
    assert peer_identity(handshake(contexts.server, peer.client)[1])[2] == "router-0"


def test_reload_accepts_a_new_authority_and_refuses_a_removal(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    """Links that it authenticated would stay, so the removal requires a restart."""
    files = authority.node("router", "router-0")
    other = DevelopmentAuthority(tmp_path / "other", "test", NOW).node("router", "router-0")
    both = tmp_path / "both.pem"
    both.write_bytes(files.authority.read_bytes() + other.authority.read_bytes())
    part = LinkCertificates(link_contexts(files), config_of(files))
    with pytest.raises(UserError, match="taken away"):
        part.load(config_of(replace(files, authority=other.authority)))
    part.put(part.load(config_of(replace(files, authority=both))))
    with pytest.raises(UserError, match="taken away"):
        part.load(config_of(files))


@pytest.mark.parametrize(
    "content", [b"", b"# nothing\n", b"\xef\xbb\xbf", b"\0" * 100, b"-----BEGIN CERTIFICATE-----\n"]
)
@pytest.mark.parametrize("file", ["certificate", "key", "authority"])
def test_reload_refuses_a_damaged_file_by_name(authority: DevelopmentAuthority, file: str, content: bytes) -> None:
    files = authority.node("router", "router-0")
    part = LinkCertificates(link_contexts(files), config_of(files))
    before = part.current()
    getattr(files, file).write_bytes(content)
    with pytest.raises(UserError, match=str(getattr(files, file))):
        part.load(config_of(files))
    assert part.current() is before


@pytest.mark.parametrize("file", ["certificate", "key", "authority"])
def test_reload_refuses_a_missing_file_or_a_folder(authority: DevelopmentAuthority, file: str) -> None:
    files = authority.node("router", "router-0")
    part = LinkCertificates(link_contexts(files), config_of(files))
    path: Path = getattr(files, file)
    path.unlink()
    with pytest.raises(UserError, match=str(path)):
        part.load(config_of(files))
    path.mkdir(mode=0o700)
    with pytest.raises(UserError, match=str(path)):
        part.load(config_of(files))


def test_reload_changes_the_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    level = root.level
    own = logging.getLogger("wire")
    config = load("router", environment={})
    part = Logs(config)
    try:
        part.put(part.load(load("router", environment={}, flags=("logs.level=error",))))
        assert own.level == root.level == logging.ERROR
        part.put(config.logs)
        assert (own.level, root.level) == (logging.INFO, logging.WARNING)  # libraries log no line per request
    finally:
        root.setLevel(level)


async def test_reloading_merges_concurrent_requests(nursery: trio.Nursery) -> None:
    config = load("router", environment={})
    reads: list[int] = []

    def read() -> NodeConfig:
        reads.append(1)
        return config

    reloading = Reloading(NodeReload(config, read))
    nursery.start_soon(reloading.run)
    for _ in range(10):
        reloading.want()
    with trio.fail_after(PATIENCE_S):
        while not reloading.reload.outcomes["done"]:
            await trio.sleep(0.001)
    assert len(reads) == 1


async def test_reloading_without_a_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors or threads the node continues with its old state."""
    config = load("router", environment={})
    reloading = Reloading(NodeReload(config, lambda: config))

    async def none(*_: object) -> Prepared:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", none)
    outcome = await reloading.once()
    assert not outcome.ok and "can't start new thread" in outcome.lines[0]
    assert reloading.reload.outcomes["refused"] == 1


def test_reloading_logs_both_outcomes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = load("router", environment={})
    reload = NodeReload(config, lambda: load("router", environment={}, flags=("router.nonsense=1",)))
    say_outcome(reload.apply(reload.prepare()))
    assert "the old state stays: 1 mistakes" in caplog.text and "router.nonsense" in caplog.text
