"""Events that reach the core of a router or storage node from outside: frames, links, time.

Each tier adds its own events (a sync ended, Raft committed); these are the same for all that talk through links.
"""

from dataclasses import dataclass

import msgspec

from wire.messages.hello import PeerKey

__all__ = ["FrameArrived", "LinkDown", "LinkUp", "NodeTick"]


class FrameArrived(
    msgspec.Struct, frozen=True, gc=False
):  # one for each frame: a dataclass takes several times as long
    """A numbered frame of a peer, once and in order.

    Attributes:
        begin: Where that begins which was left of it, if a go took only its beginning.
    """

    peer: PeerKey
    kind: int
    payload: bytes
    begin: int = 0


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to this incarnation of a peer stands."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class LinkDown:
    """It ended; what was not taken is kept for the next one."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class NodeTick:
    """Time has passed."""
