"""Timers of a partition, and work in slices: one record type for each kind, with its subject.

A timer uses the partition's served clock and is never cancelled: its handler checks whether it is still valid. Work is
executed in order, in slices, like a due timer.
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
    """The delay of acknowledged entries has passed: save them."""


class StopWaitingForKick(msgspec.Struct, frozen=True, gc=False):
    """The wait of a CONNECT for the older connection's edge has timed out."""

    client_id: str


class KickAgain(msgspec.Struct, frozen=True, gc=False):
    """An edge has not confirmed that an older connection is closed."""

    client_id: str
    owner_epoch: int


class WillDelayOver(msgspec.Struct, frozen=True, gc=False):
    """The Will Delay Interval of a client's will has passed."""

    client_id: str


class FireWillAgain(msgspec.Struct, frozen=True, gc=False):
    """An edge could not complete the fan-out of a will."""

    number: int


class RedispatchAgain(msgspec.Struct, frozen=True, gc=False):
    """An edge found no member for a message of a shared group."""

    number: int


class ExpireRetained(msgspec.Struct, frozen=True, gc=False):
    """The Message Expiry Interval of a retained message has passed."""

    topic: str


class EndHold(msgspec.Struct, frozen=True, gc=False):
    """The hold of a session's live messages for a retained read has timed out."""

    session: int


class EndSession(msgspec.Struct, frozen=True, gc=False):
    """A session has expired, or its rows are being deleted."""

    session: int


class AskRoutesAgain(msgspec.Struct, frozen=True, gc=False):
    """The owner of a shard has not answered a request for routes."""

    request: int


class EndConnections(msgspec.Struct, frozen=True, gc=False):
    """The connections of dead edges end."""


class GiveUpCopies(msgspec.Struct, frozen=True, gc=False):
    """A shared group's member lost its right to the group: its queued copies go to other members."""

    session: int
    share: bytes
    at: int  # session_seq of the next entry
    below: int  # session_seq after the last entry


class PurgeQueue(msgspec.Struct, frozen=True, gc=False):
    """A purge of the entries that were in a queue when the operator's order arrived."""

    session: int
    below: int  # session_seq after the last entry
    router: str  # that forwarded the order
    request: int
    actor: str  # the operator
    dropped: int = 0  # so far


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
