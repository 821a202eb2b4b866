"""Frames of links at a router's core: decoded, and validated against their sender; a violation closes the link.

Later frames of such a peer are dropped. ``wire/links/allowed.py`` holds the rules for each sender. Sans-IO.
"""

from collections.abc import Callable, Iterator

from router.early_messages import EarlyMessages
from wire.decoding import Unreadable
from wire.links.allowed import ROLE, TIER, fault_of, kinds_from, role_fault_of
from wire.links.refusals import Refusals
from wire.links.roster import Roster
from wire.messages.control import Control, decode_control, decode_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_ROUTER, PeerKey
from wire.messages.message import name_of
from wire.node.events import FrameArrived

__all__ = ["FrameGate"]


class FrameGate:
    """Validation of the frames of one iteration.

    Args:
        count: Counts an event by name.
        refusals: Refusals of this router.
        roster: Registered nodes, and routers of the group.
    """

    def __init__(self, count: Callable[[str], None], refusals: Refusals, roster: Roster) -> None:
        self._count = count
        self._refusals = refusals
        self._roster = roster
        self._kinds = kinds_from(TIER_ROUTER)  # of frames, by the sender's tier
        self._early = EarlyMessages()
        self._violations: dict[PeerKey, str] = {}  # in this iteration

    def read(self, now: float, event: FrameArrived) -> Iterator[Control]:
        """Yield the messages of a frame, up to the first one that is refused or that its handler cannot decode."""
        peer = event.peer
        if peer in self._violations:
            return
        if event.kind not in self._kinds.get(peer.tier, ()) or event.kind == FrameKind.RAFT:
            self.reject(now, peer, f"frame kind {event.kind}", TIER)
            return
        try:
            payload = event.payload
            messages = [decode_control(payload)] if event.kind == FrameKind.CONTROL else decode_controls(payload)
        except Unreadable as error:
            self.unreadable(peer, error)
            return
        octets = len(event.payload) // max(1, len(messages))
        for message in messages:
            fault = fault_of(peer, TIER_ROUTER, message)
            if fault:
                self.reject(now, peer, name_of(message), fault)
            if peer in self._violations:
                return
            role_fault = role_fault_of(peer, message, self._roster)
            if not role_fault:
                yield message
            elif self._roster.is_over(peer):
                self._count("frames_of_dead")  # the sender did not know yet that it was declared dead
            elif peer.tier == TIER_ROUTER or not self._early.add(now, peer, message, octets):
                self._refusals.refuse(now, peer, name_of(message), role_fault)

    def registered(self, now: float) -> Iterator[tuple[PeerKey, Control]]:
        """Yield early messages of nodes that the map now contains; refuse those that timed out."""
        if not len(self._early):
            return
        for peer in self._early.peers():
            if self._roster.is_registered(peer):
                yield from ((peer, message) for message in self._early.take(peer))
        for peer, message in self._early.take_late(now):
            self._refusals.refuse(now, peer, name_of(message), ROLE)

    def unreadable(self, peer: PeerKey, error: Unreadable) -> None:
        """Close the link of a peer whose message, or relayed message, cannot be decoded."""
        self._count("frames_unreadable")
        self._violations[peer] = str(error)

    def reject(self, now: float, peer: PeerKey, what: str, fault: str) -> None:
        """Refuse a message that violates the protocol, and close its link."""
        self._refusals.refuse(now, peer, what, fault)
        self._violations[peer] = f"a {peer.tier} may not send this {what} ({fault})"

    def take_violations(self) -> list[tuple[PeerKey, str]]:
        """Return the peers whose links must be closed, each with the reason."""
        violations = list(self._violations.items())
        self._violations.clear()
        return violations
