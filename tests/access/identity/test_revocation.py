"""Lists of revoked certificates (checks T3, C5)."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from access.files import AccessFileError
from access.identity.revocation import RevocationSet, read_authorities, read_crl_files, revocation_set
from tests.access.identity.authorities import UTC, Authority, facts_of

ONE, TWO = Authority("One"), Authority("Two")
DAY_S = 86_400.0


def read(*contents: bytes, authorities: Sequence[Authority] = (ONE, TWO), utc: float = UTC) -> RevocationSet:
    files = [(Path(f"{number}.crl"), content) for number, content in enumerate(contents)]
    return revocation_set(files, [each.certificate for each in authorities], utc)


def refusal(lists: RevocationSet, certificate: x509.Certificate, utc: float = UTC) -> str:
    facts = facts_of(certificate)
    return lists.refusal(facts.issuer, facts.serial, utc)


def test_a_serial_of_the_list_is_revoked_and_only_of_its_issuer() -> None:
    lists = read(ONE.crl([7, 2**150]), TWO.crl([8]))
    assert refusal(lists, ONE.client(serial=7)) == "revoked"
    assert refusal(lists, ONE.client(serial=2**150)) == "revoked"
    assert refusal(lists, ONE.client(serial=8)) == ""
    assert refusal(lists, TWO.client(serial=7)) == ""
    assert lists.revoked == 3


def test_two_lists_of_one_issuer_count_both() -> None:
    """Also in one file; the issuer becomes stale with the first of them."""
    lists = read(ONE.crl([7]) + ONE.crl([8], (-1, 3)))
    assert refusal(lists, ONE.client(serial=7)) == refusal(lists, ONE.client(serial=8)) == "revoked"
    assert lists.next_update_utc == UTC + DAY_S
    assert "stale" in refusal(lists, ONE.client(serial=9), UTC + DAY_S)


def test_revocation_without_current_list_refuses() -> None:
    """Deny is the only fallback: an issuer without a list, an empty set, a NaN clock."""
    lists = read(ONE.crl([7]))
    assert refusal(lists, ONE.client(), UTC + DAY_S - 1) == ""
    assert "stale" in refusal(lists, ONE.client(), UTC + DAY_S)
    assert "stale" in refusal(lists, ONE.client(), float("nan"))
    assert "no revocation list" in refusal(lists, TWO.client())
    assert "no revocation list" in refusal(RevocationSet({}), ONE.client())


def test_revocation_of_authority_revokes_its_clients() -> None:
    below = Authority("Below", ONE)
    lists = read(ONE.crl([below.certificate.serial_number]), below.crl(), authorities=(ONE, below))
    assert refusal(lists, below.client()) == "its issuer is revoked"
    assert refusal(lists, ONE.client()) == ""


def test_a_root_has_often_the_serial_of_its_first_client() -> None:
    """Revoking that client revokes no other."""
    lists = read(ONE.crl([ONE.certificate.serial_number]))
    assert refusal(lists, ONE.client(serial=ONE.certificate.serial_number)) == "revoked"
    assert refusal(lists, ONE.client()) == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (ONE.crl([7], key=TWO.key), "not signed"),
        (Authority("Three").crl(), "no authority"),
        (Authority("One").crl([7]), "not signed"),
        (ONE.crl([7], (-2, -1)), "stale"),
        (ONE.crl([7], (1, 2)), "future"),
        (ONE.crl(part=x509.DeltaCRLIndicator(1)), "delta"),
        (
            ONE.crl(part=x509.IssuingDistributionPoint(None, None, False, True, None, False, False)),
            "only a part",
        ),
        (ONE.crl(part=x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\0")), "not understood"),
        (b"", "no revocation list"),
        (b"# only a comment\n", "no revocation list"),
        (b"\xef\xbb\xbf", "no revocation list"),
        (ONE.certificate.public_bytes(serialization.Encoding.PEM), "no revocation list"),
        (ONE.crl() + ONE.certificate.public_bytes(serialization.Encoding.PEM), "mixed up"),
        (ONE.crl() + ONE.crl()[:-30], "cut off"),
        (ONE.crl().replace(b"M", b"\0", 3), "no readable"),
        (b"\x30\x82\xff\xff", "no readable"),
    ],
)
def test_a_list_that_is_not_whole_current_and_signed_is_refused(content: bytes, text: str) -> None:
    """One invalid list refuses the set, so that the old one stays."""
    with pytest.raises(AccessFileError, match=text) as error:
        read(TWO.crl(), content)
    assert str(error.value).startswith("1.crl") and "\n" not in str(error.value)


def test_an_authority_that_may_not_sign_lists() -> None:
    without = Authority("Without", crl_sign=False)
    with pytest.raises(AccessFileError, match="not signed"):
        read(without.crl(), authorities=(without,))


def test_files_are_read_in_both_forms_with_crlf(tmp_path: Path) -> None:
    pem, binary, bundle = tmp_path / "a.pem", tmp_path / "b.der", tmp_path / "ca.pem"
    pem.write_bytes(b"text before\r\n" + ONE.crl([7]).replace(b"\n", b"\r\n"))
    two = x509.load_pem_x509_crl(TWO.crl([8])).public_bytes(serialization.Encoding.DER)
    binary.write_bytes(two)
    bundle.write_bytes(b"".join(each.certificate.public_bytes(serialization.Encoding.PEM) for each in (ONE, TWO)))
    lists = read_crl_files([pem, binary], read_authorities(bundle), UTC)
    assert refusal(lists, ONE.client(serial=7)) == refusal(lists, TWO.client(serial=8)) == "revoked"


def test_revocation_bounds_of_lists_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("access.identity.revocation.SERIALS_MAX", 3)
    with pytest.raises(AccessFileError, match="above 3"):
        read(ONE.crl([1, 2]), TWO.crl([3, 4]))
    with pytest.raises(AccessFileError, match="one file more"):
        read_crl_files([tmp_path / "x"] * 65, [], UTC)
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    with pytest.raises(AccessFileError, match="no certificate"):
        read_authorities(bundle)
