"""Expiry of certificates: remaining seconds and warnings, with a test clock."""

import dataclasses
import datetime
import logging
from pathlib import Path

import pytest

from conf.settings import EdgeConfig
from stratamq.packages import load_config
from wire.links.authority import AUTHORITY_DAYS, LEAF_DAYS, DevelopmentAuthority
from wire.node.certificate_ends import CertificateEnds

NOW = datetime.datetime.now(datetime.UTC)
DAY_S = 86_400.0


def config_of(tmp_path: Path) -> EdgeConfig:
    authority = DevelopmentAuthority(tmp_path / "tls", "test", NOW)
    node, shown = authority.node("edge", "edge-0"), authority.server()
    flags = (
        f"node.certificate={node.certificate}",
        f"node.authority={authority.certificate}",
        "edge.listeners.tls.port=0",
        f"edge.listeners.tls.certificate={shown.certificate}",
        f"edge.listeners.tls.key={shown.key}",
        "edge.listeners.plain.port=0",
        "edge.listeners.plain.tls=false",
    )
    config = load_config("edge", None, flags, {})
    assert isinstance(config, EdgeConfig)
    return config


def test_certificate_expiry_is_warned_at_30_7_and_1_days(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once each, and again for the next certificate."""
    clock = [NOW.timestamp()]
    config = config_of(tmp_path)
    ends = CertificateEnds(config, lambda: clock[0])
    assert set(ends.seconds_left) == {"links", "links.authority", "tls"}
    assert all(abs(ends.seconds_left[name] - LEAF_DAYS * DAY_S) < 2 * DAY_S for name in ("links", "tls"))
    warnings = []
    with caplog.at_level(logging.WARNING):
        for day in range(LEAF_DAYS + 3):
            clock[0] = NOW.timestamp() + day * DAY_S
            caplog.clear()
            ends.look()
            ends.take(None)
            warnings += [(LEAF_DAYS - day, record.getMessage()) for record in caplog.records]
        assert [days for days, text in warnings if " of links " in text] == [30, 7, 1]
        assert [days for days, text in warnings if " of tls " in text] == [30, 7, 1]
        assert min(ends.seconds_left.values()) < 0
        caplog.clear()
        ends.put(ends.load(config))
        assert not caplog.records, "the same certificates again"
        loaded = ends.load(config)
        ends.put({name: (path, clock[0] + 5 * DAY_S) for name, (path, _) in loaded.items()})
        assert len(caplog.records) == 3


def test_authority_expiry_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first expiry of a chain or of several authorities counts; for authorities of foreign servers the last one."""
    config = config_of(tmp_path)
    assert config.node.authority is not None and config.node.certificate is not None
    soon = DevelopmentAuthority(tmp_path / "soon", "soon", NOW - datetime.timedelta(days=AUTHORITY_DAYS - 40))
    both = tmp_path / "both.pem"
    both.write_bytes(config.node.authority.read_bytes() + soon.certificate.read_bytes())
    shown = tmp_path / "chain.pem"
    shown.write_bytes(config.node.certificate.read_bytes() + soon.certificate.read_bytes())
    (tls, plain) = config.edge.listeners
    tls = tls.model_copy(update={"certificate": shown, "client_ca": both, "http_ca": both, "token_jwks_ca": both})
    plain = plain.model_copy(update={"client_ca": tmp_path / "nowhere.pem"})
    room = config.edge.model_copy(update={"listeners": (tls, plain)})
    clock = [NOW.timestamp()]
    ends = CertificateEnds(dataclasses.replace(config, edge=room), lambda: clock[0])
    found = {name: round(left / DAY_S) for name, left in ends.seconds_left.items()}
    assert found == {
        "links": LEAF_DAYS, "links.authority": AUTHORITY_DAYS, "tls": 40, "tls.client_ca": 40,
        "tls.http_ca": AUTHORITY_DAYS, "tls.token_jwks_ca": AUTHORITY_DAYS,
    }  # fmt: skip
    assert set(ends.not_after_utc) == {(name,) for name in found}
    warnings = []
    with caplog.at_level(logging.WARNING):
        for day in range(42):
            clock[0] = NOW.timestamp() + day * DAY_S
            caplog.clear()
            ends.take(None)
            warnings += [(40 - day, record.getMessage()) for record in caplog.records]
    assert [days for days, text in warnings if " of tls.client_ca " in text] == [30, 7, 1]
    assert {text.partition(" expires")[0].rpartition(" ")[2] for _, text in warnings} == {"tls", "tls.client_ca"}


def test_certificate_ends_without_tls_is_empty(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    node = config.node.model_copy(update={"plaintext_links": True})
    room = config.edge.model_copy(update={"listeners": ()})
    assert CertificateEnds(dataclasses.replace(config, node=node, edge=room)).seconds_left == {}
