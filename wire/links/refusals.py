"""Counts messages that a node refuses by reason, and logs them at a limited rate.

A hostile node can send thousands a second and chooses its name: the log gets one line in ``LOG_EVERY_S`` with the name
escaped. ``wire/links/allowed.py`` and the cores decide refusals.
"""

import logging
from collections.abc import Callable

from conf.events import say
from wire.messages.hello import PeerKey

__all__ = ["EARLY_S", "Refusals"]

logger = logging.getLogger(__name__)

LOG_EVERY_S = 10.0
EARLY_S = 30.0  # routers register within it


class Refusals:
    """Refusals of one node.

    Args:
        count: Called with ``refused_<reason>`` for each.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._log_at = float("-inf")
        self._suppressed = 0
        self._early_until: float | None = None  # set by the first early message

    def refuse(self, now: float, peer: PeerKey, what: str, reason: str, *, early: bool = False) -> None:
        """Count and log a refused message.

        Args:
            now: Seconds.
            peer: The sender.
            what: The type of the message.
            reason: "tier", "identity", "role", "placement" or "owner".
            early: Normal while a cluster starts (``is_early_stream``): for ``EARLY_S``, logged at debug level.
        """
        self._count(f"refused_{reason}")
        if early:
            if self._early_until is None:
                self._early_until = now + EARLY_S
            if now < self._early_until:
                say(logger, "message.refused_early", what=what, tier=peer.tier, peer=ascii(peer.node), reason=reason)
                return
        if now < self._log_at:
            self._suppressed += 1
            return
        more = f" ({self._suppressed} more refusals since the last line)" if self._suppressed else ""
        self._log_at, self._suppressed = now + LOG_EVERY_S, 0
        say(logger, "message.refused", what=what, tier=peer.tier, peer=ascii(peer.node), reason=reason, more=more)
