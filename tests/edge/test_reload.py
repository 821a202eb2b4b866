"""Reload of a listener's certificates while the edge runs."""

import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import UserError
from conf.settings import EdgeConfig, load
from edge.listeners.listeners import EdgeListener
from edge.login.gateway_certificates import GatewayCertificates
from edge.node.limits import ListenerPolicy
from edge.reload import ListenerCertificates, ListenerLimitsReload
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import roles, ruled
from tests.wire.test_tls import handshake
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles
from wire.messages.sessions import OpenSession
from wire.node.reload import NodeReload

NO_GATEWAYS = GatewayCertificates("c", None, None)
NOW = datetime.datetime.now(datetime.UTC)


def config_of(files: CertificateFiles, *flags: str) -> EdgeConfig:
    """Return an edge's configuration with one listener with optional client certificates."""
    table = {"port": "0", "certificate": files.certificate, "key": files.key, "client_ca": files.authority}
    given = tuple(f"edge.listeners.tls.{name}={value}" for name, value in table.items())
    found = load("edge", environment={}, flags=(*given, *flags))
    assert isinstance(found, EdgeConfig)
    return found


def serial(listener: EdgeListener, authority: Path) -> str:
    """Return the serial number of the listener's certificate in a handshake."""
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
def listener(authority: DevelopmentAuthority) -> Iterator[EdgeListener]:
    made = EdgeListener(config_of(authority.server("a")).edge.listeners[0])
    with made.socket:
        yield made


def test_reload_replaces_the_certificate(listener: EdgeListener, authority: DevelopmentAuthority) -> None:
    """The socket stays, and the listener's ticket setting."""
    first, second = authority.server("a"), authority.server("b")
    bound: socket.socket = listener.socket
    reload = NodeReload(config_of(first), lambda: config_of(second))
    reload.add(ListenerCertificates(listener, NO_GATEWAYS))
    old = serial(listener, first.authority)
    outcome = reload.apply(reload.prepare())
    assert outcome.ok, outcome.lines
    assert outcome.lines[0] == f"edge.listeners.tls.certificate: {first.certificate} -> {second.certificate}"
    assert serial(listener, first.authority) != old and listener.socket is bound
    assert listener.context is not None and listener.context.num_tickets == 0


def test_mismatched_pair_changes_nothing(listener: EdgeListener, authority: DevelopmentAuthority) -> None:
    """Half of a renewal: the certificate is new, its key follows later."""
    first, second = authority.server("a"), authority.server("b")
    reload = NodeReload(config_of(first), lambda: config_of(first))
    reload.add(ListenerCertificates(listener, NO_GATEWAYS))
    old = listener.context
    first.certificate.write_bytes(second.certificate.read_bytes())
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and "do not belong together" in outcome.lines[0]
    assert listener.context is old


def test_removal_of_client_authority_is_refused(
    listener: EdgeListener, authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    files = authority.server("a")
    other = DevelopmentAuthority(tmp_path / "other", "test", NOW).server("a")
    part = ListenerCertificates(listener, NO_GATEWAYS)
    with pytest.raises(UserError, match="an authority was removed"):
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
def test_listener_identity_requires_a_restart(
    listener: EdgeListener, authority: DevelopmentAuthority, flag: str
) -> None:
    """No part of such a reload is applied, not even the certificate."""
    first, second = authority.server("a"), authority.server("b")
    extra = ("edge.listeners.new.tls=false",) if ".new." in flag else ()
    reload = NodeReload(config_of(first), lambda: config_of(second, flag, *extra))
    reload.add(ListenerCertificates(listener, NO_GATEWAYS))
    old = listener.context
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and listener.context is old
    assert any(line.startswith(flag.partition("=")[0]) for line in outcome.lines)


LIMITED = {"port": "0", "tls": "false", "bind": "127.0.0.1", "allow_anonymous": "true"}


def limits_of(**limits: object) -> EdgeConfig:
    """Return an edge's configuration with one listener and these limits."""
    table = {**LIMITED, **limits}
    found = load(
        "edge", environment={}, flags=tuple(f"edge.listeners.plain.{key}={value}" for key, value in table.items())
    )
    assert isinstance(found, EdgeConfig)
    return found


def reloadable(before: EdgeConfig, after: EdgeConfig) -> tuple[Edge, EdgeListener, NodeReload]:
    """Return an edge with rules, a listener, and the reload of its limits."""
    edge = ruled(roles())
    made = EdgeListener(before.edge.listeners[0])
    made.socket.close()

    def put(policy: ListenerPolicy) -> None:
        edge.core.limit_updater.put({policy.name: policy})
        edge.core.rights.judge_again()
        edge.core.node.wake()

    reload = NodeReload(before, lambda: after)
    reload.add(ListenerLimitsReload(made, put))
    return edge, made, reload


def seated(edge: Edge, listener: EdgeListener, client_id: str, address: str = "192.0.2.1") -> Session:
    """Return a client of a listener, after CONNECT."""
    session = edge.accept(listener.policy)
    session.client.seat = listener.admission.enter(address)
    session.connect(client_id)
    return session


def test_listener_limits_follow_a_reload_and_connections_stay() -> None:
    """The difference is reported; rates, numbers and levels apply to later packets."""
    after = limits_of(filters_max=1, publish_rate_max=5.0, connections_address_max=1, inflight_max=3)
    edge, listener, reload = reloadable(limits_of(), after)
    session = seated(edge, listener, "c")
    session.read()
    outcome = reload.apply(reload.prepare())
    edge.turn()
    assert outcome.ok and set(outcome.lines) == {
        "edge.listeners.plain.filters_max: 0 -> 1",
        "edge.listeners.plain.publish_rate_max: 0.0 -> 5.0",
        "edge.listeners.plain.connections_address_max: 0 -> 1",
        "edge.listeners.plain.inflight_max: 0 -> 3",
    }
    bounds = session.client.known_bounds
    assert not session.closed and (bounds.filters_max, bounds.publish_rate_max, bounds.inflight_max) == (1, 5.0, 0)
    assert listener.admission.refusal("192.0.2.1", edge.now) == "refused_connections_address"
    assert seated(edge, listener, "d").client.known_bounds.inflight_max == 3


def test_invalid_limit_rejects_the_whole_reload() -> None:
    """All or nothing: another setting of the same file is read at the start only."""
    after = load(
        "edge",
        environment={},
        flags=(
            "edge.listeners.plain.port=0",
            "edge.listeners.plain.tls=false",
            "edge.listeners.plain.filters_max=1",
            "edge.listeners.plain.allow_anonymous=false",
        ),
    )
    assert isinstance(after, EdgeConfig)
    edge, listener, reload = reloadable(limits_of(), after)
    session = seated(edge, listener, "c")
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and any("allow_anonymous" in line for line in outcome.lines)
    assert listener.policy.filters_max == 0 and session.client.known_bounds.filters_max == 1_000


def test_session_opened_during_reload_must_reconnect() -> None:
    """Its session was opened with other bounds."""
    edge, listener, reload = reloadable(limits_of(), limits_of(filters_max=1))
    edge.held = {OpenSession}
    session = seated(edge, listener, "c")
    assert reload.apply(reload.prepare()).ok
    edge.turn()
    edge.held = set()
    edge.turn()
    assert [packet.reason_code for packet in session.read()] == [0x89]
