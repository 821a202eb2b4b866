"""Retained messages for a new subscription: read after the routes stand, delivered before what was held.

A concrete filter asks one partition, a wildcard every storage node once. Copies carry RETAIN 1 [MQTT-3.3.1-8]. For a
durable session they go through its queue, and the last of them ends the holding of live messages there. Pages are
judged and delivered some in a turn, one of each client in turn: who reads everything again and again holds nobody up.
Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md section 7.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial

from edge.clients.client import Client
from edge.cluster.partition_requests import PartitionRequests
from edge.hot.state import Inbound
from edge.node.node import NS, EdgeNode
from edge.node.ports import Delivery
from edge.rights.absent import AbsentUsers, Left
from edge.rights.client_rights import ClientRights
from edge.subscriptions.ephemeral_sessions import identifier_properties
from edge.subscriptions.held_live import HeldMessages, Hold
from edge.subscriptions.retained_pace import RetainedPace
from edge.subscriptions.retained_pages import RetainedPages
from edge.subscriptions.sys_scope import has_figures, is_routed
from edge.subscriptions.sys_topics import SysTopics
from mqtt.topics import has_wildcard
from wire.messages.control import Control
from wire.messages.retained import (
    ReadRetained,
    ReadRetainedAll,
    RetainedDelivered,
    RetainedMessage,
    RetainedNone,
    RetainedPage,
)
from wire.messages.sessions import Subscription

__all__ = ["RetainedReads"]

PAGE = 100
DELIVER_MAX = 500  # messages in one DeliverRetained
UNREAD_S = 5.0  # most that a client is not read for whose reads wait
READS_MAX = 16  # filters of one SUBSCRIBE read at a time: a thousand of one client keep nobody else's waiting


class _Read:
    """One subscription's read."""

    __slots__ = ("deadline", "left", "nodes", "partitions", "request", "reserved", "subscription", "whole")

    def __init__(self, subscription: Subscription, whole: "_Subscribe", left: int, deadline: float) -> None:
        self.subscription = subscription
        self.whole = whole
        self.left = left  # how many more may be delivered
        self.deadline = deadline
        self.request = 0  # of its ReadRetainedAll
        self.partitions: set[int] = set()  # not yet read to the end
        self.nodes: set[str] = set()  # that were asked for all their partitions
        self.reserved: dict[int, int] = {}  # messages that partitions may answer with


class _Subscribe:
    """One SUBSCRIBE's reads."""

    __slots__ = (
        "client",
        "deadline",
        "durable",
        "hold",
        "number",
        "open",
        "over",
        "paced",
        "starting",
        "unread",
        "wanted",
    )

    def __init__(
        self, client: Client, durable: bool, hold: Hold | None, wanted: list[Subscription], number: int = 0
    ) -> None:
        self.client = client
        self.durable = durable
        self.hold = hold
        self.wanted = wanted
        self.number = number  # durable: the request that made the partition hold live messages
        self.open = len(wanted)  # not read to the end
        self.unread = deque(wanted)  # not begun
        self.deadline = float("inf")  # for all of them
        self.starting = False
        self.paced = False  # what is not begun waits for its time
        self.over = False  # another one has taken its place


@dataclass(slots=True, frozen=True)
class _Page:
    """A page that one partition was asked for."""

    reads: "RetainedReads"
    read: _Read
    partition: int

    def answered(self, answer: Control) -> None:
        """Deliver it, and go on behind it."""
        if isinstance(answer, RetainedPage):
            self.reads.came(self.read, self.partition, answer)


@dataclass(slots=True, frozen=True)
class _Delivery:
    """Retained messages that a durable session's partition was asked to queue."""

    reads: "RetainedReads"
    whole: _Subscribe
    begins: bool  # the partition holds live messages from then on

    def answered(self, answer: Control) -> None:
        """Begin to read, or begin anew where the session has a new primary."""
        if self.whole.client.conn.closed:
            return
        if self.begins:
            self.reads.begin(self.whole)
        elif isinstance(answer, RetainedDelivered) and answer.again:
            self.reads.begin_again(self.whole)


class RetainedReads:
    """Reads under way at one edge.

    Args:
        node: This edge.
        loop: Delivers copies to ephemeral sessions.
        requests: Requests to partitions.
        held: Live messages that wait for the retained ones.
        sys: The values of $SYS.
        rights: What each client may receive.
        absent: Judges the users of retained messages.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: Delivery,
        requests: PartitionRequests,
        held: HeldMessages,
        sys: SysTopics,
        rights: ClientRights,
        absent: AbsentUsers,
    ) -> None:
        self._node = node
        self._loop = loop
        self._requests = requests
        self._held = held
        self._sys = sys
        self._rights = rights
        self._absent = absent
        self._reads: dict[int, _Read] = {}  # by request of ReadRetainedAll
        self._pages = RetainedPages()
        self._pace = RetainedPace(node.limits.retained_rate_max)

    def bound(self) -> None:
        """Go by the node's rate of now."""
        self._pace.rate = self._node.limits.retained_rate_max

    @property
    def waits(self) -> bool:
        """Whether a read of several partitions is under way, or waits for its time."""
        return bool(self._reads or self._pace)

    def read_for_connection(
        self, client: Client, granted: list[Subscription], existed: list[bool], hold: Hold | None
    ) -> None:
        """An ephemeral session subscribed; what is held for it is delivered after the last copy."""
        self._start(client, granted, existed, durable=False, hold=hold)

    def read_for_session(self, client: Client, granted: list[Subscription], existed: list[bool], number: int) -> None:
        """A durable session subscribed, with this request; its partition holds live messages until the last copy."""
        self._start(client, granted, existed, durable=True, number=number)

    def _start(
        self,
        client: Client,
        granted: list[Subscription],
        existed: list[bool],
        *,
        durable: bool,
        hold: Hold | None = None,
        number: int = 0,
    ) -> None:
        wanted = []
        for subscription, before in zip(granted, existed, strict=True):
            if subscription.topic_filter.startswith("$share/"):
                continue  # section 4.8.2: no retained messages for shared subscriptions
            if subscription.retain_handling == 2 or (subscription.retain_handling == 1 and before):
                continue  # [MQTT-3.3.1-10] [MQTT-3.3.1-11]
            wanted.append(subscription)
        if hold is not None and not wanted:
            self._held.end(hold)
        wait_s = self._pace.wait_s(client.number, self._node.now)
        if wait_s and wanted:  # whoever asks for more meanwhile is not read
            self._loop.charge(client.conn, 1, int((min(wait_s, UNREAD_S) + 1.0) * NS))
        self.begin(_Subscribe(client, durable, hold, wanted, number))

    def begin(self, whole: _Subscribe) -> None:
        """Begin to read what was subscribed to."""
        whole.deadline = self._node.now + self._node.limits.retained_hold_s
        self._read_more(whole)

    def _read_more(self, whole: _Subscribe) -> None:
        """Begin as many reads as may be under way; what ends at once is not begun from within itself."""
        if whole.starting:
            return
        whole.starting = True
        while whole.unread and whole.open - len(whole.unread) < READS_MAX and not self._paces(whole):
            self._begin(whole, whole.unread.popleft())
        whole.starting = False

    def _paces(self, whole: _Subscribe) -> bool:
        """Return whether what is not begun of a SUBSCRIBE waits for its time."""
        client, now = whole.client, self._node.now
        if not whole.paced and self._pace.wait_s(client.number, now) and not client.conn.closed:
            whole.paced = True
            self._node.count("retained_reads_paced")
            self._pace.later(client.number, now, partial(self._read_on, whole))
        return whole.paced

    def _read_on(self, whole: _Subscribe) -> None:
        whole.paced = False
        whole.deadline = self._node.now + self._node.limits.retained_hold_s
        self._read_more(whole)

    def _begin(self, whole: _Subscribe, subscription: Subscription) -> None:
        client, name = whole.client, subscription.topic_filter
        if whole.over or client.conn.closed:
            self._ended(whole)
            return
        if has_figures(name):
            self._deliver_sys(client, subscription)
        if not is_routed(name):
            self._ended(whole)
        elif self._node.now > whole.deadline:
            self._node.count("retained_reads_missed")
            self._ended(whole)
        elif has_wildcard(name):
            self._read_all(subscription, whole)
        else:
            self._read_one(subscription, whole)

    def _new_read(self, subscription: Subscription, whole: _Subscribe) -> _Read:
        return _Read(subscription, whole, self._node.limits.retained_per_subscribe_max, whole.deadline)

    def _read_one(self, subscription: Subscription, whole: _Subscribe) -> None:
        read = self._new_read(subscription, whole)
        partition = self._node.map.partition_for(subscription.topic_filter)
        read.partitions.add(partition)
        self._ask(read, partition, "")

    def _read_all(self, subscription: Subscription, whole: _Subscribe) -> None:
        node = self._node
        read = self._new_read(subscription, whole)
        for number, placement in enumerate(node.map.partitions):
            if placement.primary:
                read.partitions.add(number)
                read.nodes.add(placement.primary)
        page = self._pace.page(PAGE, len(read.partitions))
        read.reserved = dict.fromkeys(read.partitions, page)
        self._pace.reserve(whole.client.number, page * len(read.partitions), node.now)
        request = self._requests.next_number()
        self._reads[request] = read
        read.request = request
        for name in sorted(read.nodes):
            node.tell(name, ReadRetainedAll(request, subscription.topic_filter, page, node.limits.retained_hold_s))
        if not read.partitions:
            self._end(read)

    def _ask_on(self, read: _Read, partition: int, after: str) -> None:
        """Ask for the next page, in its time."""
        client, now = read.whole.client.number, self._node.now
        if self._pace.is_waiting(client) or self._pace.wait_s(client, now):
            self._pace.later(client, now, partial(self._ask_again, read, partition, after))
        else:
            self._ask(read, partition, after)

    def _ask_again(self, read: _Read, partition: int, after: str) -> None:
        if partition not in read.partitions:
            return  # it ended meanwhile
        if read.whole.over or read.whole.client.conn.closed or not self._is_wanted(read):
            self._done(read, partition)
            return
        read.deadline = self._node.now + self._node.limits.retained_hold_s
        self._ask(read, partition, after)

    def _answered(self, read: _Read, partition: int, messages: int) -> None:
        """Note how many messages a partition had."""
        self._pace.give_back(read.whole.client.number, read.reserved.pop(partition, messages) - messages)

    def _ask(self, read: _Read, partition: int, after: str) -> None:
        read.reserved[partition] = min(PAGE, read.left)
        self._pace.reserve(read.whole.client.number, read.reserved[partition], self._node.now)
        request = ReadRetained(
            self._requests.next_number(),
            partition,
            0,
            read.subscription.topic_filter,
            after,
            min(PAGE, read.left),
            self._node.limits.retained_hold_s,
        )
        if not self._requests.ask(request, _Page(self, read, partition).answered, self._node.now):
            self._node.count("retained_reads_dropped")
            self._answered(read, partition, 0)
            self._done(read, partition)

    def page(self, answer: RetainedPage, node: str) -> bool:
        """A node's page that answers ReadRetainedAll; False if it does not."""
        read = self._reads.get(answer.request)
        if read is None or node not in read.nodes:
            return False
        self.came(read, answer.partition, answer)
        return True

    def none(self, answer: RetainedNone, node: str) -> None:
        """Partitions without a match."""
        read = self._reads.get(answer.request)
        if read is not None and node in read.nodes:
            for partition in answer.partitions:
                self._answered(read, partition, 0)
            read.partitions.difference_update(answer.partitions)
            if not read.partitions:
                self._end(read)

    def came(self, read: _Read, partition: int, answer: RetainedPage) -> None:
        """A page: it is taken now or in a later turn, or let go where nobody waits for it any more."""
        self._answered(read, partition, len(answer.messages))
        self._pages.put(read.whole.client, answer, partial(self._take_page, read, partition, answer))

    def next_turn(self) -> None:
        """Go on with pages that wait."""
        self._pages.next_turn()

    @property
    def busy(self) -> bool:
        """Whether pages wait for the next turn."""
        return len(self._pages) > 0

    def _take_page(self, read: _Read, partition: int, answer: RetainedPage) -> None:
        """Deliver what a partition found, and ask for more."""
        if partition not in read.partitions:
            return
        if read.whole.client.conn.closed or not self._is_wanted(read):
            self._done(read, partition)
            return
        messages = answer.messages[: max(0, read.left)]
        if len(messages) < len(answer.messages):
            self._node.count("dropped_retained_limit", len(answer.messages) - len(messages))
            self._note(read, "retained_limit", answer.messages[len(messages)].topic)
        read.left -= len(messages)
        if read.whole.over:
            return
        if messages and self._node.limits.recheck_retained_source:
            left = [Left(one.owner, one.owner_made, one.topic, one.qos) for one in messages]
            self._absent.judge_retained(left, partial(self._judged, read, partition, answer, messages))
        else:
            self._go_on(read, partition, answer, messages)

    def _judged(
        self, read: _Read, partition: int, answer: RetainedPage, messages: list[RetainedMessage], may_stay: list[bool]
    ) -> None:
        """Leave out what its user may not leave there any more; the read may have ended meanwhile."""
        if partition not in read.partitions or read.whole.over:
            return
        kept = [message for message, stays in zip(messages, may_stay, strict=True) if stays]
        if len(kept) < len(messages):
            self._node.count("dropped_retained_source", len(messages) - len(kept))
            self._note(read, "not_authorized", messages[may_stay.index(False)].topic)
        self._go_on(read, partition, answer, kept)

    def _go_on(self, read: _Read, partition: int, answer: RetainedPage, messages: list[RetainedMessage]) -> None:
        if messages and not read.whole.client.conn.closed and self._is_wanted(read):
            self._deliver(read, messages)
        if answer.more and answer.messages and read.left > 0:  # without one there is nowhere to go on
            self._ask_on(read, partition, answer.messages[-1].topic)
        else:
            self._done(read, partition)

    def _is_wanted(self, read: _Read) -> bool:
        """Whether the subscription that asked still stands; a durable session's partition judges that itself."""
        name, whole = read.subscription.topic_filter, read.whole
        if whole.durable:
            return True
        return name in whole.client.subscriptions and (whole.hold is None or name in whole.hold.topic_filters)

    def _done(self, read: _Read, partition: int) -> None:
        read.partitions.discard(partition)
        if not read.partitions:
            self._end(read)

    def _end(self, read: _Read) -> None:
        self._reads.pop(read.request, None)
        read.deadline = float("inf")
        self._ended(read.whole)

    def _ended(self, whole: _Subscribe) -> None:
        whole.open -= 1
        if whole.open:
            self._read_more(whole)
            return
        if whole.hold is not None:
            self._held.end(whole.hold)
        if whole.durable and not whole.over:
            self._send(whole, [], done=True)

    def tick(self, now: float) -> None:
        """End reads that a partition did not answer in time: what is missing is counted, live messages go on."""
        self._pace.tick(now)
        late = [read for read in self._reads.values() if read.deadline <= now]
        for read in [read for read in late if not self._pace.is_waiting(read.whole.client.number)]:
            self._node.count("retained_partitions_missed", len(read.partitions))
            read.partitions.clear()
            self._end(read)

    # --- delivery

    def _deliver_sys(self, client: Client, subscription: Subscription) -> None:
        """Deliver the current values of $SYS."""
        identifiers = identifier_properties([subscription])
        for topic, value in self._sys.matching(subscription.topic_filter):
            if not self._may_receive(client, topic, 0):
                continue
            self._loop.deliver(client.conn, Inbound(topic.encode(), value, 0, True), 0, identifiers)

    def _may_receive(self, client: Client, topic: str, qos: int) -> bool:
        if self._rights.may_receive(client, topic, qos):
            return True
        self._node.count("dropped_retained_rights")
        self._node.journal.note("drop", "not_authorized", client.client_id, topic, detail="retained")
        return False

    def _note(self, read: _Read, reason: str, topic: str) -> None:
        self._node.journal.note("drop", reason, read.whole.client.client_id, topic, detail="retained")

    def _deliver(self, read: _Read, messages: list[RetainedMessage]) -> None:
        client, subscription = read.whole.client, read.subscription
        messages = [one for one in messages if self._may_receive(client, one.topic, min(one.qos, subscription.qos))]
        identifiers = identifier_properties([subscription])
        if not read.whole.durable:
            hold = read.whole.hold
            for message in messages:
                if hold is not None and self._held.is_held(hold, message):
                    continue  # the live one follows
                publish = Inbound(
                    message.topic.encode(),
                    message.payload,
                    message.qos,
                    True,
                    message.properties,
                    5,
                    message.expiry_s,
                )
                self._loop.deliver(client.conn, publish, min(message.qos, subscription.qos), identifiers)
            return
        for message in messages:
            message.owner, message.owner_made = "", 0  # judged: the session's partition has no use for it
            message.qos = min(message.qos, subscription.qos)
            message.properties += identifiers
        for start in range(0, len(messages), DELIVER_MAX):
            self._send(read.whole, messages[start : start + DELIVER_MAX], done=False)

    def _send(
        self, whole: _Subscribe, messages: list[RetainedMessage], *, done: bool = False, begin: bool = False
    ) -> None:
        request = self._requests.of(whole.client).deliver_retained(messages, 0 if begin else whole.number, done=done)
        whole.number = request.read
        if not self._requests.ask(request, _Delivery(self, whole, begin).answered, self._node.now):
            self._node.count("retained_reads_dropped")

    def begin_again(self, whole: _Subscribe) -> None:
        """The session has a new primary, which held nothing while this was read: hold there, then read anew."""
        if whole.over:
            return
        whole.over = True
        held = whole.client.subscriptions
        wanted = [
            one for one in whole.wanted if held.get(one.topic_filter) is one
        ]  # neither removed nor replaced since
        if wanted:
            self._node.count("retained_reads_again")
            self._send(_Subscribe(whole.client, True, None, wanted), [], begin=True)
