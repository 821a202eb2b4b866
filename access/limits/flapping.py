"""Penalties for flapping connections and failed logins: refused for five minutes at this edge, with 0x9F.

Flapping counts for one client ID from one address, failed logins for one address. Neither counts for a client ID or a
user at all addresses, because a stranger could lock an owner out. An address in ``proxy_trusted`` of a listener with
PROXY headers is never counted, because its clients share it. These penalties are local: other edges do not apply them.
"""

from hashlib import blake2b

from access.limits.strikes import Strikes
from conf.addresses import TrustedNetworks, address_key

__all__ = ["FailedLogins", "Flapping"]

ENDS = 15  # of one client ID from one address
ENDS_WINDOW_S = 60.0
FAILURES = 10  # of one address
FAILURES_WINDOW_S = 60.0
PENALTY_S = 300.0
KEYS_MAX = 100_000
DIGEST_BYTES = 16  # of a pair: a client ID may have 64 KiB


class Flapping:
    """Client IDs whose connections from one address end too often.

    Attributes:
        strikes: The table, for its metrics.
    """

    def __init__(self, trusted: TrustedNetworks, ends: int = ENDS, keys_max: int = KEYS_MAX) -> None:
        self._trusted = trusted
        self.strikes = Strikes(ends, ENDS_WINDOW_S, PENALTY_S, keys_max)

    def ended(self, client_id: str, address: str, now: float) -> bool:
        """Record the end of a connection; return whether the pair is refused from now on."""
        return address not in self._trusted and self.strikes.note(_pair(client_id, address), now)

    def refused_s(self, client_id: str, address: str, now: float) -> float:
        """Return for how many seconds a CONNECT of this pair is refused, 0.0 if it is not."""
        if address in self._trusted:
            return 0.0
        return self.strikes.penalty_s(_pair(client_id, address), now)


class FailedLogins:
    """Addresses with too many failed logins.

    Attributes:
        strikes: The table, for its metrics.
    """

    def __init__(self, trusted: TrustedNetworks, failures: int = FAILURES, keys_max: int = KEYS_MAX) -> None:
        self._trusted = trusted
        self.strikes = Strikes(failures, FAILURES_WINDOW_S, PENALTY_S, keys_max)

    def failed(self, address: str, now: float) -> bool:
        """Record a login with wrong credentials; return whether the address is refused from now on.

        A backend's error (0x88) is not a failed login, nor is a CONNECT that this penalty refused.
        """
        return address not in self._trusted and self.strikes.note(address_key(address), now)

    def refused_s(self, address: str, now: float) -> float:
        """Return for how many seconds each CONNECT of an address is refused, 0.0 if it is not.

        The edge calls this before it checks credentials, so a refused address costs no hash.
        """
        return 0.0 if address in self._trusted else self.strikes.penalty_s(address_key(address), now)


def _pair(client_id: str, address: str) -> bytes:
    key = address_key(address)
    text = f"{len(key)}:{key}{client_id}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES).digest()
