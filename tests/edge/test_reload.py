"""Certificates of a listener, taken up while the edge runs."""

import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import UserError
from conf.settings import EdgeConfig, load
from edge.listeners.listeners import Listener
from edge.login.gateway_certificates import GatewayCertificates
from edge.reload import ListenerCertificates
from tests.wire.test_tls import handshake
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles
from wire.node.reload import Reload

NO_GATEWAYS = GatewayCertificates("c", None, None)
NOW = datetime.datetime.now(datetime.UTC)


def config_of(files: CertificateFiles, *flags: str) -> EdgeConfig:
    """Return an edge's configuration with one listener, where clients may show a certificate."""
    table = {"port": "0", "certificate": files.certificate, "key": files.key, "client_ca": files.authority}
    given = tuple(f"edge.listeners.tls.{name}={value}" for name, value in table.items())
    found = load("edge", environment={}, flags=(*given, *flags))
    assert isinstance(found, EdgeConfig)
    return found


def serial(listener: Listener, authority: Path) -> str:
    """Return the serial number of the certificate that a client is shown."""
    assert listener.context is not None
    client = ssl.create_default_context(cafile=str(authority))
    _, end = handshake(listener.context, client)
    shown = end.getpeercert()
    assert shown is not None
    return str(shown["serialNumber"])


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "tls", "test", NOW)


@pytest.fixture
def listener(authority: DevelopmentAuthority) -> Iterator[Listener]:
    made = Listener(config_of(authority.server("a")).edge.listeners[0])
    with made.socket:
        yield made


def test_a_client_is_shown_the_new_certificate(listener: Listener, authority: DevelopmentAuthority) -> None:
    """NIST: recover. The socket stays; so do tickets that were set for the listener."""
    first, second = authority.server("a"), authority.server("b")
    bound: socket.socket = listener.socket
    reload = Reload(config_of(first), lambda: config_of(second))
    reload.add(ListenerCertificates(listener, NO_GATEWAYS))
    old = serial(listener, first.authority)
    outcome = reload.apply(reload.prepare())
    assert outcome.ok, outcome.lines
    assert outcome.lines[0] == f"edge.listeners.tls.certificate: {first.certificate} -> {second.certificate}"
    assert serial(listener, first.authority) != old and listener.socket is bound
    assert listener.context is not None and listener.context.num_tickets == 0


def test_a_pair_that_does_not_match_changes_nothing(listener: Listener, authority: DevelopmentAuthority) -> None:
    """NIST: recover. Half a renewal: the certificate is there, its key comes a moment later."""
    first, second = authority.server("a"), authority.server("b")
    reload = Reload(config_of(first), lambda: config_of(first))
    reload.add(ListenerCertificates(listener, NO_GATEWAYS))
    old = listener.context
    first.certificate.write_bytes(second.certificate.read_bytes())
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and "do not belong together" in outcome.lines[0]
    assert listener.context is old


def test_an_authority_of_clients_may_not_go(
    listener: Listener, authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    files = authority.server("a")
    other = DevelopmentAuthority(tmp_path / "other", "test", NOW).server("a")
    part = ListenerCertificates(listener, NO_GATEWAYS)
    with pytest.raises(UserError, match="listener tls: an authority was taken away"):
        part.load(config_of(files, f"edge.listeners.tls.client_ca={other.authority}"))


@pytest.mark.parametrize(
    "flag",
    [
        "edge.listeners.tls.allow_anonymous=true",
        "edge.listeners.tls.require_client_certificate=true",
        "edge.listeners.tls.tls=false",
        "edge.listeners.tls.port=1",
        "edge.listeners.new.port=1",
    ],
)
def test_what_a_listener_is_wants_a_restart(listener: Listener, authority: DevelopmentAuthority, flag: str) -> None:
    """Nothing of such a reload is taken up, its certificate neither."""
    first, second = authority.server("a"), authority.server("b")
    extra = ("edge.listeners.new.tls=false",) if ".new." in flag else ()
    reload = Reload(config_of(first), lambda: config_of(second, flag, *extra))
    reload.add(ListenerCertificates(listener, NO_GATEWAYS))
    old = listener.context
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and listener.context is old
    assert any(line.startswith(flag.partition("=")[0]) for line in outcome.lines)
