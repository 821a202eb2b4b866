"""Which address a client of a broker dials next: its own in turn, or where a broker sends it, within the rules.

Decides, logs and counts which Server References are followed; the rules are in ``gateways/addresses.py``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from conf.events import say
from gateways.addresses import Address, ReferenceRefused, follow_reference, judge_reach

__all__ = ["AddressSelector"]

logger = logging.getLogger(__name__)

SHOWN_MAX = 200  # characters of a reference


class AddressSelector:
    """Addresses of one client.

    Attributes:
        current: The address of the present connection or attempt.
        peer_ip: Of the present connection.
    """

    def __init__(self, addresses: tuple[Address, ...], hosts: tuple[str, ...], counts: Counter[str]) -> None:
        """Set up.

        Args:
            addresses: Of the settings.
            hosts: Others that a broker may name: ``host``, ``host:port`` or ``*``.
            counts: Takes ``references_followed`` and ``references_refused``.
        """
        self.current = addresses[0]
        self.peer_ip = ""
        self._addresses, self._hosts, self._counts = addresses, hosts, counts
        self._turn = 0
        self._hops = 0
        self._next: Address | None = None
        self._sender_ip = ""  # of the broker whose reference the present attempt follows

    @property
    def is_referred(self) -> bool:
        """Return whether a broker has sent the client elsewhere: the next attempt follows at once."""
        return self._next is not None

    @property
    def judge(self) -> Callable[[list[str]], None] | None:
        """Return what judges the IP addresses of ``current`` before one is dialled, None for an own address."""
        return partial(judge_reach, self._sender_ip) if self._sender_ip else None

    def advance(self) -> Address:
        """Return the address of the next attempt."""
        if self._next is not None:
            self.current, self._next = self._next, None
            self._sender_ip = "" if self.current in self._addresses else self.peer_ip
        else:
            self._hops, self._sender_ip = 0, ""
            self.current = self._addresses[self._turn % len(self._addresses)]
            self._turn += 1
        return self.current

    def reset_hops(self) -> None:
        """Let a connection that held for long refer anew."""
        self._hops = 0

    def refer(self, reference: str) -> None:
        """Take the Server Reference of the present broker."""
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
        """Log and count a reference that is not followed."""
        self._counts["references_refused"] += 1
        say(logger, "gateway.reference_refused", broker=self.current, reference=reference[:SHOWN_MAX], why=why)
