"""The current iteration of a storage node's loop: time, frames to send, counts, refusals.

Components take an ``Iteration`` and their own collaborators, never the core that joins them.
"""

from storage.state.partition import Output
from wire.links.refusals import Refusals
from wire.messages.control import Control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.orders import OrderNode

__all__ = ["Iteration"]


class Iteration:
    """Time and outputs of one node.

    Invariants: ``now`` never decreases; frames to one node leave in call order; no method calls back.

    Attributes:
        now: Monotonic seconds.
        fenced: The node has no lease: no output of a partition may leave, and served clocks are stopped.
        sends: Frames that leave with this iteration.
        condemned: Peers that violated the protocol in this iteration, and how; their links are closed.
        counts: Events of this node by name.
        orders: Of operators, with the routers that forwarded them.
    """

    __slots__ = ("_refusals", "condemned", "counts", "fenced", "now", "orders", "sends")

    def __init__(self, now: float) -> None:
        self.now = now
        self.fenced = True
        self.sends: list[Output] = []
        self.condemned: dict[PeerKey, str] = {}
        self.counts: dict[str, int] = {}
        self.orders: list[tuple[str, OrderNode]] = []
        self._refusals = Refusals(self.count)

    def count(self, what: str) -> None:
        """Count an event of this node."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def send_control(self, node: str, message: Control) -> bool:
        """Send a control message without uncommitted state; returns True, as the lease holder requires."""
        self.sends.append((node, FrameKind.CONTROL, encode_control(message)))
        return True

    def refuse(self, peer: PeerKey, what: str, fault: str, *, early: bool = False) -> None:
        """Refuse a message, count it and log it at a limited rate; its link stays open."""
        self._refusals.refuse(self.now, peer, what, fault, early=early)

    def condemn(self, peer: PeerKey, what: str, fault: str) -> None:
        """Refuse a message that no correct node sends, and close its link."""
        self.refuse(peer, what, fault)
        self.condemned[peer] = f"a {peer.tier} may not send this {what} ({fault})"

    def take_sends(self) -> list[Output]:
        """Return the frames of this iteration, and reset the list."""
        taken, self.sends = self.sends, []
        return taken

    def take_orders(self) -> list[tuple[str, OrderNode]]:
        """Return (router, order) of orders to this node."""
        taken, self.orders = self.orders, []
        return taken

    def take_condemned(self) -> list[tuple[PeerKey, str]]:
        """Return the peers to disconnect, and the reason for each."""
        taken, self.condemned = list(self.condemned.items()), {}
        return taken
