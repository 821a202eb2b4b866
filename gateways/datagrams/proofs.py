"""Cookies: a sender proves that it receives datagrams at its address by echoing a cookie.

A cookie is a keyed hash of the address and the minute, so no state is kept for unproved addresses. Until it is echoed,
a node sends an address at most three times the bytes received from it (RFC 9000, 8.1).
"""

import hmac

from gateways.datagrams.messages import Endpoint

__all__ = ["AMPLIFICATION_MAX", "COOKIE_BYTES", "PERIOD_S", "Proofs"]

AMPLIFICATION_MAX = 3
COOKIE_BYTES = 16
PERIOD_S = 60.0
PERIODS_VALID = 11  # longer than a subscription's lease: a renewal needs no new cookie


class Proofs:
    """Makes and checks cookies of one incarnation of a node."""

    def __init__(self, secret: bytes, periods_valid: int = PERIODS_VALID) -> None:
        """Set a secret of 32 random bytes, and the validity in minutes, the present one included."""
        self._secret, self._periods_valid = secret, periods_valid

    def cookie(self, endpoint: Endpoint, now: float) -> bytes:
        """Return the current cookie of an address."""
        return self._compute(endpoint, int(now / PERIOD_S))

    def is_valid(self, endpoint: Endpoint, cookie: bytes, now: float) -> bool:
        """Return whether a cookie was made for this address and is not expired."""
        if len(cookie) != COOKIE_BYTES:
            return False
        period = int(now / PERIOD_S)
        return any(
            hmac.compare_digest(cookie, self._compute(endpoint, period - back)) for back in range(self._periods_valid)
        )

    def _compute(self, endpoint: Endpoint, period: int) -> bytes:
        text = endpoint.ip + endpoint.port.to_bytes(2, "big") + period.to_bytes(8, "big", signed=True)
        return hmac.digest(self._secret, text, "sha256")[:COOKIE_BYTES]
