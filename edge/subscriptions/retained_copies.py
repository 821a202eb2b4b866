"""Delivery of retained messages of a read: to the connection, or to the queue of the durable session.

Bounded by capacity: a copy that would be dropped waits for its client. An ephemeral session accepts half of its queue
bound, a durable one as much as its partition accepts; the rest is retried, with one message at first.
Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md section 7.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from edge.clients.client import Client
from edge.cluster.partition_requests import PartitionRequests
from edge.loop.state import InboundPublish
from edge.node.node import EdgeNode
from edge.node.ports import DirectDelivery
from edge.rights.client_rights import ClientRights
from edge.subscriptions.live_message_holds import LiveMessageHolds
from edge.subscriptions.retained_pages import RetainedPages
from edge.subscriptions.retained_read import ReadPage, RetainedRead, SubscribeReads
from edge.subscriptions.sys_topics import SysTopics
from wire.messages.batches import NO_EXPIRY
from wire.messages.control import Control
from wire.messages.overlapping import identifiers_of
from wire.messages.retained import RetainedDelivered, RetainedMessage
from wire.messages.sessions import SessionSubscription

__all__ = ["RetainedCopies"]

DELIVER_MAX = 500  # messages in one DeliverRetained
DELIVER_BYTES_MAX = 1024 * 1024  # of them, or one message
REQUESTS_MAX = 8  # unanswered DeliverRetained of one SUBSCRIBE
COPY_BYTES = 32  # of a copy besides topic, properties and payload, at most
RETRY_S, RETRY_S_MAX = 0.1, 2.0  # before the next request to a full queue

Finish = Callable[[ReadPage], None]


@dataclass(slots=True, frozen=True)
class _Queued:
    """Retained messages sent to the queue of a durable session's partition."""

    copies: "RetainedCopies"
    page: ReadPage
    finish: Finish

    def answered(self, answer: Control) -> None:
        """Continue with the refused messages, or read again if the session has a new primary."""
        if isinstance(answer, RetainedDelivered):
            self.copies.queued(self.page, answer, self.finish)


class RetainedCopies:
    """Delivers the pages of one edge.

    Args:
        node: This edge.
        loop: Delivers copies to ephemeral sessions.
        requests: Requests to partitions.
        held: Live messages held for the retained ones.
        sys: The values of $SYS.
        rights: Permissions of each client.
        pages: Queue of pages.
        begin: Starts the reads of a SUBSCRIBE.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: DirectDelivery,
        requests: PartitionRequests,
        held: LiveMessageHolds,
        sys: SysTopics,
        rights: ClientRights,
        pages: RetainedPages,
        begin: Callable[[SubscribeReads], None],
    ) -> None:
        self._node = node
        self._loop = loop
        self._requests = requests
        self._held = held
        self._sys = sys
        self._rights = rights
        self._pages = pages
        self._begin = begin
        self._retries: dict[Client, float] = {}  # durable sessions with a full queue: time of the next request

    @property
    def waits(self) -> bool:
        """Whether a retry is pending."""
        return bool(self._retries)

    def deliver(self, page: ReadPage, finish: Finish) -> bool:
        """Deliver as much as accepted; False if some is left. ``finish`` is called when all of it is delivered."""
        if page.read.whole.durable:
            return self._queue(page, finish)
        return self._write(page, finish)

    # --- ephemeral sessions

    def _write(self, page: ReadPage, finish: Finish) -> bool:
        read, messages = page.read, page.messages
        client, subscription, hold = read.whole.client, read.subscription, read.whole.hold
        assert messages is not None, "the page is not checked"
        identifiers = identifiers_of([subscription])
        waited_s = int(self._node.now - page.arrived)
        while page.at < len(messages):
            message = messages[page.at]
            qos = min(message.qos, subscription.qos)
            size = len(message.payload) + len(message.topic) * 4 + len(message.properties) + len(identifiers)
            if not self._loop.can_take(client.conn, size + COPY_BYTES, qos):
                self._loop.report_room(client.conn)
                return False
            page.at += 1
            if not self._may_receive(client, message.topic, qos):
                continue
            if hold is not None and self._held.is_held(hold, subscription, message):
                continue  # the live one follows
            expiry_s = message.expiry_s
            if expiry_s != NO_EXPIRY:
                if waited_s >= expiry_s:  # [MQTT-3.3.2-5]
                    self._node.count("dropped_retained_expired")
                    self.note(read, "expired", message.topic)
                    continue
                expiry_s -= waited_s
            publish = InboundPublish(
                message.topic.encode(), message.payload, message.qos, True, message.properties, 5, expiry_s
            )
            self._loop.deliver(client.conn, publish, qos, identifiers)
        finish(page)
        return True

    def deliver_sys(self, client: Client, subscription: SessionSubscription) -> None:
        """Deliver the current values of $SYS."""
        identifiers = identifiers_of([subscription])
        for topic, value in self._sys.matching(subscription.topic_filter):
            if not self._may_receive(client, topic, 0):
                continue
            self._loop.deliver(client.conn, InboundPublish(topic.encode(), value, 0, True), 0, identifiers)

    def _may_receive(self, client: Client, topic: str, qos: int) -> bool:
        if self._rights.may_receive(client, topic, qos):
            return True
        self._node.count("dropped_retained_rights")
        self._node.journal.note("drop", "not_authorized", client.client_id, topic, detail="retained")
        return False

    def note(self, read: RetainedRead, reason: str, topic: str) -> None:
        """Journal a drop."""
        self._node.journal.note("drop", reason, read.whole.client.client_id, topic, detail="retained")

    # --- durable sessions

    def _queue(self, page: ReadPage, finish: Finish) -> bool:
        read = page.read
        whole, subscription = read.whole, read.subscription
        client = whole.client
        if whole.requests >= (1 if whole.retry_s else REQUESTS_MAX) or client in self._retries:
            return False
        if not self._loop.can_take(client.conn, 0, 0):  # QoS 0 bypasses the queue and goes to the connection
            self._loop.report_room(client.conn)
            return False
        allowed = [one for one in page.rest if self._may_receive(client, one.topic, min(one.qos, subscription.qos))]
        if len(allowed) < page.count:
            page.after, page.messages, page.at = page.last_delivered, allowed, 0
        if not allowed:
            finish(page)
            return True
        identifiers = identifiers_of([subscription])
        messages = [
            RetainedMessage(
                one.topic,
                one.payload,
                min(one.qos, subscription.qos),
                one.properties + identifiers,
                one.expiry_s,
                one.origin_kind,
                one.origin_a,
                one.origin_b,
            )  # without its user, which this edge has authorized
            for one in allowed[: _chunk(allowed, 1 if whole.retry_s else DELIVER_MAX)]
        ]
        if self._send(whole, messages, _Queued(self, page, finish).answered, identifier=subscription.identifier):
            whole.requests += 1
        else:
            page.at += page.count
            finish(page)
        return True

    def _send(
        self,
        whole: SubscribeReads,
        messages: list[RetainedMessage],
        answered: Callable[[Control], None],
        *,
        done: bool = False,
        begin: bool = False,
        identifier: int = 0,
    ) -> bool:
        read = 0 if begin else whole.number
        request = self._requests.of(whole.client).deliver_retained(messages, read, done=done, identifier=identifier)
        whole.number = request.read
        if self._requests.ask(request, answered, self._node.now):
            return True
        self._node.count("retained_reads_dropped")
        return False

    def queued(self, page: ReadPage, answer: RetainedDelivered, finish: Finish) -> None:
        """Handle the number of messages that a partition accepted, the first ones of a page."""
        whole = page.read.whole
        client = whole.client
        whole.requests -= 1
        if client.conn.closed:
            return
        if answer.again:
            self._begin_again(whole)
        page.at += min(answer.taken, page.count)
        if answer.taken:
            whole.retry_s = 0.0
        if not page.count:
            finish(page)
        else:
            if not answer.taken and not whole.over:
                whole.retry_s = min(RETRY_S_MAX, 2 * whole.retry_s or RETRY_S)
                self._retries[client] = self._node.now + whole.retry_s
                self._node.count("retained_reads_waited")
            self._pages.put(page)
        if client not in self._retries:
            self._pages.resume(client)

    def _begin_again(self, whole: SubscribeReads) -> None:
        """Start again after a change of the session's primary: the new one holds live messages first, then this edge
        reads.
        """
        if whole.over:
            return
        whole.over = True
        held = whole.client.subscriptions
        wanted = [one for one in whole.wanted if held.get(one.topic_filter) is one]  # neither removed nor replaced
        if wanted:
            self._node.count("retained_reads_again")
            fresh = SubscribeReads(whole.client, True, None, wanted)
            self._send(fresh, [], partial(self._begun, fresh), begin=True)

    def _begun(self, whole: SubscribeReads, answer: Control) -> None:
        del answer
        if not whole.client.conn.closed:
            self._begin(whole)

    def end(self, whole: SubscribeReads) -> None:
        """End the partition's hold of live messages: all copies of a SUBSCRIBE are queued."""
        self._send(whole, [], partial(self._ended, whole), done=True)

    def _ended(self, whole: SubscribeReads, answer: Control) -> None:
        if isinstance(answer, RetainedDelivered) and answer.again and not whole.client.conn.closed:
            self._begin_again(whole)

    def closed(self, client: Client) -> None:
        """Remove a closed connection."""
        self._retries.pop(client, None)

    def tick(self, now: float) -> None:
        """Retry full queues."""
        for client in [client for client, at in self._retries.items() if at <= now]:
            del self._retries[client]
            self._pages.resume(client)


def _chunk(messages: list[RetainedMessage], most: int) -> int:
    """Return the number of messages for one request."""
    count = octets = 0
    for message in messages[:most]:
        octets += len(message.payload) + len(message.properties) + len(message.topic)
        if count and octets > DELIVER_BYTES_MAX:
            break
        count += 1
    return count
