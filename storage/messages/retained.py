"""Retained messages of a partition: one linearizable value per topic, on disk, matched by topic filter.

Topics are in memory (``TopicIndex``), payloads are not. A row has the origin of its message, which separates a copy
read for a new subscription from the live one. Delivery to a durable session goes through its queue.
"""

from collections.abc import Mapping
from sys import intern

from mqtt.reasons import ReasonCode
from mqtt.topic_index import MatchPage, TopicIndex
from storage.messages.delivery import PartitionDelivery
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import ENTRY_OVERHEAD_BYTES, NEVER, STATE_QUEUED, QueueEntry, RetainedRow, pack, unpack
from storage.state.timers import ExpireRetained
from storage.state.user_sums import Retained, add_retained
from wire.messages.batches import NO_EXPIRY, PublishMessage
from wire.messages.retained import DeliverRetained, ReadRetained, RetainedDelivered, RetainedMessage, RetainedPage

__all__ = ["RetainedStore"]

Known = tuple[int, int, int, str]  # bytes, deadline, body id, publishing user


class RetainedStore:
    """Retained messages of one partition."""

    def __init__(self, partition: Partition, delivery: PartitionDelivery) -> None:
        self._partition = partition
        self._delivery = delivery
        self._topics: TopicIndex[Known] = TopicIndex()
        self._owned: dict[str, Retained] = {}  # by publishing user; messages without a user are not counted
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._topics)

    def restore(self, row: RetainedRow) -> None:
        """Restore a topic's retained message from disk."""
        size = self._delivery.bodies.size(row.body) if row.body else len(row.payload)
        self._index(row.topic, size, row.deadline, row.body, row.owner)

    def _index(self, topic: str, size: int, deadline: int, body: int, owner: str) -> None:
        self._topics.add(topic, (size, deadline, body, intern(owner)))
        self.payload_bytes += size
        if owner:
            self._count(owner, 1, size)
        if deadline != NEVER:
            self._partition.set_timer(deadline, ExpireRetained(topic))

    def _unindex(self, topic: str) -> None:
        known = self._topics.get(topic)
        if known is not None:
            self._topics.remove(topic)
            self.payload_bytes -= known[0]
            if known[3]:
                self._count(known[3], -1, -known[0])
            if known[2]:
                self._delivery.bodies.release(known[2])

    def _count(self, owner: str, topics: int, payload_bytes: int) -> None:
        add_retained(self._owned, owner, topics, payload_bytes)
        self._partition.sums.add_retained(owner, topics, payload_bytes)

    def refusal(self, message: PublishMessage) -> int:
        """Return 0, or the reason code that refuses a retained message: too large, store full, or user limit reached.

        A topic that another user takes over counts as one more topic of that user, with all its bytes.
        """
        settings = self._partition.settings
        known = self._topics.get(message.topic.decode())
        if not message.payload:
            return 0
        if message.owner and (setting := self._limit_of_user(message, known)):
            self._partition.count("refused_retained_user")
            self._partition.note("refused", setting, topic=message.topic)
            return ReasonCode.QUOTA_EXCEEDED
        if 0 < settings.retained_payload_max < len(message.payload):
            self._partition.count("refused_retained_payload")
            self._partition.note("refused", "retained_payload_max", topic=message.topic)
            return ReasonCode.QUOTA_EXCEEDED
        growth = len(message.payload) - (known[0] if known is not None else 0)
        is_full = known is None and len(self._topics) >= settings.retained_messages_max
        if is_full or (growth > 0 and self.payload_bytes + growth > settings.retained_bytes_max):
            self._partition.count("refused_retained_full")
            self._partition.note("refused", "retained_full", topic=message.topic)
            return ReasonCode.QUOTA_EXCEEDED
        return 0

    def _limit_of_user(self, message: PublishMessage, known: Known | None) -> str:
        """Return the name of the user limit that a message exceeds, in this partition or in all; "" if none."""
        owner, partition = message.owner.decode(), self._partition
        growth = len(message.payload)
        if known is not None and known[3] == owner:
            growth -= known[0]
        else:
            if self._owned.get(owner, Retained()).topics >= partition.settings.retained_per_user_max:
                return "retained_per_user_max"
            if message.owner_max and partition.sums.retained(owner, partition.now) >= message.owner_max:
                return "retained_user_max"
        most = message.owner_bytes_max
        if growth > 0 and most and not partition.sums.is_within_limit(owner, growth, most, partition.now):
            return "retained_bytes_user_max"
        return ""

    @property
    def owned(self) -> Mapping[str, Retained]:
        """Retained topics and bytes by publishing user."""
        return self._owned

    def store(self, message: PublishMessage, incarnation: int) -> None:
        """Set a topic's retained message; an empty payload clears it [MQTT-3.3.1-6]."""
        partition = self._partition
        topic = message.topic.decode()
        if not message.payload and topic in self._topics:
            partition.note("purge", "retained", topic=message.topic)
        self._unindex(topic)
        if not message.payload:
            partition.delete(keys.retained_key(partition.number, topic))
            return
        deadline = NEVER if message.expiry_s == NO_EXPIRY else partition.deadline_in(message.expiry_s)
        large = len(message.payload) > partition.settings.piece_bytes
        row = RetainedRow(
            topic,
            b"" if large else message.payload,
            message.qos,
            message.properties,
            deadline,
            message.origin_kind,
            message.origin_a or incarnation,
            message.origin_b or message.tag,
            partition.meta.op_index + 1,
            self._delivery.bodies.store(message.payload, 1) if large else 0,
            message.owner.decode(),
            message.owner_made,
            partition.served_ms,
        )
        partition.put(keys.retained_key(partition.number, topic), pack(row))
        self._index(topic, len(message.payload), deadline, row.body, row.owner)

    def expire(self, topic: str) -> None:
        """Delete a topic's message if its deadline has passed; it may have been replaced since."""
        known = self._topics.get(topic)
        if known is not None and known[1] != NEVER and known[1] <= self._partition.served_ms:
            self._unindex(topic)
            self._partition.delete(keys.retained_key(self._partition.number, topic))
            self._partition.count("retained_expired")

    def page(self, topic_filter: str, after: str | None, visits_max: int) -> MatchPage[Known]:
        """Return topics that match a filter, each with its index entry."""
        return self._topics.page(topic_filter, after=after, visits_max=visits_max)

    def topics(self, after: str | None, count: int) -> tuple[list[str], str | None]:
        """Return up to ``count`` topics after ``after``, in order, and the cursor of the next page; None at the end."""
        return self._topics.topics(after, count)

    def known(self, topic: str) -> Known | None:
        """Return the index entry of a topic's retained message, without reading its row."""
        return self._topics.get(topic)

    def message(self, topic: str, deadline: int) -> RetainedMessage | None:
        """Return the retained message of a topic with its remaining lifetime; None if it expired."""
        partition = self._partition
        expiry_s = NO_EXPIRY
        if deadline != NEVER:
            expiry_s = (deadline - partition.served_ms + 999) // 1000
            if expiry_s <= 0:
                return None
        value = partition.get(keys.retained_key(partition.number, topic))
        if value is None:
            return None
        row = unpack(RetainedRow, value)
        payload = self._delivery.bodies.read(row.body) if row.body else row.payload
        return RetainedMessage(
            topic,
            payload,
            row.qos,
            row.properties,
            expiry_s,
            row.origin_kind,
            row.origin_a,
            row.origin_b,
            row.owner,
            row.owner_made,
        )

    def read(self, request: ReadRetained, edge: str) -> None:
        """Send the retained message of a topic; a filter with a wildcard takes a ``RetainedScan``."""
        known = self._topics.get(request.topic_filter)
        message = self.message(request.topic_filter, known[1]) if known is not None else None
        found = [message] if message is not None and not request.after else []
        self._partition.send_control(edge, RetainedPage(request.request, found, False, self._partition.number))

    def deliver(self, request: DeliverRetained, edge: str) -> None:
        """Queue retained copies for a durable session; the last request ends the hold of its live messages.

        A new primary does not know which live messages a read of the former primary missed: that read has to restart.
        """
        partition = self._partition
        session = partition.sessions.get(request.session)
        taken = len(request.messages)  # an ended session needs no copies
        if session is not None and session.owner_epoch == request.owner_epoch:
            if request.read == request.request:
                self._delivery.outbound.hold(session, request.read)
            if session.reads is None or request.read not in session.reads:
                partition.send_control(edge, RetainedDelivered(request.request, again=bool(request.messages)))
                return
            if not session.reads.take_request(request.read, request.request):
                taken = session.reads.taken(request.read, request.request)
            else:
                taken = self._deliver(session, request)
                session.reads.note_taken(request.read, request.request, taken)
            if request.done:
                self._delivery.outbound.end_hold(session, request.read)
            elif taken < len(request.messages):
                self._delivery.outbound.end_holds(session)
        partition.send_control(edge, RetainedDelivered(request.request, taken=taken))

    def _deliver(self, session: DurableSession, request: DeliverRetained) -> int:
        """Queue or send copies until the queue is full; return how many of them, from the first, are done."""
        partition = self._partition
        assert session.reads is not None, "no read is in progress"
        for taken, message in enumerate(request.messages):
            size = len(message.topic) + len(message.payload) + len(message.properties) + ENTRY_OVERHEAD_BYTES
            if message.qos and not self._delivery.can_queue_copy(session, size):
                partition.count("retained_copies_waited")
                return taken
            if session.reads.is_older(request.read, message.topic.encode()):
                partition.count("retained_overtaken")
                continue  # a newer value of this topic was received live
            if self._delivery.is_overtaken(session, message):
                partition.count("retained_overtaken")
                continue
            if message.qos == 0:
                self._delivery.outbound.push_retained(session, message)
                continue
            self._delivery.remember_retained(session, message, request.identifier)
            deadline = NEVER if message.expiry_s == NO_EXPIRY else partition.deadline_in(message.expiry_s)
            self._delivery.enqueue_copy(
                session,
                QueueEntry(
                    session.next_seq,
                    message.topic.encode(),
                    message.payload,
                    message.properties,
                    message.qos,
                    True,
                    deadline,
                    0,
                    STATE_QUEUED,
                    message.origin_kind,
                    message.origin_a,
                    message.origin_b,
                ),
            )
        return len(request.messages)
