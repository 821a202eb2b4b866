"""The subscribers of topics that the same filters reach: one tuple for all of these topics, counted in bytes.

Routes hold the tuple and its ``Audience``; the count falls when the last of them is gone. Who subscribed to what is
``edge/subscriptions/ephemeral_sessions.py``'s. Decision: docs/adr/0023-work-in-slices.md.
"""

from edge.loop.state import Sub

__all__ = ["NOBODY", "Audience", "FanoutAccount", "encoding_of"]

TUPLE_BYTES = 56  # of an empty one, with what the collector adds
POINTER_BYTES = 8
SUB_BYTES = 96  # of a subscriber that was merged for one combination of filters, identifiers included


class FanoutAccount:
    """Bytes of what Routes share."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Audience:
    """Subscribers of some topics, one per connection.

    Attributes:
        subs: In the order that a Route wants them.
        made_at: Clock of the subscriptions when they were looked up.
        copies: Of a message for all of them.
    """

    __slots__ = ("__weakref__", "_account", "_bytes", "copies", "made_at", "subs")

    def __init__(
        self, subs: tuple[Sub, ...], account: FanoutAccount, made_at: int, own_subs: int = 0, own_copies: int = 0
    ) -> None:
        """own_subs: How many of them no other Audience has; own_copies: those of them with several."""
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
    """Return what copies for a subscriber have in common with those for others: they share one conversion."""
    return sub.conn.version == 5, sub.identifiers
