"""Messages of edges, and those forwarded by a former primary: to their partition, to a pending queue, or refused.

A message is for one primary: that of its partition_epoch. A later epoch makes it wait for the map. An earlier one
makes it void, because another primary may have acknowledged it. A full disk refuses new messages and acknowledges
stored ones again. A full pending queue cannot distinguish these and refuses with its own code. So does this node for a
message that waited too long for its map.
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
    """The messages that arrive at one node.

    Args:
        iteration: Time, counts, frames to send.
        lease: The map, and its settled epoch.
        partitions: The partitions with this node as primary.
        early: Keeps messages for a later map.
        dead: Drops pending messages of dead senders.

    Attributes:
        full: Free disk space is below its floor: new messages are refused.
    """

    def __init__(
        self,
        iteration: Iteration,
        lease: LeaseHolder,
        partitions: Partitions,
        early: PendingUntilMap,
        dead: DeadSenders,
    ) -> None:
        self.full = False
        self._iteration = iteration
        self._lease = lease
        self._partitions = partitions
        self._early = early
        self._dead = dead
        self._handler = PublishHandler(self._get_fast_path, self._other, self._run)
        self._peer: PeerKey | None = None  # sender of the current frame
        self._in_progress: HostedPartition | None = None  # partition with an unfinished message
        self._behind: list[tuple[PeerKey, PublishMessage, int, int]] = []  # other partitions of that message
        self._left: dict[int, int] = {}  # partitions that moved away -> map epoch of the move

    @property
    def fanout_budget(self) -> int:
        """Remaining fan-out budget of this quantum, in copies, estimated."""
        return self._handler.left

    @fanout_budget.setter
    def fanout_budget(self, copies: int) -> None:
        self._handler.left = copies

    @property
    def in_progress(self) -> bool:
        """Whether a message's fan-out is in progress: call ``resume`` before the next message."""
        return self._in_progress is not None

    def resume(self) -> None:
        """Resume the fan-out of the unfinished message."""
        while (hosted := self._in_progress) is not None and self._handler.left > 0:
            self._handler.left -= hosted.delivery.resume(self._handler.left)
            if hosted.delivery.in_progress:
                return
            self._in_progress = None
            behind, self._behind = self._behind, []
            for self._peer, record, number, epoch in behind:
                self._other(record, number, epoch)

    def frame(self, peer: PeerKey, payload: bytes, begin: int = 0) -> int:
        """Process the messages of one PUBLISH frame, at least the first; return the offset of the rest.

        Args:
            peer: Its sender.
            payload: Of the frame.
            begin: Offset of the first unprocessed message; 0: none was processed.

        Raises:
            Unreadable: The frame is invalid; no message was processed.
        """
        if peer.tier == TIER_STORAGE:
            self._forwarded(peer, decode_publish(payload))
            return len(payload)
        self._peer = peer
        return self._handler.take(
            payload, begin, peer.node, peer.incarnation, self._iteration.now, self._lease.map.lease_s
        )

    def _get_fast_path(self, number: int) -> FastPathPublish | None:
        """Return a partition's fast path if it is usable now: disk not full, and no ledger."""
        hosted = self._partitions.here(number)
        if hosted is None or not hosted.takes or self._is_space_short(hosted):
            return None
        if hosted.partition.ledger is not None:
            return None
        self._partitions.touch(number, hosted)
        return hosted.fast_path

    def _other(self, record: PublishMessage, number: int, epoch: int) -> None:
        """Process a slow-path message in one of its partitions."""
        peer, hosted = self._peer, self._partitions.here(number)
        assert peer is not None
        if self._in_progress is not None:
            self._behind.append((peer, record, number, epoch))
            return
        if hosted is None and self._pass_on(number, record, peer):
            return
        if hosted is None or not hosted.takes or not hosted.is_time(epoch):
            self._at(WaitingMessage(self._iteration.now, peer, number, epoch, record))
        else:  # shortcut of ``_at`` for nearly all messages
            self._partitions.touch(number, hosted)
            self._handler.left -= self._take(hosted, record, peer, max(1, self._handler.left))
            if hosted.delivery.in_progress:
                self._in_progress = hosted

    def _run(self) -> None:
        self._iteration.count("runs_refused")  # runs are for edges

    def _forwarded(self, peer: PeerKey, records: list[PublishRun | PublishMessage]) -> None:
        for record in records:
            if isinstance(record, PublishRun):
                self._run()
                continue
            if record.tag or record.qos:
                self._iteration.condemn(peer, "message above QoS 0", TIER)  # a former primary forwards QoS 0 only
                return
            for number, epoch in zip(record.partitions, record.epochs, strict=True):
                self._at(WaitingMessage(self._iteration.now, peer, number, epoch, record))

    def waited_for_map(self, message: WaitingMessage) -> None:
        """Process a message that was pending until this node's map, unless its edge has died meanwhile."""
        if not self._dead.drops(message.peer):
            self._at(message)

    def waited_to_serve(self, hosted: HostedPartition, message: WaitingMessage) -> None:
        """Process a message that was pending until its partition serves, unless its edge has died meanwhile."""
        if message.peer.tier == TIER_STORAGE:  # forwarded by a former primary, alive or not
            self._take(hosted, message.record, message.peer)
        elif not self._dead.drops(message.peer):
            self._at(message, is_next=True)

    def _at(self, message: WaitingMessage, *, is_next: bool = False) -> None:
        """Process a message for the current epoch; one for a later epoch waits for the map.

        Another primary may have acknowledged or refused a message of an earlier epoch. Its edge sends unacknowledged
        messages again when its map changes.
        """
        number = message.partition
        hosted = self._partitions.here(number)
        if hosted is None or message.epoch > hosted.partition.epoch:
            if not self._early.keep(number, message):
                self._refuse(message.record, number, message.peer)
        elif message.epoch < hosted.partition.since:
            self._iteration.count("publishes_of_former_times")
        else:
            self._to(hosted, message, is_next=is_next)

    def _to(self, hosted: HostedPartition, message: WaitingMessage, *, is_next: bool) -> None:
        number, peer, record = message.partition, message.peer, message.record
        self._partitions.touch(number, hosted)
        if peer.tier == TIER_STORAGE:  # forwarded: older than all messages that its edge sent here
            if hosted.serving or not hosted.waiting.keep_forwarded(message):
                self._iteration.count("passed_on_late")
        elif is_next or hosted.takes:
            self._take(hosted, record, peer)
        elif not hosted.wait_to_serve(message):
            self._refuse_here(hosted, message)

    def refuse_overdue(self, overdue: Iterable[Early]) -> None:
        """Refuse pending messages that waited too long for this node's map: the edge closes their connections."""
        for message in overdue:
            if not isinstance(message, WaitingMessage) or self._dead.drops(message.peer):
                continue
            hosted = self._partitions.hosted.get(message.partition)
            if hosted is not None:
                self._refuse_here(hosted, message)
            else:
                self._refuse(message.record, message.partition, message.peer)

    def _refuse_here(self, hosted: HostedPartition, message: WaitingMessage) -> None:
        """Refuse a message, and pending ones of its publisher's older connections.

        Later messages of this connection are refused as well, because this message may be sent again after them.
        """
        record, now = message.record, self._iteration.now
        hosted.publishers.observe(record.session, record.owner_epoch, now, self._lease.map.lease_s)
        if record.qos:
            hosted.publishers.refused(record.session, record.owner_epoch, now)
        self._refuse(record, message.partition, message.peer)

    def _take(self, hosted: HostedPartition, record: PublishMessage, peer: PeerKey, most: int = COPIES_ALL) -> int:
        """Publish a message in its partition, unless the disk is full; return the number of its copies.

        A stored message is acknowledged again.
        """
        if self._is_space_short(hosted) and self._is_refused_for_space(hosted, record, peer):
            self._iteration.count("refused_store_full")
            self._answer(record, hosted.partition.number, peer, ReasonCode.SERVER_BUSY)
            return 0
        return hosted.publish(record, peer, most)

    def _is_space_short(self, hosted: HostedPartition) -> bool:
        """Return whether the disk is full, or was so lately that successors of a refused message may still arrive."""
        return self.full or hosted.publishers.refuses(self._iteration.now, self._lease.map.lease_s)

    def _is_refused_for_space(self, hosted: HostedPartition, record: PublishMessage, peer: PeerKey) -> bool:
        """Return whether a message is refused for lack of disk space or follows a refused one; record the first."""
        publishers, session, owner_epoch, now = (
            hosted.publishers,
            record.session,
            record.owner_epoch,
            self._iteration.now,
        )
        lease_s = self._lease.map.lease_s
        if hosted.delivery.origins.is_repeat(record, peer.node, peer.incarnation):
            return False
        if publishers.observe(session, owner_epoch, now, lease_s):
            return False  # the partition drops it
        if not self.full:
            return record.qos > 0 and publishers.settle_refused(session, owner_epoch, now, lease_s)
        if record.qos:
            publishers.refused(session, owner_epoch, now)
        return True

    def _refuse(self, record: PublishMessage, number: int, peer: PeerKey) -> None:
        """Refuse with a reply a message that cannot wait for its partition.

        Dropped silently, it would pass for a repeat. A former primary may have committed it, and its origin cannot be
        checked yet. So the client gets no PUBACK that reports a refusal.
        """
        self._iteration.count("refused_not_serving")
        self._answer(record, number, peer, ReasonCode.SERVER_UNAVAILABLE)

    def _answer(self, record: PublishMessage, number: int, peer: PeerKey, reason_code: int) -> None:
        if record.tag:
            refusal = encode_publish_ack(record.tag, number, reason_code)
            self._iteration.sends.append((peer.node, FrameKind.PUBLISH_ACK, refusal))

    # --- partitions that moved from here

    def note_left(self, numbers: Iterable[int], map_epoch: int) -> None:
        """Record the partitions that other nodes serve by this map; those that came back are removed."""
        self._left = {number: epoch for number, epoch in self._left.items() if number not in self._partitions.hosted}
        self._left |= dict.fromkeys(sorted(numbers), map_epoch)

    def _pass_on(self, number: int, record: PublishMessage, peer: PeerKey) -> bool:
        """Forward a QoS 0 message to the new primary of a moved partition: its edge does not send it again.

        Done until the map epoch of the move is settled, because then every edge knows it. QoS 1 and 2 are sent again.
        """
        if record.tag or number not in self._left or peer.tier != TIER_EDGE or self._iteration.fenced:
            return False
        placement = self._lease.map.partitions[number]
        if not placement.primary or self._lease.settled_epoch >= self._left[number]:
            return False
        self._iteration.count("passed_on")
        moved = replace(record, partitions=(number,), epochs=(placement.epoch,))
        self._iteration.sends.append((placement.primary, FrameKind.PUBLISH, encode_message(moved)))
        return True
