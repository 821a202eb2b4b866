"""Selection of the next address that a client dials: its configured ones in rotation, or an accepted Server Reference.

Logs and counts Server References; the rules are in ``gateways/addresses.py``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from conf.events import say
from gateways.addresses import Address, ReferenceRefused, follow_reference, validate_reach

__all__ = ["AddressSelector"]

logger = logging.getLogger(__name__)

LOGGED_MAX = 200  # logged characters of a reference


class AddressSelector:
    """Addresses of one client.

    Attributes:
      current: The address of the present connection or attempt.
      peer_ip: IP address of the present broker.
    """

    def __init__(self, addresses: tuple[Address, ...], hosts: tuple[str, ...], counts: Counter[str]) -> None:
        """Set up.

        Args:
          addresses: The configured ones.
          hosts: Further permitted hosts of references: ``host``, ``host:port`` or ``*``.
          counts: Incremented at ``references_followed`` and ``references_refused``.
        """
        self.current = addresses[0]
        self.peer_ip = ""
        self._addresses, self._hosts, self._counts = addresses, hosts, counts
        self._attempts = 0
        self._hops = 0
        self._next: Address | None = None
        self._sender_ip = ""  # the broker whose reference the present attempt follows

    @property
    def is_referred(self) -> bool:
        """Whether the next attempt follows a Server Reference, without a delay."""
        return self._next is not None

    @property
    def check_reach(self) -> Callable[[list[str]], None] | None:
        """Return the check of ``current``'s IP addresses, None for a configured address."""
        return partial(validate_reach, self._sender_ip) if self._sender_ip else None

    def advance(self) -> Address:
        """Return the address of the next attempt."""
        if self._next is not None:
            self.current, self._next = self._next, None
            self._sender_ip = "" if self.current in self._addresses else self.peer_ip
        else:
            self._hops, self._sender_ip = 0, ""
            self.current = self._addresses[self._attempts % len(self._addresses)]
            self._attempts += 1
        return self.current

    def reset_hops(self) -> None:
        """Reset the count of followed references, after a long-lived connection."""
        self._hops = 0

    def refer(self, reference: str) -> None:
        """Apply the Server Reference of the present broker."""
        try:
            self._next = follow_reference(
                reference, self.current, self._hops, configured=self._addresses, hosts=self._hosts
            )
        except ReferenceRefused as error:
            self.refuse(reference, error)
            return
        self._hops += 1
        self._counts["references_followed"] += 1
        say(logger, "gateway.reference_followed", broker=self.current, reference=self._next)

    def refuse(self, reference: str, why: ReferenceRefused) -> None:
        """Log and count a refused reference."""
        self._counts["references_refused"] += 1
        say(logger, "gateway.reference_refused", broker=self.current, reference=reference[:LOGGED_MAX], why=why)
