"""Messages of edges, and those that a former primary passes on: to their partition, into a waiting room, or refused.

A message is for the time of one primary: that of its partition_epoch. For a later time it waits for the map; of an
earlier one it is dropped, because another primary may have answered it. A full disk refuses new messages and
acknowledges again those that stand already. A full waiting room cannot tell them apart, and says so. So does this node
about a message that waited too long for its map.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from mqtt.reasons import ReasonCode
from storage.hosting.hosted_partition import HostedPartition
from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions
from storage.hosting.pending_until_map import Early, PendingUntilMap
from storage.hosting.pending_until_serving import WaitingMessage
from storage.incoming.dead_senders import DeadSenders
from storage.messages.delivery import COPIES_ALL
from storage.messages.fast_path_publish import FastPathPublish, PublishHandler
from wire.links.allowed import TIER
from wire.messages.batches import PublishMessage, PublishRun, decode_publish, encode_message, encode_publish_ack
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_STORAGE, PeerKey
from wire.node.lease_holder import LeaseHolder

__all__ = ["StoragePublishing"]


class StoragePublishing:
    """The messages that come to one node.

    Args:
        turn: Time, counts, frames to send.
        lease: The map, and which of its epochs is settled.
        partitions: Those whose primary is this node.
        early: Keeps messages for a later map.
        dead: Judges senders whose messages waited.

    Attributes:
        full: The disk is below its floor: new messages are refused.
    """

    def __init__(
        self, turn: Iteration, lease: LeaseHolder, partitions: Partitions, early: PendingUntilMap, dead: DeadSenders
    ) -> None:
        self.full = False
        self._turn = turn
        self._lease = lease
        self._partitions = partitions
        self._early = early
        self._dead = dead
        self._taker = PublishHandler(self._lane, self._other, self._run)
        self._peer: PeerKey | None = None  # whose frame is being taken
        self._unfinished: HostedPartition | None = None  # has a message at hand whose last receivers have no copy yet
        self._behind: list[tuple[PeerKey, PublishMessage, int, int]] = []  # other partitions of that message
        self._left: dict[int, int] = {}  # partitions that moved from here -> the map epoch that said so

    @property
    def copies_left(self) -> int:
        """Copies of messages that may still be made in this go, about."""
        return self._taker.left

    @copies_left.setter
    def copies_left(self, copies: int) -> None:
        """Begin a go."""
        self._taker.left = copies

    @property
    def unfinished(self) -> bool:
        """Whether a message is in the middle of its receivers: nothing may be taken, or closed, before ``go_on``."""
        return self._unfinished is not None

    def go_on(self) -> None:
        """Give the message that the go before was in the middle of to its next receivers."""
        while (hosted := self._unfinished) is not None and self._taker.left > 0:
            self._taker.left -= hosted.delivery.go_on(self._taker.left)
            if hosted.delivery.unfinished:
                return
            self._unfinished = None
            behind, self._behind = self._behind, []
            for self._peer, record, number, epoch in behind:
                self._other(record, number, epoch)

    def frame(self, peer: PeerKey, payload: bytes, begin: int = 0) -> int:
        """Take the messages of one PUBLISH frame, at least the first; return where those begin that are left.

        Args:
            peer: Its sender.
            payload: Of the frame.
            begin: Where those begin that were left before; 0: nothing of it was looked at.

        Raises:
            Unreadable: It is none; nothing of it was taken.
        """
        if peer.tier == TIER_STORAGE:
            self._passed_on(peer, decode_publish(payload))
            return len(payload)
        self._peer = peer
        return self._taker.take(payload, begin, peer.node, peer.incarnation, self._turn.now, self._lease.map.lease_s)

    def _lane(self, number: int) -> FastPathPublish | None:
        """Return the lane of a partition that takes plain messages now: there is room, and no ledger."""
        hosted = self._partitions.here(number)
        if hosted is None or not hosted.takes or self._is_short(hosted):
            return None
        if hosted.partition.ledger is not None:
            return None
        self._partitions.touch(number, hosted)
        return hosted.lane

    def _other(self, record: PublishMessage, number: int, epoch: int) -> None:
        """Take a message that is not plain into one of its partitions."""
        peer, hosted = self._peer, self._partitions.here(number)
        assert peer is not None
        if self._unfinished is not None:
            self._behind.append((peer, record, number, epoch))
            return
        if hosted is None and self._pass_on(number, record, peer):
            return
        if hosted is None or not hosted.takes or not hosted.is_time(epoch):
            self._at(WaitingMessage(self._turn.now, peer, number, epoch, record))
        else:  # what ``_at`` would come to, for nearly all messages
            self._partitions.touch(number, hosted)
            self._taker.left -= self._take(hosted, record, peer, max(1, self._taker.left))
            if hosted.delivery.unfinished:
                self._unfinished = hosted

    def _run(self) -> None:
        self._turn.count("runs_refused")  # runs are for edges

    def _passed_on(self, peer: PeerKey, records: list[PublishRun | PublishMessage]) -> None:
        for record in records:
            if isinstance(record, PublishRun):
                self._run()
                continue
            if record.tag or record.qos:
                self._turn.condemn(peer, "message above QoS 0", TIER)  # a former primary passes on QoS 0 only
                return
            for number, epoch in zip(record.partitions, record.epochs, strict=True):
                self._at(WaitingMessage(self._turn.now, peer, number, epoch, record))

    def waited_for_map(self, message: WaitingMessage) -> None:
        """Take a message that waited for this node's map, unless its edge has died meanwhile."""
        if not self._dead.drops(message.peer):
            self._at(message)

    def waited_to_serve(self, hosted: HostedPartition, message: WaitingMessage) -> None:
        """Take a message that waited until its partition serves, unless its edge has died meanwhile."""
        if message.peer.tier == TIER_STORAGE:  # a former primary passed it on, whatever became of that since
            self._take(hosted, message.record, message.peer)
        elif not self._dead.drops(message.peer):
            self._at(message, its_turn=True)

    def _at(self, message: WaitingMessage, *, its_turn: bool = False) -> None:
        """Take a message for the present time of this node as primary; for a later one it waits for the map.

        What was meant for an earlier time may have been answered by another primary meanwhile, even refused: its edge
        sends again what is not answered when its map moves.
        """
        number = message.partition
        hosted = self._partitions.here(number)
        if hosted is None or message.epoch > hosted.partition.epoch:
            if not self._early.keep(number, message):
                self._refuse(message.record, number, message.peer)
        elif message.epoch < hosted.partition.since:
            self._turn.count("publishes_of_former_times")
        else:
            self._to(hosted, message, its_turn=its_turn)

    def _to(self, hosted: HostedPartition, message: WaitingMessage, *, its_turn: bool) -> None:
        number, peer, record = message.partition, message.peer, message.record
        self._partitions.touch(number, hosted)
        if peer.tier == TIER_STORAGE:  # passed on: older than all that its edge sent here
            if hosted.serving or not hosted.waiting.keep_passed_on(message):
                self._turn.count("passed_on_late")
        elif its_turn or hosted.takes:
            self._take(hosted, record, peer)
        elif not hosted.wait_to_serve(message):
            self._refuse_here(hosted, message)

    def refuse_overdue(self, overdue: Iterable[Early]) -> None:
        """Refuse the messages among what waited too long for this node's map: the edge ends their connections."""
        for message in overdue:
            if not isinstance(message, WaitingMessage) or self._dead.drops(message.peer):
                continue
            hosted = self._partitions.hosted.get(message.partition)
            if hosted is not None:
                self._refuse_here(hosted, message)
            else:
                self._refuse(message.record, message.partition, message.peer)

    def _refuse_here(self, hosted: HostedPartition, message: WaitingMessage) -> None:
        """Refuse a message, and so what an older connection of its publisher sent, and waits here.

        What follows on this connection is refused as well, for the message may come again behind it.
        """
        record, now = message.record, self._turn.now
        hosted.publishers.hear(record.session, record.owner_epoch, now, self._lease.map.lease_s)
        if record.qos:
            hosted.publishers.refused(record.session, record.owner_epoch, now)
        self._refuse(record, message.partition, message.peer)

    def _take(self, hosted: HostedPartition, record: PublishMessage, peer: PeerKey, most: int = COPIES_ALL) -> int:
        """Hand a message to its partition, unless the disk is full; return how many copies it has there.

        One that stands already is acknowledged again.
        """
        if self._is_short(hosted) and self._refuse_for_room(hosted, record, peer):
            self._turn.count("refused_store_full")
            self._answer(record, hosted.partition.number, peer, ReasonCode.SERVER_BUSY)
            return 0
        return hosted.publish(record, peer, most)

    def _is_short(self, hosted: HostedPartition) -> bool:
        """Whether the disk is full, or was so lately that what follows a refused message may still come."""
        return self.full or hosted.publishers.refuses(self._turn.now, self._lease.map.lease_s)

    def _refuse_for_room(self, hosted: HostedPartition, record: PublishMessage, peer: PeerKey) -> bool:
        """Return whether a message finds no room, or follows one that found none; note the first of them."""
        publishers, session, owner_epoch, now = hosted.publishers, record.session, record.owner_epoch, self._turn.now
        lease_s = self._lease.map.lease_s
        if hosted.delivery.origins.is_repeat(record, peer.node, peer.incarnation):
            return False
        if publishers.hear(session, owner_epoch, now, lease_s):
            return False  # the partition says so
        if not self.full:
            return record.qos > 0 and publishers.settle_refused(session, owner_epoch, now, lease_s)
        if record.qos:
            publishers.refused(session, owner_epoch, now)
        return True

    def _refuse(self, record: PublishMessage, number: int, peer: PeerKey) -> None:
        """Refuse to keep a message until its partition serves, aloud: dropped in silence it would pass for a repeat.

        A former primary may have committed it, and its origin cannot be asked yet: nobody may be told that it was
        refused.
        """
        self._turn.count("refused_not_serving")
        self._answer(record, number, peer, ReasonCode.SERVER_UNAVAILABLE)

    def _answer(self, record: PublishMessage, number: int, peer: PeerKey, reason_code: int) -> None:
        if record.tag:
            refusal = encode_publish_ack(record.tag, number, reason_code)
            self._turn.sends.append((peer.node, FrameKind.PUBLISH_ACK, refusal))

    # --- partitions that moved from here

    def note_left(self, numbers: Iterable[int], map_epoch: int) -> None:
        """Note the partitions that other nodes serve by this map; those that came back are forgotten."""
        self._left = {number: epoch for number, epoch in self._left.items() if number not in self._partitions.hosted}
        self._left |= dict.fromkeys(sorted(numbers), map_epoch)

    def _pass_on(self, number: int, record: PublishMessage, peer: PeerKey) -> bool:
        """Send QoS 0 for a partition that has just moved from here on to where it is: its edge does not send it again.

        Until the map epoch of the move is settled: after that every edge knows. QoS 1 and 2 are sent again.
        """
        if record.tag or number not in self._left or peer.tier != TIER_EDGE or self._turn.fenced:
            return False
        placement = self._lease.map.partitions[number]
        if not placement.primary or self._lease.settled_epoch >= self._left[number]:
            return False
        self._turn.count("passed_on")
        moved = replace(record, partitions=(number,), epochs=(placement.epoch,))
        self._turn.sends.append((placement.primary, FrameKind.PUBLISH, encode_message(moved)))
        return True
