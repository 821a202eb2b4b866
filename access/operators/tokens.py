"""Tokens of operators: how one is made, and the digest by which alone the cluster knows it.

A token is ``smq_`` and 256 random bits in 43 letters. Who makes one tells it once; the policy, the routers' log and the
services keep its SHA-256, with which nobody can log in.
"""

import hashlib
import secrets

__all__ = ["digest_of", "new_token"]

PREFIX = "smq_"
RANDOM_BYTES = 32


def new_token() -> str:
    """Return a token that nobody had before."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a token or another secret, in hexadecimal; whatever text is sent has one.

    Secrets are looked up by it: no comparison with a secret itself takes a time that tells of it.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
