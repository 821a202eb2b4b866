"""Revocation of certificates of nodes and operators by the lists of their authority.

``node.crl_files`` names the lists; the package ``access`` reads and checks them, in a thread. A certificate is checked
at the handshake, again before its link is established, and whenever other lists take effect. A stale list refuses
handshakes, because a newer one is unknown. Established links are checked against its content and not its age: the
expiry of a list at night must not cut every link of a cluster at once.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from wire.messages.hello import LinkError

__all__ = ["PeerRevocationLists", "RevokedPeers"]


class PeerRevocationLists(Protocol):
    """The lists that are in effect."""

    @property
    def revoked(self) -> int:
        """Number of certificates that the lists revoke."""

    @property
    def next_update_utc(self) -> float:
        """Time at which the first of them goes stale, in seconds since the epoch."""

    def refusal(self, certificate: bytes, utc: float) -> str:
        """Return why a certificate in DER is refused at a given time, "" if it is accepted."""


class RevokedPeers:
    """Checks the certificates of one node's links; hub and edge keep it with their TLS contexts.

    Args:
        utc: Returns seconds since the epoch.
    """

    def __init__(self, utc: Callable[[], float] = time.time) -> None:
        self._utc = utc
        self._lists: PeerRevocationLists | None = None
        self._checks: list[Callable[[], None]] = []
        self.refused = 0  # handshakes
        self.cut = 0  # established links

    @property
    def lists(self) -> PeerRevocationLists | None:
        """Lists in effect; None: none are configured."""
        return self._lists

    def check(self, certificate: bytes | None) -> None:
        """Check a peer's certificate at the handshake.

        Raises:
            LinkError: It is refused; the text has the reason.
        """
        why = self._refusal(certificate, self._utc())
        if why:
            self.refused += 1
            raise LinkError(f"the peer's certificate is refused: {why}")

    def end_of(self, certificate: bytes | None) -> str:
        """Return why an established link must end, "" if it stays; the cut is counted, so the caller must end it."""
        why = self._refusal(certificate, -math.inf)
        if why:
            self.cut += 1
            return f"the peer's certificate is refused: {why}"
        return ""

    def _refusal(self, certificate: bytes | None, utc: float) -> str:
        if self._lists is None:
            return ""
        if not certificate:
            return "there is none"
        return self._lists.refusal(certificate, utc)

    def call_at_put(self, check_links: Callable[[], None]) -> None:
        """Register a check of links that runs whenever other lists take effect."""
        self._checks.append(check_links)

    def put(self, lists: PeerRevocationLists | None) -> None:
        """Put lists into effect; links that they revoke end in this loop iteration."""
        self._lists = lists
        for check_links in self._checks:
            check_links()
