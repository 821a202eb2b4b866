"""Frames of links at a router's core: read, judged by who sent them; a link that no honest node uses so is closed.

What a condemned peer sent behind that is void. Rules of who may say what: ``wire/links/allowed.py``. Sans-IO.
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
    """The frames of one turn.

    Args:
        count: Counts an event by name.
        refusals: Refusals of this router.
        roster: Who is registered, and who is a router of the group.
    """

    def __init__(self, count: Callable[[str], None], refusals: Refusals, roster: Roster) -> None:
        self._count = count
        self._refusals = refusals
        self._roster = roster
        self._kinds = kinds_from(TIER_ROUTER)  # of frames, by the tier that sends them
        self._early = EarlyMessages()
        self._condemned: dict[PeerKey, str] = {}  # in this turn

    def read(self, now: float, event: FrameArrived) -> Iterator[Control]:
        """Yield the messages of a frame, up to the first that is refused, or that whoever took it found unreadable."""
        peer = event.peer
        if peer in self._condemned:
            return
        if event.kind not in self._kinds.get(peer.tier, ()) or event.kind == FrameKind.RAFT:
            self.condemn(now, peer, f"frame kind {event.kind}", TIER)
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
                self.condemn(now, peer, name_of(message), fault)
            if peer in self._condemned:
                return
            role_fault = role_fault_of(peer, message, self._roster)
            if not role_fault:
                yield message
            elif self._roster.is_over(peer):
                self._count("frames_of_dead")  # sent before it knew
            elif peer.tier == TIER_ROUTER or not self._early.keep(now, peer, message, octets):
                self._refusals.refuse(now, peer, name_of(message), role_fault)

    def registered(self, now: float) -> Iterator[tuple[PeerKey, Control]]:
        """Yield what nodes sent before this router's map had them, as soon as it has; refuse what is too old."""
        if not len(self._early):
            return
        for peer in self._early.peers():
            if self._roster.is_registered(peer):
                yield from ((peer, message) for message in self._early.take(peer))
        for peer, message in self._early.take_late(now):
            self._refusals.refuse(now, peer, name_of(message), ROLE)

    def unreadable(self, peer: PeerKey, error: Unreadable) -> None:
        """Close the link of a peer that sent what is no message, or wants such a thing handed on."""
        self._count("frames_unreadable")
        self._condemned[peer] = str(error)

    def condemn(self, now: float, peer: PeerKey, what: str, fault: str) -> None:
        """Refuse a message that no honest node sends, and close its link."""
        self._refusals.refuse(now, peer, what, fault)
        self._condemned[peer] = f"a {peer.tier} may not send this {what} ({fault})"

    def take_condemned(self) -> list[tuple[PeerKey, str]]:
        """Return the peers whose links are to be closed, each with the reason."""
        condemned = list(self._condemned.items())
        self._condemned.clear()
        return condemned
