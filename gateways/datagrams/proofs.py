"""Cookies: a sender proves that datagrams to its address reach it, by echoing what was sent there.

Nothing is kept for an address that has proved nothing: a cookie is a keyed hash of the address and the minute.
Until it has come back, a node sends an address at most three times the bytes that came from it (RFC 9000, 8.1).
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
        """Take a secret of 32 random bytes, and for how many minutes a cookie is valid, the present one included."""
        self._secret, self._periods_valid = secret, periods_valid

    def cookie(self, endpoint: Endpoint, now: float) -> bytes:
        """Return the cookie that an address is sent now."""
        return self._of(endpoint, int(now / PERIOD_S))

    def is_valid(self, endpoint: Endpoint, cookie: bytes, now: float) -> bool:
        """Return whether a cookie was sent to this address within its lifetime."""
        if len(cookie) != COOKIE_BYTES:
            return False
        period = int(now / PERIOD_S)
        return any(
            hmac.compare_digest(cookie, self._of(endpoint, period - back)) for back in range(self._periods_valid)
        )

    def _of(self, endpoint: Endpoint, period: int) -> bytes:
        text = endpoint.ip + endpoint.port.to_bytes(2, "big") + period.to_bytes(8, "big", signed=True)
        return hmac.digest(self._secret, text, "sha256")[:COOKIE_BYTES]
