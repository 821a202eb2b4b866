"""Tokens of operators: generation, and the digest that the cluster stores.

A token is ``smq_`` and 256 random bits in 43 letters, returned only on creation. The policy, the routers' log and the
services store its SHA-256, which does not permit a login.
"""

import hashlib
import secrets

__all__ = ["digest_of", "new_token"]

PREFIX = "smq_"
RANDOM_BYTES = 32


def new_token() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a token or another secret, in hexadecimal; any text is valid.

    Secrets are looked up by it: timing of a comparison reveals nothing about the secret itself.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
