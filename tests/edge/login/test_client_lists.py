"""Revocation lists of clients: at CONNECT, for live clients, and after an unusable file."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from access.identity.certificates import CertificateStep, NameKind, NameUse, certificate_facts
from conf.errors import UserError
from conf.settings import ListenerSettings
from edge.login.client_lists import ClientFiles, client_lists
from edge.node.limits import ListenerPolicy
from tests.edge.edge_harness import START_UTC, Edge, Session
from tests.wire.revocation_lists import revocation_list
from wire.links.authority import DevelopmentAuthority

TLS = ListenerPolicy("tls", False)


class Site:
    """An authority of devices, an edge with its certificates, and a list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = DevelopmentAuthority(folder, "devices", datetime.datetime.now(datetime.UTC))
        self.authority.client("other")
        self.file = folder / "devices.crl"
        self.shown = ""
        self.edge = Edge(
            steps=[CertificateStep(NameKind.CN, NameUse.USER)],
            read_certificate=lambda _: certificate_facts(self.der(self.shown), tuple(NameKind), ocsp=False),
        )
        self.now = [START_UTC]

    def der(self, name: str) -> bytes:
        path = self.authority.client(name).certificate
        return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)

    def revoke(self, *names: str) -> None:
        """Write a list that becomes stale a day after the start of the edge's clock."""
        paths = [self.authority.client(name).certificate for name in names]
        left_s = START_UTC - datetime.datetime.now(datetime.UTC).timestamp()
        self.file.write_bytes(revocation_list(self.folder, paths, (-1, left_s / 86_400 + 1)))

    def lists(self, *files: Path) -> ClientFiles:
        settings = ListenerSettings(
            name="tls",
            port=0,
            certificate=self.folder / "x",
            key=self.folder / "x",
            client_ca=self.folder / "ca.pem",
            crl_files=files or (self.file,),
        )
        revoked = self.edge.chains.revoked
        return client_lists(settings, revoked, self.edge.core.logins.end_those, lambda: self.now[0])

    def come(self, name: str) -> Session:
        self.shown = name
        session = self.edge.accept(TLS)
        session.connect(name)
        return session


def codes(session: Session) -> list[int]:
    return [int(packet.reason_code) for packet in session.read()]


def test_revoked_certificate_is_refused_and_disconnected(tmp_path: Path) -> None:
    """Another certificate of that authority stays connected."""
    site = Site(tmp_path)
    site.revoke()
    files = site.lists()
    bad, good = site.come("bad"), site.come("good")
    assert codes(bad) == codes(good) == [0]
    site.revoke("bad")
    files.take(files.look())
    site.edge.turn()
    assert codes(bad) == [0x87] and bad.closed and not good.closed
    assert codes(site.come("bad")) == [0x87]
    assert codes(site.come("good2")) == [0]


def test_stale_list_refuses_connects_and_keeps_connections(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.revoke()
    files = site.lists()
    there = site.come("there")
    site.now[0] += 3 * 86_400
    assert files.problem() and files.seconds_left < 0
    site.edge.now += 3 * 86_400
    site.edge.renew(10_000_000.0)
    late = site.come("late")
    assert codes(late) == [0x87] and not there.closed


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_unusable_file_keeps_the_former_list(tmp_path: Path, content: bytes | None) -> None:
    """At the start it is an error."""
    site = Site(tmp_path)
    site.revoke("bad")
    files = site.lists()
    site.file.unlink() if content is None else site.file.write_bytes(content)
    files.take(files.look())
    assert "the former list stays" in files.problem()
    assert codes(site.come("bad")) == [0x87] and codes(site.come("good")) == [0]
    with pytest.raises(UserError, match=r"devices\.crl"):
        site.lists()


def test_list_of_other_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    mine, other = Site(tmp_path / "a"), Site(tmp_path / "b")
    other.revoke()
    with pytest.raises(UserError, match=r"devices\.crl"):
        mine.lists(other.file)


def test_lists_require_an_authority() -> None:
    with pytest.raises(ValidationError, match="crl_files needs client_ca"):
        ListenerSettings(name="plain", port=0, tls=False, crl_files=(Path("x.crl"),))
