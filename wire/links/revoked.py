"""Certificates of nodes and operators that are taken no more, though their authority signed them.

Lists of the authority say which (``node.crl_files``); they are read and checked by the room ``access``, in a thread.
A link is judged at its handshake, again before it stands, and whenever other lists are put in force. A stale list
refuses handshakes, for nobody knows what a newer one would say; links that stand are judged by what it says, not by
its age, because the end of a list at night must not cut every link of a cluster at once.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from wire.messages.hello import LinkError

__all__ = ["PeerRevocationLists", "RevokedPeers"]


class PeerRevocationLists(Protocol):
    """The lists of one moment."""

    @property
    def revoked(self) -> int:
        """Number of certificates that the lists name."""

    @property
    def next_update_utc(self) -> float:
        """The moment at which the first of them goes stale, in seconds since the epoch."""

    def refusal(self, certificate: bytes, utc: float) -> str:
        """Return why a certificate in DER is refused at a moment, "" if it is not."""


class RevokedPeers:
    """Judgement of the certificates of one node's links; hub and edge keep it with their TLS contexts.

    Args:
        utc: Returns seconds since the epoch.
    """

    def __init__(self, utc: Callable[[], float] = time.time) -> None:
        self._utc = utc
        self._lists: PeerRevocationLists | None = None
        self._looks: list[Callable[[], None]] = []
        self.refused = 0  # handshakes
        self.cut = 0  # links that stood

    @property
    def lists(self) -> PeerRevocationLists | None:
        """Lists in force; None: no setting names any."""
        return self._lists

    def check(self, certificate: bytes | None) -> None:
        """Judge a peer's certificate at the handshake.

        Raises:
            LinkError: It is refused; the text says why.
        """
        why = self._refusal(certificate, self._utc())
        if why:
            self.refused += 1
            raise LinkError(f"the peer's certificate is refused: {why}")

    def end_of(self, certificate: bytes | None) -> str:
        """Return why a link that stands ends, "" if it stays; counted, so a caller ends it."""
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

    def call_at_put(self, look: Callable[[], None]) -> None:
        """Have links judged whenever other lists are put in force."""
        self._looks.append(look)

    def put(self, lists: PeerRevocationLists | None) -> None:
        """Put lists in force; links that they revoke end in this turn of the loop."""
        self._lists = lists
        for look in self._looks:
            look()
