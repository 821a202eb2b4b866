"""Dispatch of other nodes' frames by their kind, without interpreting their content.

A frame kind that the tier may not send closes the link, and so does an unreadable frame. Later frames of that peer in
the same iteration are discarded.
"""

from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions
from storage.hosting.placements import Placements
from storage.incoming.connects import Connects
from storage.incoming.control import ControlMessages
from storage.incoming.dead_senders import DeadSenders
from storage.incoming.publishing import StoragePublishing
from storage.incoming.requests import Requests
from wire.decoding import Unreadable
from wire.links.allowed import TIER, kinds_from
from wire.messages.connects import decode_connects
from wire.messages.control import decode_control, decode_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_STORAGE, PeerKey
from wire.messages.message import name_of
from wire.messages.replication import AppendAck, decode_replica_message
from wire.node.events import FrameArrived

__all__ = ["Frames"]

# They affect partitions only, and no other work of an iteration.
OF_PARTITIONS = frozenset((FrameKind.PUBLISH, FrameKind.PUSH_ACK, FrameKind.REPLICATE, FrameKind.REPLICATE_ACK))


class Frames:
    """The frame dispatcher of one node.

    Attributes:
        of_partitions: All frames since this was set are messages, acknowledgements or replication.
    """

    def __init__(
        self,
        iteration: Iteration,
        placements: Placements,
        partitions: Partitions,
        dead: DeadSenders,
        control: ControlMessages,
        connects: Connects,
        publishing: StoragePublishing,
        requests: Requests,
    ) -> None:
        self.of_partitions = False
        self._iteration = iteration
        self._placements = placements
        self._partitions = partitions
        self._dead = dead
        self._control = control
        self._connects = connects
        self._publishing = publishing
        self._requests = requests
        self._kinds = kinds_from(TIER_STORAGE)  # of frames, by the tier that sends them

    def take(self, peer: PeerKey, kind: int, payload: bytes, begin: int) -> list[FrameArrived]:
        """Process a frame; return the rest of a frame of messages if the fan-out budget was used.

        Args:
            peer: The sender.
            kind: Of the frame.
            payload: Whole.
            begin: Offset of the first unprocessed message.
        """
        if self._dead.drops(peer) or (self._iteration.condemned and peer in self._iteration.condemned):
            return []  # frames after a broken one are discarded
        if kind not in OF_PARTITIONS:
            self.of_partitions = False
        try:
            if kind not in self._kinds.get(peer.tier, ()):
                self._iteration.condemn(peer, f"frame kind {kind}", TIER)
            elif kind == FrameKind.CONTROL:
                self._control.take(peer, decode_control(payload))
            elif kind == FrameKind.CONTROLS:
                self._controls(peer, payload)
            elif kind == FrameKind.CONNECTS:
                self._connects.take(peer, decode_connects(payload))
            elif kind == FrameKind.PUBLISH:
                end = self._publishing.frame(peer, payload, begin)
                return [FrameArrived(peer, kind, payload, end)] if end < len(payload) else []
            elif kind == FrameKind.PUSH_ACK:
                self._requests.push_acks(peer, payload)
            else:
                self._replica_message(peer, kind, payload)
        except Unreadable as error:
            self._iteration.count("frames_unreadable")
            self._iteration.condemned[peer] = str(error)
        return []

    def _controls(self, peer: PeerKey, payload: bytes) -> None:
        for message in decode_controls(payload):
            self._control.take(peer, message)
            if peer in self._iteration.condemned:
                return

    def _replica_message(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        message = decode_replica_message(payload)
        if isinstance(message, AppendAck) != (kind == FrameKind.REPLICATE_ACK):
            self._iteration.condemn(peer, f"{name_of(message)} in frame kind {kind}", TIER)
            return
        hosted, refused = self._placements.take(peer.node, message, self._iteration.now)
        if refused:
            self._iteration.refuse(peer, name_of(message), "placement")
        if hosted is not None:
            self._partitions.touch(hosted.partition.number, hosted)
