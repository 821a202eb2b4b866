"""Events for the core of a router or storage node: frames, links, time.

These are common to all nodes with links; each tier adds its own (a completed sync, a Raft commit).
"""

from dataclasses import dataclass

import msgspec

from wire.messages.hello import PeerKey

__all__ = ["FrameArrived", "LinkDown", "LinkUp", "NodeTick"]


class FrameArrived(msgspec.Struct, frozen=True, gc=False):  # one per frame: a dataclass is several times slower
    """A numbered frame of a peer, once and in order.

    Attributes:
        begin: Offset of the unprocessed rest, if an iteration processed only the beginning.
    """

    peer: PeerKey
    kind: int
    payload: bytes
    begin: int = 0


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to this incarnation of a peer was established."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class LinkDown:
    """It ended; untaken frames are kept for the next one."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class NodeTick:
    """Time has advanced."""
