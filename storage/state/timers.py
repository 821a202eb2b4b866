"""Timers of a partition, and work that it does some at a time: one record for each kind, with what it is about.

A timer runs by the partition's served clock and is never taken back: whoever it concerns looks, when it is due, whether
it still holds. Work is done in order, in slices, like a timer that is due.
"""

import msgspec

__all__ = [
    "AskRoutesAgain",
    "EndConnections",
    "EndHold",
    "EndSession",
    "ExpireRetained",
    "FireWillAgain",
    "GiveUpCopies",
    "KickAgain",
    "PurgeQueue",
    "RedispatchAgain",
    "SaveAcks",
    "StopWaitingForKick",
    "Timer",
    "WillDelayOver",
    "Work",
]


class SaveAcks(msgspec.Struct, frozen=True, gc=False):
    """Acknowledged entries have waited long enough for one row."""


class StopWaitingForKick(msgspec.Struct, frozen=True, gc=False):
    """A CONNECT has waited long enough for the older connection's edge."""

    client_id: str


class KickAgain(msgspec.Struct, frozen=True, gc=False):
    """An edge has not confirmed that an older connection is closed."""

    client_id: str
    owner_epoch: int


class WillDelayOver(msgspec.Struct, frozen=True, gc=False):
    """The Will Delay Interval of a client's will is over."""

    client_id: str


class FireWillAgain(msgspec.Struct, frozen=True, gc=False):
    """An edge could not complete the fan-out of a will."""

    number: int


class RedispatchAgain(msgspec.Struct, frozen=True, gc=False):
    """An edge found no member for a message of a shared group."""

    number: int


class ExpireRetained(msgspec.Struct, frozen=True, gc=False):
    """The Message Expiry Interval of a retained message is over."""

    topic: str


class EndHold(msgspec.Struct, frozen=True, gc=False):
    """A session's live messages have waited long enough for a read of retained ones."""

    session: int


class EndSession(msgspec.Struct, frozen=True, gc=False):
    """A session's expiry interval is over, or its rows are being deleted."""

    session: int


class AskRoutesAgain(msgspec.Struct, frozen=True, gc=False):
    """The owner of a shard has not answered a request for routes."""

    request: int


class EndConnections(msgspec.Struct, frozen=True, gc=False):
    """The connections of dead edges end."""


class GiveUpCopies(msgspec.Struct, frozen=True, gc=False):
    """A member of a shared group may not be one any more: the group's copies that wait for it go to others."""

    session: int
    share: bytes
    at: int  # session_seq of the next entry
    below: int  # session_seq behind the last one


class PurgeQueue(msgspec.Struct, frozen=True, gc=False):
    """An operator has a queue emptied, up to what stood in it when the order came."""

    session: int
    below: int  # session_seq behind the last one
    router: str  # that passed the order on
    request: int
    actor: str  # the operator
    dropped: int = 0  # until now


Work = EndSession | AskRoutesAgain | EndConnections | GiveUpCopies | PurgeQueue
Timer = (
    SaveAcks
    | StopWaitingForKick
    | KickAgain
    | WillDelayOver
    | FireWillAgain
    | RedispatchAgain
    | ExpireRetained
    | EndHold
    | EndSession
    | AskRoutesAgain
)
