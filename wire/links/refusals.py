"""Messages that a node refuses because their sender may not say them: counted by reason, logged once in a while.

A hostile node can send thousands a second, and chooses its name: the log gets one line in ``LOG_EVERY_S`` with the name
escaped. Which message is refused is decided by ``wire/links/allowed.py`` and by the cores.
"""

import logging
from collections.abc import Callable

from conf.events import say
from wire.messages.hello import PeerKey

__all__ = ["Refusals"]

logger = logging.getLogger(__name__)

LOG_EVERY_S = 10.0


class Refusals:
    """Refusals of one node.

    Args:
        count: Told ``refused_<reason>`` for each.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._log_at = float("-inf")
        self._unsaid = 0

    def refuse(self, now: float, peer: PeerKey, what: str, reason: str, *, early: bool = False) -> None:
        """Note that a message was refused.

        Args:
            now: Seconds.
            peer: The sender.
            what: Its type.
            reason: "tier", "identity", "role", "placement" or "owner".
            early: It is normal while a cluster starts (``is_early_stream``).
        """
        self._count(f"refused_{reason}")
        if early:
            say(logger, "message.refused_early", what=what, tier=peer.tier, peer=ascii(peer.node), reason=reason)
            return
        if now < self._log_at:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more refusals since the last line)" if self._unsaid else ""
        self._log_at, self._unsaid = now + LOG_EVERY_S, 0
        say(logger, "message.refused", what=what, tier=peer.tier, peer=ascii(peer.node), reason=reason, more=more)
