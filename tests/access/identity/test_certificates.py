"""Names in certificates: exactly one, valid, and never one of the cluster's own (check T2)."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from access.identity.certificates import CertificateStep, NameKind, NameUse, certificate_facts
from access.identity.principal import Allow, Answer, Credentials, Deny, Pass, TimePoint, name_fault
from mqtt.reasons import ReasonCode
from tests.access.identity.authorities import UTC, Authority, der, facts_of
from tests.clients.hostile_names import HOSTILE_NAMES, LOOK_ALIKES

AUTHORITY = Authority()
MOMENT = TimePoint(1.0, UTC)
URI, DNS, MAIL = x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name


def asked(
    certificate: x509.Certificate, kind: NameKind = NameKind.CN, use: NameUse = NameUse.USER, client_id: str = "id"
) -> Answer:
    return CertificateStep(kind, use).begin(
        Credentials("l", "::1", client_id, certificate=facts_of(certificate)), MOMENT
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (NameKind.CN, "device-1"),
        (NameKind.SAN_DNS, "device.example"),
        (NameKind.SAN_URI, "urn:dev:1"),
        (NameKind.SAN_EMAIL, "device@example"),
        (NameKind.DN, "CN=device-1"),
    ],
)
def test_each_kind_of_name_becomes_the_user(kind: NameKind, name: str) -> None:
    """The single value of the chosen kind."""
    certificate = AUTHORITY.client(
        alternatives=[DNS("device.example"), URI("urn:dev:1"), MAIL("device@example")], serial=0x0ABC
    )
    answer = asked(certificate, kind)
    assert isinstance(answer, Allow)
    assert (answer.principal.user, answer.principal.client_id) == (name, "id")
    assert (answer.principal.serial, answer.principal.common_name) == ("abc", "device-1")


def test_the_connection_ends_with_the_certificate() -> None:
    """TLS checks the dates at the handshake only, and a connection may outlive them."""
    certificate = AUTHORITY.client()
    answer = asked(certificate)
    assert isinstance(answer, Allow)
    assert answer.principal.expires_at_utc == certificate.not_valid_after_utc.timestamp()


def test_the_fingerprint_is_a_name_of_each_certificate() -> None:
    """Also for one without any other name."""
    certificate = AUTHORITY.client(names=())
    answer = asked(certificate, NameKind.FINGERPRINT)
    assert isinstance(answer, Allow)
    assert answer.principal.user == facts_of(certificate).fingerprint


@pytest.mark.parametrize(
    ("use", "user", "client_id"),
    [("user", "device-1", "id"), ("client_id", "", "device-1"), ("both", "device-1", "device-1")],
)
def test_certificate_name_use_follows_settings(use: str, user: str, client_id: str) -> None:
    """User, client ID or both."""
    answer = asked(AUTHORITY.client(), use=NameUse(use))
    assert isinstance(answer, Allow)
    assert (answer.principal.user, answer.principal.client_id) == (user, client_id)


@pytest.mark.parametrize(
    ("kind", "names", "alternatives"),
    [
        (NameKind.CN, (), ()),
        (NameKind.CN, ("one", "two"), ()),
        (NameKind.CN, ("device-1\0.example",), ()),
        (NameKind.CN, ("line\nbreak",), ()),
        (NameKind.CN, ("\x7f",), ()),
        (NameKind.CN, ("e\u0301",), ()),
        (NameKind.CN, ("right\u202eleft",), ()),
        (NameKind.CN, ("zero\u200bwidth",), ()),
        (NameKind.DN, ("bell\a",), ()),
        (NameKind.DN, (), ()),
        (NameKind.SAN_DNS, ("device-1",), ()),
        (NameKind.SAN_DNS, (), (DNS("a.example"), DNS("b.example"))),
        (NameKind.SAN_DNS, (), (DNS("*.example"),)),
        (NameKind.SAN_DNS, (), (DNS("a.example\0.evil.example"),)),
        (NameKind.SAN_URI, (), (URI("urn:one"), URI("urn:two"))),
        (NameKind.SAN_EMAIL, (), (DNS("a.example"),)),
    ],
)
def test_no_name_and_two_names_are_refused(
    kind: NameKind, names: tuple[str, ...], alternatives: tuple[x509.GeneralName, ...]
) -> None:
    """Missing, repeated, cut by NUL, with control characters, in another normal form, a wildcard."""
    answer = asked(AUTHORITY.client(names, alternatives), kind)
    assert isinstance(answer, Deny)
    assert answer.code == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("kind", list(NameKind))
@pytest.mark.parametrize(
    ("names", "uris"),
    [
        (("edge-0",), ("stratamq://c/edge/edge-0",)),
        (("anna",), ("STRATAMQ://c/operator/anna",)),
        (("anna",), ("urn:x", "stratamq://c/admin/anna")),
        (("stratamq://c/edge/edge-0",), ()),
        ((" Stratamq://c/edge/edge-0",), ()),
        (("anna", "stratamq:x"), ()),
    ],
)
def test_nodes_and_operators_are_never_clients(kind: NameKind, names: tuple[str, ...], uris: tuple[str, ...]) -> None:
    """For every kind of name that the listener reads."""
    answer = asked(AUTHORITY.client(names, [URI(uri) for uri in uris]), kind)
    assert isinstance(answer, Deny)


def test_certificate_facts_reads_requested_kinds_only() -> None:
    """Unrequested kinds are not read, and a cluster's name is found without reading its kind."""
    certificate = AUTHORITY.client(alternatives=[DNS("a.example"), URI("stratamq://c/edge/edge-0")])
    facts = certificate_facts(der(certificate), (NameKind.CN,), ocsp=False)
    assert facts.names == {"cn": ("device-1",)} and facts.of_cluster and not facts.authority_key
    plain = certificate_facts(der(AUTHORITY.client(alternatives=[DNS("a.example")])), (NameKind.CN,), ocsp=False)
    credentials = Credentials("l", "::1", "id", certificate=plain)
    assert isinstance(CertificateStep(NameKind.CN).begin(credentials, MOMENT), Allow)
    for kind in (NameKind.SAN_DNS, NameKind.DN):
        assert isinstance(CertificateStep(kind).begin(credentials, MOMENT), Deny)


def test_a_client_without_certificate_is_asked_by_the_next_step() -> None:
    assert isinstance(CertificateStep(NameKind.CN).begin(Credentials("l", "::1", "id", "u", b"p"), MOMENT), Pass)


def test_bytes_that_are_no_certificate() -> None:
    """Truncated, damaged and long bytes are one error."""
    good = der(AUTHORITY.client())
    for bad in (b"", good[:-1], good + b"\0", b"\x30" * 100, bytes(70_000), good.replace(b"device-1", b"\xff" * 8)):
        with pytest.raises(ValueError, match="certificate"):
            certificate_facts(bad)


def test_an_issuer_whose_name_is_a_string_of_bits() -> None:
    """Found by the fuzz target "certificates": the library raised TypeError instead of ValueError."""
    good = der(AUTHORITY.client())
    at = good.index(b"\x0c\x07Devices")
    with pytest.raises(ValueError, match="unreadable"):
        certificate_facts(good[:at] + b"\x03\x07\0evices" + good[at + 9 :])


@pytest.mark.parametrize("name", ["a", "+", "#", "$SYS/x", "a/b", "ä", "用户", "x" * 65_535, "{user}", "%u"])
def test_name_fault_allows_filter_characters(name: str) -> None:
    """Rules treat them literally, so they are not refused here."""
    assert name_fault(name) == ""


@pytest.mark.parametrize(
    "name", ["", "\0", "a\0", "\n", "x" * 65_536, "ä" * 32_768, "\ud800", "\x85", "\u2028", "A\u030a"]
)
def test_name_fault_invalid_name_is_refused(name: str) -> None:
    """They control a log or a terminal, or two of them look alike."""
    assert name_fault(name)


@pytest.mark.parametrize("name", [*HOSTILE_NAMES.values(), *LOOK_ALIKES], ids=lambda name: ascii(name)[:20])
def test_a_hostile_name_in_a_certificate(name: str) -> None:
    """It is refused in a line without the name, or is the user unchanged, and cannot control a log."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False)])
    builder = AUTHORITY.builder(subject, AUTHORITY.name, 7).public_key(AUTHORITY.key.public_key())
    shown = der(builder.sign(AUTHORITY.key, hashes.SHA256()))
    try:
        facts = certificate_facts(shown)
    except ValueError as error:
        assert len(shown) > 65_000 and str(error).isprintable() and len(str(error)) < 200
        return
    answer = CertificateStep(NameKind.CN).begin(Credentials("l", "::1", "id", certificate=facts), MOMENT)
    if isinstance(answer, Allow):
        assert answer.principal.user == name and not name_fault(name)
    else:
        assert isinstance(answer, Deny) and answer.reason.isprintable() and len(answer.reason) < 200
