"""Locates damage in a PEM file: TLS libraries report the fault without its line.

Called after a file was refused, so that an operator finds the place. ``cryptography`` is imported only then.
"""

import re
from pathlib import Path

__all__ = ["certificates_fault", "damaged_line", "key_fault"]

PART = re.compile(rb"-----BEGIN ([^\n-]*)-----.*?(?:-----END \1-----|(?=-----BEGIN)|\Z)", re.DOTALL)


def damaged_line(content: bytes) -> int:
    """Return the line, from 1, at which the first damaged certificate of a PEM text begins; 0 if each is readable."""
    from cryptography import x509

    for part in PART.finditer(content):
        try:
            if b"CERTIFICATE" in part[1]:
                x509.load_pem_x509_certificate(part[0])
        except Exception:  # the library documents ValueError only
            return content.count(b"\n", 0, part.start()) + 1
    return 0


def certificates_fault(what: str, path: Path) -> str:
    """Return the fault of a file of certificates, "" if it is valid.

    Args:
        what: Name of the file in the text.
        path: A small regular file.
    """
    content = path.read_bytes()
    line = damaged_line(content)
    if line:
        return f"{what} {path}:{line}: is not readable as PEM: the certificate that begins here is damaged or cut off"
    if b"-----BEGIN" not in content:
        return f"{what} {path} is not readable as PEM: it has no line -----BEGIN CERTIFICATE-----"
    if b"-----BEGIN CERTIFICATE-----" not in content:
        return f"{what} {path} is not readable as PEM: it has no certificate"
    return ""


def key_fault(path: Path) -> str:
    """Return the fault of a private key's file, "" if it is valid.

    Args:
        path: A small regular file.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        load_pem_private_key(path.read_bytes(), None)
    except TypeError:  # documented: it wants a password
        return f"key {path} has a password: a node has nobody to ask for it; write the key without one"
    except Exception:  # the library documents more than ValueError
        return f"key {path} is not readable as PEM"
    return ""
