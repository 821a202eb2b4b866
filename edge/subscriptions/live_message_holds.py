"""Live messages of a new subscription, held until its retained messages are sent (ephemeral sessions).

During the retained read the loop passes copies for the subscription's topics here, as records, and delivers them after
their release. All holds of a client share one order. A topic's messages are held while any of its filters is, so the
end of one hold cannot reorder the messages of another. A message found both live and retained is sent once. After the
deadline of a long read messages are released, and their topics are stored: later copies of the read are older than
these. Bounded for each ephemeral session; a durable session's live messages stay in its queue instead.
Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md rule 7.4; docs/adr/0033-held-copies.md.
"""

from edge.clients.client import Client
from edge.loop.layout import HELD, HELD_FULL, NOT_HELD
from edge.loop.state import LoopConnection, Sub
from edge.node.node import EdgeNode
from edge.node.ports import RetainedCopySource
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import EphemeralSubscriptions
from edge.subscriptions.sys_scope import is_routed
from mqtt.topic_trie import TopicTrie
from wire.messages.batches import PublishMessage, decode_publish
from wire.messages.overlapping import identifiers_of
from wire.messages.retained import RetainedMessage
from wire.messages.sessions import SessionSubscription

__all__ = ["Hold", "LiveMessageHolds"]

CLIENT_BYTES_MAX = 1024 * 1024  # held for one client; more end the hold
EDGE_BYTES_MAX = 32 * 1024 * 1024  # of all clients; more end the holds of those with more than their share
COPY_OVERHEAD_BYTES = 1024  # memory of a copy besides its record, rounded up
COPY_BYTES = 32  # of a written copy besides its record, at most
TOPICS_MAX = 10_000  # stored for one client; beyond it a late copy of any topic counts as older


class Hold:
    """One SUBSCRIBE's retained reads, and the filters held for them."""

    __slots__ = ("client", "deadline", "late", "read", "topic_filters")

    def __init__(self, client: Client, topic_filters: list[str], deadline: float) -> None:
        self.client = client
        self.topic_filters = set(topic_filters)  # without those unsubscribed meanwhile
        self.deadline = deadline
        self.late = False  # messages are released before the end of the read
        self.read = False  # the read has ended; held messages are sent as the client accepts them

    @property
    def passes(self) -> bool:
        """Return whether its messages go out."""
        return self.late or self.read


class HeldCopy:
    """One copy of a message."""

    __slots__ = ("record", "since", "sub", "topic")

    def __init__(self, since: float, sub: Sub, topic: bytes, record: bytes) -> None:
        self.since = since
        self.sub = sub
        self.topic = topic
        self.record = record

    @property
    def size(self) -> int:
        """Return its approximate memory in bytes."""
        return len(self.record) + COPY_OVERHEAD_BYTES

    @property
    def payload(self) -> bytes:
        """Return the payload of its message."""
        (message,) = decode_publish(self.record)
        assert isinstance(message, PublishMessage)
        return message.payload


class HeldCopies:
    """Copies held for one client, of all its SUBSCRIBEs, in one order, which keeps that of each topic."""

    __slots__ = ("bytes", "client", "copies", "holds", "passed")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.holds: list[Hold] = []
        self.copies: list[HeldCopy] = []
        self.bytes = 0  # of them, approximately
        # Topics of messages released before the end of a late read, with the identifiers of their copies.
        self.passed: dict[bytes, set[bytes]] = {}

    @property
    def passes(self) -> bool:
        """Return whether copies of any hold are released."""
        return any(hold.passes for hold in self.holds)

    def unread_filters(self) -> TopicTrie:
        """Return the filters that still wait for their retained messages."""
        filters = TopicTrie()
        for hold in self.holds:
            for name in hold.topic_filters if not hold.passes else ():
                filters.add(name, 0, True)
        return filters


class LiveMessageHolds:
    """The holds of one edge."""

    def __init__(
        self, node: EdgeNode, loop: RetainedCopySource, local: EphemeralSubscriptions, rights: ClientRights
    ) -> None:
        self._node = node
        self._rights = rights
        self._loop = loop
        self._local = local
        self._waiting: dict[int, HeldCopies] = {}  # by client
        self._due: dict[int, HeldCopies] = {}  # those with copies to release at the end of the iteration
        self._bytes = 0  # of all copies, approximately

    def __len__(self) -> int:
        return len(self._waiting)

    def count_for(self, number: int) -> int:
        """Return the number of copies held for a connection."""
        waiting = self._waiting.get(number)
        return len(waiting.copies) if waiting is not None else 0

    def left_s(self, number: int) -> float | None:
        """Return the largest remaining hold time of a connection's copies, None without any."""
        waiting = self._waiting.get(number)
        holds = waiting.holds if waiting is not None else []
        left = [hold.deadline - self._node.now for hold in holds if not hold.passes]
        return max(0.0, *left) if left else None

    def begin(self, client: Client, granted: list[SessionSubscription], existed: list[bool]) -> Hold | None:
        """Hold the filters of a SUBSCRIBE before they are added; None if none of them needs a retained read.

        This includes repeated subscriptions: their retained messages are sent again [MQTT-3.8.4-3]. No Local
        subscriptions are not held, because a copy does not contain its publisher.
        """
        filters = [
            subscription.topic_filter
            for subscription, before in zip(granted, existed, strict=True)
            if (subscription.retain_handling == 0 or (subscription.retain_handling == 1 and not before))
            and not subscription.no_local
            and not subscription.topic_filter.startswith("$share/")
            and is_routed(subscription.topic_filter)
        ]
        if not filters:
            return None
        node = self._node
        waiting = self._waiting.get(client.number)
        if waiting is None:
            waiting = self._waiting[client.number] = HeldCopies(client)
        hold = Hold(client, filters, node.now + node.limits.retained_hold_s)
        waiting.holds.append(hold)
        client.holds.update(filters)
        return hold

    def take(self, sub: Sub, topic: bytes, record: bytes) -> int:
        """Hold a subscriber's copy of the loop; return the result of ``Handler.hold``."""
        client = sub.conn.context
        waiting = self._waiting.get(client.number) if isinstance(client, Client) else None
        if waiting is None:
            return NOT_HELD  # by a Route that is older than the end of the hold
        self._keep(waiting, HeldCopy(self._node.now, sub, topic, record))
        full = waiting.bytes > CLIENT_BYTES_MAX or self._bytes > EDGE_BYTES_MAX
        if full or waiting.passes:
            self._due[waiting.client.number] = waiting
            self._node.wake()
        return HELD_FULL if full else HELD

    def _keep(self, waiting: HeldCopies, copy: HeldCopy) -> None:
        waiting.copies.append(copy)
        waiting.bytes += copy.size
        self._bytes += copy.size

    def is_held(self, hold: Hold, subscription: SessionSubscription, message: RetainedMessage) -> bool:
        """Return whether a retained message is also held live, or is older than a released one.

        Copies of the client's other subscriptions with their own identifiers do not count.
        """
        waiting = self._waiting.get(hold.client.number)
        if waiting is None:
            return False
        if len(waiting.passed) > TOPICS_MAX:
            return True
        topic, own = message.topic.encode(), identifiers_of([subscription])
        if any(subscription.merged or identifiers == own for identifiers in waiting.passed.get(topic, ())):
            return True
        return any(
            copy.topic == topic
            and (subscription.merged or copy.sub.identifiers == own)
            and copy.payload == message.payload
            for copy in waiting.copies
        )

    def unsubscribed(self, client: Client, names: list[str]) -> None:
        """Release the copies of removed filters before UNSUBACK."""
        waiting = self._waiting.get(client.number)
        held = client.holds.intersection(names)
        if waiting is None or not held:
            return
        client.holds -= held
        for hold in waiting.holds:
            hold.topic_filters -= held
        self._release(waiting, at_once=True)

    def end(self, hold: Hold) -> None:
        """End a hold: deliver its copies that no other hold keeps; later copies go directly to the client."""
        client = hold.client
        waiting = self._waiting.get(client.number)
        if waiting is None or hold not in waiting.holds:
            return
        hold.read = True
        self._release(waiting)

    def _release(self, waiting: HeldCopies, *, at_once: bool = False) -> None:
        """Deliver the copies that no hold keeps, as far as the client accepts them, and end empty holds.

        ``at_once``: deliver all, and drop those that the client does not accept, like any live message.
        """
        client = waiting.client
        copies, waiting.copies = waiting.copies, []
        self._bytes -= waiting.bytes
        waiting.bytes = 0
        at_once = at_once or client.conn.closed
        wanted = waiting.unread_filters() if copies else None
        stuck = False
        for copy in copies if not client.conn.closed else ():
            if stuck or (wanted is not None and wanted.match(copy.topic.decode())):
                self._keep(waiting, copy)
            elif at_once or self._is_accepted(copy):
                self._deliver(waiting, copy)
            else:
                stuck = True  # later ones too: each topic keeps its order
                self._keep(waiting, copy)
        if stuck:
            self._loop.report_room(client.conn)
            return
        for hold in [hold for hold in waiting.holds if hold.read]:
            waiting.holds.remove(hold)
            client.holds -= hold.topic_filters
            for name in sorted(hold.topic_filters) if not client.conn.closed else ():
                self._local.released(client, name)
        if not any(hold.topic_filters for hold in waiting.holds):
            waiting.holds.clear()
            del self._waiting[client.number]

    def _is_accepted(self, copy: HeldCopy) -> bool:
        """Return whether a copy would not be dropped now."""
        size = len(copy.record) + len(copy.sub.identifiers) + COPY_BYTES
        return self._loop.can_take(copy.sub.conn, size, copy.sub.qos, True)

    def _deliver(self, waiting: HeldCopies, copy: HeldCopy) -> None:
        client = waiting.client
        if waiting.holds and len(waiting.passed) <= TOPICS_MAX:
            waiting.passed.setdefault(copy.topic, set()).add(copy.sub.identifiers)
        if self._rights.may_receive(client, copy.topic.decode(), copy.sub.qos):
            self._loop.deliver_held(copy.sub, copy.record, int(self._node.now - copy.since))
        else:
            self._node.count("dropped_held_rights")
            self._node.journal.note("drop", "not_authorized", client.client_id, copy.topic.decode())

    def has_room(self, conn: LoopConnection) -> None:
        """Continue the release for a client that accepts output again."""
        waiting = self._waiting.get(conn.number)
        if waiting is not None and waiting.copies and waiting.passes:
            self._release(waiting)

    def next_turn(self, now: float) -> None:
        """Release copies beyond the bounds, and those of late reads."""
        if self._bytes > EDGE_BYTES_MAX:
            self._release_late(list(self._waiting.values()), now)
        elif self._due:
            self._release_late(list(self._due.values()), now)
        self._due.clear()

    def tick(self, now: float) -> None:
        """Release copies held beyond their deadline; the read's later copies are older than these."""
        self._release_late(list(self._waiting.values()), now)

    def _release_late(self, some: list[HeldCopies], now: float) -> None:
        bytes_max = CLIENT_BYTES_MAX
        if self._bytes > EDGE_BYTES_MAX:
            bytes_max = min(bytes_max, EDGE_BYTES_MAX // len(self._waiting))
        for waiting in some:
            full = waiting.bytes > bytes_max
            for hold in list(waiting.holds):
                if hold.client.conn.closed:
                    self.end(hold)
                elif not hold.passes and (full or hold.deadline <= now):
                    self._node.count("holds_cut_full" if full else "holds_cut_time")
                    hold.late = True
            if waiting.copies and waiting.passes:
                self._release(waiting)
                if waiting.bytes > bytes_max:
                    self._release(waiting, at_once=True)
