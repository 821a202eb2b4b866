"""Events that reach the core of a router or storage node from outside: frames, links, time.

Each tier adds its own events (a sync ended, Raft committed); these are the same for all that talk through links.
"""

from dataclasses import dataclass

from wire.messages.hello import PeerKey

__all__ = ["FrameArrived", "LinkDown", "LinkUp", "Tick"]


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A numbered frame of a peer, once and in order."""

    peer: PeerKey
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to this life of a peer stands."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class LinkDown:
    """It ended; what was not taken is kept for the next one."""

    peer: PeerKey


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""
