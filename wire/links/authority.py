"""The development certificate authority: all certificates of `stratamq up` and the tests, made once, in one folder.

P-256 keys with mode 0600; nodes and operators are named by URI as ``wire/links/tls.py`` expects. `stratamq init` makes
two authorities, one for nodes and one for clients. The authority's key is stored beside the certificates; production
systems should store it elsewhere. ``cryptography`` is imported when a certificate is made.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from conf.errors import UserError
from wire.links.tls import CertificateFiles, certified_uris, identity_uri
from wire.messages.hello import TIER_GATEWAY

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["LOOPBACK", "DevelopmentAuthority"]

AUTHORITY_DAYS = 3650
LEAF_DAYS = 825  # longest that common clients accept
RENEW_BEFORE_DAYS = 7  # a leaf with less left is reissued on request
CLOCK_SKEW = datetime.timedelta(hours=1)  # subtracted from the start of validity
KEY_MODE = 0o600
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class DevelopmentAuthority:
    """A certificate authority in a folder; existing current files are reused."""

    def __init__(self, folder: Path, cluster: str, now: datetime.datetime, subject: str = "") -> None:
        """Open the authority, or create it.

        Args:
            folder: Folder of the files; created with mode 0700.
            cluster: Named in every node's certificate.
            now: Aware, UTC; certificates are valid from here.
            subject: Common name of a new authority; two authorities of one cluster need two names.
        Raises:
            UserError: The folder cannot be written, or its files cannot be read.
        """
        self.folder = folder
        self.cluster = cluster
        self.certificate = folder / "ca.pem"
        self._now = now
        self._subject = subject or f"StrataMQ development authority of {cluster}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._load() if self.certificate.exists() else self._make()
        except OSError as error:
            raise UserError(f"certificate folder {folder}: {error.strerror or error}") from None
        except ValueError as error:
            raise UserError(f"certificate authority in {folder} is not readable: {error}") from None

    def server(self, file: str = "server", hosts: Sequence[str] = LOOPBACK) -> CertificateFiles:
        """Return the certificate that edges show to MQTT clients, with the names and addresses that these dial."""
        return self._leaf(file, hosts[0], uri=None, hosts=hosts, client=False)

    def client(self, name: str = "client") -> CertificateFiles:
        """Return a certificate for an MQTT client; it names no node and opens no link."""
        return self._leaf(name, name, uri=None, hosts=(), client=True)

    def node(self, tier: str, node: str, hosts: Sequence[str] = LOOPBACK) -> CertificateFiles:
        """Return the certificate of one node, for both directions of its links."""
        return self._leaf(node, node, uri=identity_uri(self.cluster, tier, node), hosts=hosts, client=True)

    def operator(self, name: str = "operator", role: str = "operator") -> CertificateFiles:
        """Return a certificate for the command line; the role decides the permitted verbs."""
        uri = identity_uri(self.cluster, role, name)
        return self._leaf(name, name, uri=uri, hosts=(), client=True)

    def gateway(self, name: str = "gateway") -> CertificateFiles:
        """Return a certificate of a gateway, which follows the map, or connects as a client besides ``client_ca``."""
        return self.node(TIER_GATEWAY, name, ())

    def _load(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self._issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        key = load_pem_private_key((self.folder / "ca.key").read_bytes(), password=None)
        self._key = cast("ec.EllipticCurvePrivateKey", key)
        if self._now > self._issuer.not_valid_after_utc:
            raise UserError(f"the development authority in {self.folder} has expired: remove that folder")

    def _make(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name(self._subject)
        builder = (
            self._builder(name, name, self._key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
        )
        self._issuer = self._sign(builder)
        _write_private(self.folder / "ca.key", _key_pem(self._key))
        _write_whole(self.certificate, _certificate_pem(self._issuer))  # last: its presence means complete

    def _leaf(
        self, file: str, common_name: str, *, uri: str | None, hosts: Sequence[str], client: bool
    ) -> CertificateFiles:
        files = CertificateFiles(self.folder / f"{file}.pem", self.folder / f"{file}.key", self.certificate)
        try:
            if not self._current(files, uri):
                self._issue(files, common_name, uri=uri, hosts=hosts, client=client)
        except OSError as error:
            raise UserError(f"certificate folder {self.folder}: {error.strerror or error}") from None
        return files

    def _current(self, files: CertificateFiles, uri: str | None) -> bool:
        from cryptography import x509

        if not files.certificate.exists() or not files.key.exists():
            return False
        try:
            certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        except ValueError:
            return False
        left = certificate.not_valid_after_utc - self._now
        same_issuer = certificate.issuer == self._issuer.subject
        named = uri is None or uri in certified_uris(certificate)
        return same_issuer and named and left > datetime.timedelta(days=RENEW_BEFORE_DAYS)

    def _issue(
        self, files: CertificateFiles, common_name: str, *, uri: str | None, hosts: Sequence[str], client: bool
    ) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)] if uri else []
        names += [_general_name(host) for host in hosts]
        oid = x509.oid.ExtendedKeyUsageOID
        usages = [oid.SERVER_AUTH] * bool(hosts) + [oid.CLIENT_AUTH] * client
        subject, issuer = _name(common_name), self._issuer.subject
        builder = (
            self._builder(subject, issuer, key.public_key(), LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = self._sign(builder)
        _write_private(files.key, _key_pem(key))
        _write_whole(files.certificate, _certificate_pem(certificate))

    def _builder(
        self, subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePublicKey", days: int
    ) -> "x509.CertificateBuilder":
        from cryptography import x509

        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SKEW)
            .not_valid_after(self._now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _sign(self, builder: "x509.CertificateBuilder") -> "x509.Certificate":
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common_name[:64])])


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, authority: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write_private(path: Path, content: bytes) -> None:
    """Write a key file that is never readable by others, not even during creation."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)
