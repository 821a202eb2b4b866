"""The subscribers of topics that the same filters match: one tuple for all of these topics, counted in bytes.

Routes hold the tuple and its ``Audience``; the count decreases when the last Route is deleted.
``edge/subscriptions/ephemeral_sessions.py`` owns the subscriptions. Decision: docs/adr/0023-work-in-slices.md.
"""

from edge.loop.state import Sub

__all__ = ["NOBODY", "Audience", "FanoutAccount", "encoding_of"]

TUPLE_BYTES = 56  # of an empty tuple, with the header of the garbage collector
POINTER_BYTES = 8
SUB_BYTES = 96  # of a subscriber that was merged for one combination of filters, identifiers included


class FanoutAccount:
    """Bytes of objects that Routes share."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Audience:
    """Subscribers of some topics, one per connection.

    Attributes:
        subs: In the order of the Route.
        made_at: Clock of the subscriptions when the subscribers were matched.
        copies: Copies of one message for all of them.
    """

    __slots__ = ("__weakref__", "_account", "_bytes", "copies", "made_at", "subs")

    def __init__(
        self, subs: tuple[Sub, ...], account: FanoutAccount, made_at: int, own_subs: int = 0, own_copies: int = 0
    ) -> None:
        """own_subs: Subscribers that no other Audience has; own_copies: their additional copies."""
        self.subs = subs
        self.copies = len(subs) + own_copies
        self.made_at = made_at
        self._account = account
        self._bytes = TUPLE_BYTES + POINTER_BYTES * (len(subs) + own_copies) + SUB_BYTES * (own_subs + own_copies)
        account.bytes += self._bytes

    def __del__(self) -> None:
        self._account.bytes -= self._bytes


NOBODY = Audience((), FanoutAccount(), 0)


def encoding_of(sub: Sub) -> tuple[bool, bytes]:
    """Return the key of an encoding: subscribers with equal keys share one conversion."""
    return sub.conn.version == 5, sub.identifiers
