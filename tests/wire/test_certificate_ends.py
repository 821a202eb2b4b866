"""Certificates that end: seconds that are left, and warnings in time, by a clock that a test moves."""

import dataclasses
import datetime
import logging
from pathlib import Path

import pytest

from conf.settings import EdgeConfig
from stratamq.rooms import load_config
from wire.links.authority import LEAF_DAYS, DevelopmentAuthority
from wire.node.certificate_ends import CertificateEnds

NOW = datetime.datetime.now(datetime.UTC)
DAY_S = 86_400.0


def config_of(tmp_path: Path) -> EdgeConfig:
    authority = DevelopmentAuthority(tmp_path / "tls", "test", NOW)
    node, shown = authority.node("edge", "edge-0"), authority.server()
    flags = (
        f"node.certificate={node.certificate}",
        "edge.listeners.tls.port=0",
        f"edge.listeners.tls.certificate={shown.certificate}",
        f"edge.listeners.tls.key={shown.key}",
        "edge.listeners.plain.port=0",
        "edge.listeners.plain.tls=false",
    )
    config = load_config("edge", None, flags, {})
    assert isinstance(config, EdgeConfig)
    return config


def test_a_certificate_is_warned_of_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NIST: detect. 30, 7 and 1 days before the end, once each, and again for the next certificate."""
    clock = [NOW.timestamp()]
    config = config_of(tmp_path)
    ends = CertificateEnds(config, lambda: clock[0])
    assert set(ends.seconds_left) == {"links", "tls"}
    assert all(abs(left - LEAF_DAYS * DAY_S) < 2 * DAY_S for left in ends.seconds_left.values())
    said = []
    with caplog.at_level(logging.WARNING):
        for day in range(LEAF_DAYS + 3):
            clock[0] = NOW.timestamp() + day * DAY_S
            caplog.clear()
            ends.look()
            ends.take(None)
            said += [(LEAF_DAYS - day, record.getMessage()) for record in caplog.records]
        assert [days for days, text in said if " of links " in text] == [30, 7, 1]
        assert [days for days, text in said if " of tls " in text] == [30, 7, 1]
        assert min(ends.seconds_left.values()) < 0
        caplog.clear()
        ends.put(ends.load(config))
        assert not caplog.records, "the same certificates again"
        loaded = ends.load(config)
        ends.put({name: (path, clock[0] + 5 * DAY_S) for name, (path, _) in loaded.items()})
        assert len(caplog.records) == 2


def test_without_tls_there_is_none(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    node = config.node.model_copy(update={"plaintext_links": True})
    room = config.edge.model_copy(update={"listeners": ()})
    assert CertificateEnds(dataclasses.replace(config, node=node, edge=room)).seconds_left == {}
