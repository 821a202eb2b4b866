"""An operator's certificate at the HTTP service: name and role, from the URI that the cluster's authority signed."""

from collections.abc import Callable, Iterable

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from access.operators.commands import ROLES
from admin.http.callers import Caller

__all__ = ["caller_of"]

SCHEME = "stratamq://"


def caller_of(
    cluster: str, certificates: Iterable[str | bytes], refusal: Callable[[bytes], str] = lambda _: ""
) -> Caller | None:
    """Return whom a verified chain names, its own certificate first; None if that is no operator of this cluster.

    A certificate with two names of that form names nobody: which of them was meant is not ours to choose. Neither does
    one that is revoked: ``refusal`` says of a certificate in DER why it is taken no more.
    """
    chain = list(certificates)
    if not chain:
        return None
    first = chain[0]
    data = first if isinstance(first, bytes) else first.encode()
    try:
        certificate = x509.load_pem_x509_certificate(data)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(SCHEME)]
    except (ValueError, x509.ExtensionNotFound):
        return None
    if len(uris) != 1:
        return None
    parts = uris[0].removeprefix(SCHEME).split("/")
    if len(parts) != 3 or parts[0] != cluster or parts[1] not in ROLES or not parts[2].isprintable():
        return None
    if refusal(certificate.public_bytes(Encoding.DER)):
        return None
    return Caller(parts[2], ROLES[parts[1]], "certificate")
