"""Operators with a revoked certificate are refused from the next request on."""

import datetime
from pathlib import Path

import pytest

from access.operators.commands import OperatorRole
from admin.http.callers import Caller
from admin.http.certificates import caller_of
from admin.http.operator_lists import OperatorLists, operator_files
from conf.errors import UserError
from conf.settings import AdminConfig, load
from tests.wire.revocation_lists import revocation_list
from wire.links.authority import DevelopmentAuthority

ANN = Caller("ann", OperatorRole.OPERATOR, "certificate")


class Site:
    """An authority of nodes and operators, and its revocation list."""

    def __init__(self, folder: Path) -> None:
        self.tls = folder / "tls"
        self.authority = DevelopmentAuthority(self.tls, "test", datetime.datetime.now(datetime.UTC))
        self.node = self.authority.node("admin", "admin")
        self.ann = self.authority.node("operator", "ann").certificate.read_text()
        self.file = folder / "operators.crl"

    def revoke(self, *names: str, days: tuple[float, float] = (-1, 1)) -> None:
        self.file.write_bytes(revocation_list(self.tls, [self.tls / f"{name}.pem" for name in names], days))

    def config(self, *flags: str) -> AdminConfig:
        named = [f"node.{name}={getattr(self.node, name)}" for name in ("certificate", "key", "authority")]
        mine = [f"admin.certificate={self.node.certificate}", f"admin.key={self.node.key}"]
        config = load("admin", environment={}, flags=(*named, *mine, *flags))
        assert isinstance(config, AdminConfig)
        return config


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("setting", ["admin.client_crl_files", "node.crl_files"])
def test_revoked_operator_certificate_is_refused(site: Site, setting: str) -> None:
    """By its own lists, or by those of links if nodes and operators share an authority."""
    site.revoke()
    lists = OperatorLists()
    config = site.config(f"admin.client_ca={site.node.authority}", f"{setting}={site.file}")
    files = operator_files(config, lists)
    assert caller_of("test", [site.ann], lists.refusal) == ANN
    site.revoke("ann")
    files.take(files.look())
    assert not files.problem() and caller_of("test", [site.ann], lists.refusal) is None


def test_stale_list_refuses_all_certificates(site: Site) -> None:
    site.revoke(days=(-1, 1))
    now = datetime.datetime.now(datetime.UTC).timestamp()
    lists = OperatorLists(lambda: now + 2 * 86_400)
    operator_files(site.config(f"admin.client_ca={site.node.authority}", f"admin.client_crl_files={site.file}"), lists)
    assert caller_of("test", [site.ann], lists.refusal) is None


def test_lists_of_other_authority_do_not_apply(site: Site, tmp_path: Path) -> None:
    """Lists of links do not apply to operators of another authority; a list of a wrong authority refuses the start."""
    site.revoke("ann")
    other = Site(tmp_path / "other")
    lists = OperatorLists()
    operator_files(site.config(f"admin.client_ca={other.node.authority}", f"node.crl_files={site.file}"), lists)
    assert caller_of("test", [other.ann], lists.refusal) == ANN
    with pytest.raises(UserError):
        operator_files(
            site.config(f"admin.client_ca={other.node.authority}", f"admin.client_crl_files={site.file}"), lists
        )
    with pytest.raises(UserError, match="client_crl_files needs client_ca"):
        site.config(f"admin.client_crl_files={site.file}")
