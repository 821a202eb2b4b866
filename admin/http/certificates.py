"""An operator's certificate at the HTTP service: name and role, from its signed URI."""

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
    """Return the caller of a verified chain, leaf first; None if it is not an operator of this cluster.

    A certificate with two operator names is refused as ambiguous, a revoked one by ``refusal``, which returns the
    reason for a certificate in DER.
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
