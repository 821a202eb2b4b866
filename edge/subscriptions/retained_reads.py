"""Retained messages for a new subscription: read after its routes are in place, delivered before held live messages.

A concrete filter is read from one partition, a wildcard from every storage node once. Copies carry RETAIN 1
[MQTT-3.3.1-8]. For a durable session they pass through its queue, and the last of them ends the hold of live messages
there. Each iteration authorizes and delivers some pages, round robin by client, so repeated reads of one client delay
no other. A slow client or a full queue delays its own reads without loss: pages wait, within bounds, and beyond those
are read again. Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md section 7.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial

from edge.clients.client import Client
from edge.cluster.partition_requests import PartitionRequests
from edge.loop.state import LoopConnection
from edge.node.node import NS, EdgeNode
from edge.node.ports import DirectDelivery
from edge.rights.absent import AbsentClientMessage, AbsentUserChecks
from edge.rights.client_rights import ClientRights
from edge.subscriptions.live_message_holds import Hold, LiveMessageHolds
from edge.subscriptions.retained_copies import RetainedCopies
from edge.subscriptions.retained_limits import RetainedLimits
from edge.subscriptions.retained_pace import RetainedPace
from edge.subscriptions.retained_pages import RetainedPages
from edge.subscriptions.retained_read import ReadPage, RetainedRead, SubscribeReads
from edge.subscriptions.retained_scans import NodeScans
from edge.subscriptions.sys_scope import is_routed, matches_metrics
from edge.subscriptions.sys_topics import SysTopics
from mqtt.topics import has_wildcard
from wire.messages.control import Control
from wire.messages.retained import ReadRetained, RetainedMessage, RetainedPage
from wire.messages.sessions import SessionSubscription

__all__ = ["RetainedReads"]

PAGE = 100
PAUSE_S_MAX = 5.0  # longest pause of reading from a client with waiting reads
RETRY_S = 0.5  # before the next request to a node with too many scans
READS_MAX = 16  # concurrent reads of one SUBSCRIBE: a client with a thousand filters must not delay others


@dataclass(slots=True, frozen=True)
class _PageRequest:
    """A page requested from one partition."""

    reads: "RetainedReads"
    read: RetainedRead
    partition: int

    def answered(self, answer: Control) -> None:
        """Deliver it, and continue after it."""
        if isinstance(answer, RetainedPage):
            self.reads.came(self.read, self.partition, answer)


class RetainedReads:
    """Reads in progress at one edge.

    Args:
        node: This edge.
        loop: Delivers copies to ephemeral sessions.
        requests: Requests to partitions.
        held: Live messages held for the retained ones.
        sys: The values of $SYS.
        rights: Permissions of each client.
        absent: Authorizes the users of retained messages.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: DirectDelivery,
        requests: PartitionRequests,
        held: LiveMessageHolds,
        sys: SysTopics,
        rights: ClientRights,
        absent: AbsentUserChecks,
    ) -> None:
        self._node = node
        self._loop = loop
        self._requests = requests
        self._held = held
        self._absent = absent
        self._scans = NodeScans(node, requests, self.scanned, self._request_alone)
        self.page = self._scans.page  # of a node, if it answers ReadRetainedAll
        self.none = self._scans.none  # likewise: partitions without a match
        self.map_moved = self._scans.map_moved
        self._current: dict[int, dict[str, SessionSubscription]] = {}  # by connection, filter
        self._put_back: dict[int, deque[tuple[RetainedRead, int, str]]] = {}  # by connection: pages to read again
        self._delayed: dict[int, list[SubscribeReads]] = {}  # by connection: to be read when it accepts more
        self._refused: deque[tuple[float, RetainedRead, int, str]] = deque()  # time of the retry; the next one first
        self._pages = RetainedPages()
        self._copies = RetainedCopies(node, loop, requests, held, sys, rights, self._pages, self.begin)
        self._pace = RetainedPace(node.limits.retained_rate_max)
        self.limits = RetainedLimits(node)

    def bound(self) -> None:
        """Apply the node's current rate."""
        self._pace.rate = self._node.limits.retained_rate_max

    @property
    def waits(self) -> bool:
        """Whether a read of several partitions or a timer is pending."""
        return bool(len(self._scans) or self._pace or self._refused or self._copies.waits)

    @property
    def busy(self) -> bool:
        """Whether pages are queued for the next iteration."""
        return len(self._pages) > 0

    @property
    def stalled(self) -> int:
        """Number of clients with pages that they do not accept yet."""
        return self._pages.stalled

    @property
    def held_bytes(self) -> int:
        """Memory of the queued pages in bytes."""
        return self._pages.held_bytes

    def unfinished(self, client: Client) -> int:
        """Return the number of a client's filters being read."""
        return len(self._current.get(client.number, ()))

    def read_for_connection(
        self, client: Client, granted: list[SessionSubscription], existed: list[bool], hold: Hold | None
    ) -> None:
        """Read for an ephemeral session's SUBSCRIBE; its held messages are delivered after the last copy."""
        self._start(client, granted, existed, durable=False, hold=hold)

    def read_for_session(
        self, client: Client, granted: list[SessionSubscription], existed: list[bool], number: int
    ) -> None:
        """Read for a durable session's SUBSCRIBE, this request; its partition holds live messages until the last
        copy.
        """
        self._start(client, granted, existed, durable=True, number=number)

    def _start(
        self,
        client: Client,
        granted: list[SessionSubscription],
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
        if wait_s and wanted:  # reading pauses, so that it cannot request more
            self._loop.charge(client.conn, 1, int((min(wait_s, PAUSE_S_MAX) + 1.0) * NS))
        self.begin(SubscribeReads(client, durable, hold, wanted, number))

    def begin(self, whole: SubscribeReads) -> None:
        """Start the reads of a SUBSCRIBE; an older read of the same filter ends, because this one includes its
        messages.
        """
        client = whole.client
        if whole.wanted:
            current = self._current.setdefault(client.number, {})
            replaces = any(one.topic_filter in current for one in whole.wanted)
            current.update((one.topic_filter, one) for one in whole.wanted)
            if replaces:
                self._drop_unwanted(client)
        self._read_more(whole)

    def _drop_unwanted(self, client: Client) -> None:
        """Drop reads that are no longer needed, including queued pages."""
        self._pages.resume(client)
        kept = self._put_back.pop(client.number, None)
        for read, number, after in kept or ():
            if self._is_wanted(read):
                self._put_back.setdefault(client.number, deque()).append((read, number, after))
            else:
                self._done(read, number)
        self._continue_client(client)

    def _read_more(self, whole: SubscribeReads) -> None:
        """Start as many reads as allowed; without recursion when one ends at once."""
        if whole.starting:
            return
        whole.starting = True
        while whole.unread and whole.open - len(whole.unread) < READS_MAX and not self._paces(whole):
            if self._is_full(whole.client):
                self._delayed.setdefault(whole.client.number, []).append(whole)
                break
            self._begin(whole, whole.unread.popleft())
        whole.starting = False

    def _is_full(self, client: Client) -> bool:
        """Return whether a client does not accept its pages at present."""
        return not client.conn.closed and (self._pages.is_stalled(client) or client.number in self._put_back)

    def _paces(self, whole: SubscribeReads) -> bool:
        """Return whether the unstarted reads of a SUBSCRIBE wait for the rate limit."""
        client, now = whole.client, self._node.now
        if not whole.paced and self._pace.wait_s(client.number, now) and not client.conn.closed:
            whole.paced = True
            self._node.count("retained_reads_paced")
            self._pace.later(client.number, now, partial(self._resume_reads, whole))
        return whole.paced

    def _resume_reads(self, whole: SubscribeReads) -> None:
        whole.paced = False
        self._read_more(whole)

    def _begin(self, whole: SubscribeReads, subscription: SessionSubscription) -> None:
        client, name = whole.client, subscription.topic_filter
        read = RetainedRead(
            subscription,
            whole,
            self._node.limits.retained_per_subscribe_max,
            self._node.now,
        )
        if not self._is_wanted(read):
            self._ended(read)
            return
        if matches_metrics(name):
            self._copies.deliver_sys(client, subscription)
        if not is_routed(name):
            self._ended(read)
        elif not has_wildcard(name):
            partition = self._node.map.partition_for(name)
            read.partitions.add(partition)
            self._ask(read, partition, "")
        elif not self._scans.waits(read, self._read_all):
            self._read_all(read)

    def _read_all(self, read: RetainedRead) -> None:
        node, number = self._node, read.whole.client.number
        read.partitions = set(range(len(node.map.partitions)))
        if not self._is_wanted(read) or not read.partitions:
            read.partitions.clear()
            self._ended(read)
            return
        page = self._pace.page(PAGE, len(read.partitions))
        read.reserved = dict.fromkeys(read.partitions, page)
        self._pace.reserve(number, page * len(read.partitions), node.now)
        self._scans.begin(read, page)

    def _request_alone(self, read: RetainedRead, partition: int) -> None:
        """Request a partition by itself, now or when it has a primary, instead of with its node."""
        self._answered(read, partition, 0)
        self._request_again(read, partition, "")

    def scanned(self, read: RetainedRead, partition: int, answer: RetainedPage | None) -> None:
        """Handle a node's response for a partition; None: no message matches there."""
        if answer is not None:
            self.came(read, partition, answer)
        else:
            self._answered(read, partition, 0)
            self._done(read, partition)

    def _request_next(self, read: RetainedRead, partition: int, after: str) -> None:
        """Request the next page, within the rate limit."""
        client, now = read.whole.client.number, self._node.now
        if self._pace.is_waiting(client) or self._pace.wait_s(client, now):
            self._pace.later(client, now, partial(self._request_again, read, partition, after))
        else:
            self._ask(read, partition, after)

    def _request_again(self, read: RetainedRead, partition: int, after: str) -> None:
        if partition not in read.partitions:
            return  # it ended meanwhile
        if not self._is_wanted(read):
            self._done(read, partition)
            return
        self._ask(read, partition, after)

    def _answered(self, read: RetainedRead, partition: int, messages: int) -> None:
        """Release the unused reservation of a response."""
        self._pace.give_back(read.whole.client.number, read.reserved.pop(partition, messages) - messages)

    def _ask(self, read: RetainedRead, partition: int, after: str) -> None:
        if read.left <= 0:
            self.limits.reached(read, 0, "")
            self._done(read, partition)
            return
        read.reserved[partition] = min(PAGE, read.left)
        read.requested_after[partition] = after
        self._pace.reserve(read.whole.client.number, read.reserved[partition], self._node.now)
        request = ReadRetained(
            self._requests.next_number(),
            partition,
            0,
            read.subscription.topic_filter,
            after,
            min(PAGE, read.left),
        )
        if not self._requests.ask(request, _PageRequest(self, read, partition).answered, self._node.now):
            self._node.count("retained_reads_dropped")
            self._answered(read, partition, 0)
            self._done(read, partition)

    def came(self, read: RetainedRead, partition: int, answer: RetainedPage) -> None:
        """Queue a page, or drop it if its read has ended."""
        self._answered(read, partition, len(answer.messages))
        after = read.requested_after.pop(partition, "")
        if partition in read.partitions:
            self._pages.put(ReadPage(self, read, partition, answer, after, self._node.now))

    def next_turn(self) -> None:
        """Continue with queued pages."""
        self._pages.next_turn()

    # --- pages

    def take(self, page: ReadPage) -> bool:
        """Deliver as much of a page as its client accepts; False if some is left."""
        read = page.read
        if page.partition not in read.partitions or not self._is_wanted(read):
            self._done(read, page.partition)
            self._continue_client(read.whole.client)
            return True
        if page.messages is None:
            return self._check(page)
        return self._copies.deliver(page, self._finish)

    def _check(self, page: ReadPage) -> bool:
        """Remove messages beyond the bound of a read, and unauthorized ones; then deliver."""
        read = page.read
        messages = page.answer.messages[: max(0, read.left)]
        if len(messages) < len(page.answer.messages) or (len(messages) == read.left and page.answer.more):
            dropped = len(page.answer.messages) - len(messages)
            self.limits.reached(read, dropped, page.answer.messages[-1].topic)
        read.left -= len(messages)
        if messages and self._node.limits.recheck_retained_source:
            left = [AbsentClientMessage(one.owner, one.owner_made, one.topic, one.qos) for one in messages]
            checked: list[bool] = []
            self._absent.check_retained(left, partial(self._checked, page, messages, checked))
            if page.messages is None:
                checked.append(False)  # the response comes later, and queues the page again
                return True
        else:
            page.messages = messages
        return self._copies.deliver(page, self._finish)

    def _checked(
        self, page: ReadPage, messages: list[RetainedMessage], later: list[bool], may_stay: list[bool]
    ) -> None:
        """Set the deliverable messages of a page; the read may have ended meanwhile."""
        kept = [message for message, stays in zip(messages, may_stay, strict=True) if stays]
        if len(kept) < len(messages):
            self._node.count("dropped_retained_source", len(messages) - len(kept))
            self._copies.note(page.read, "not_authorized", messages[may_stay.index(False)].topic)
        page.messages = kept
        if later:
            self._pages.put(page)

    def _finish(self, page: ReadPage) -> None:
        """Request the page after a delivered one."""
        read, answer = page.read, page.answer
        if page.partition not in read.partitions:
            return
        if not answer.more or not self._is_wanted(read):
            self._done(read, page.partition)
            self._continue_client(read.whole.client)
        elif answer.messages:
            self._next(read, page.partition, answer.messages[-1].topic)
        else:  # the node has too many scans
            self._refused.append((self._node.now + RETRY_S, read, page.partition, page.after))

    def _next(self, read: RetainedRead, partition: int, after: str) -> None:
        """Request a page; pages to read again come first."""
        waiting = self._put_back.get(read.whole.client.number)
        if waiting is None:
            self._request_next(read, partition, after)
        else:
            waiting.append((read, partition, after))
            self._continue_client(read.whole.client)

    def put_back(self, page: ReadPage) -> None:
        """Discard the rest of a page: it is read again when the client accepts more."""
        read = page.read
        if page.messages is not None:
            read.left += page.count
        self._node.count("retained_pages_put_back")
        waiting = self._put_back.setdefault(read.whole.client.number, deque())
        waiting.append((read, page.partition, page.last_delivered))

    def _continue_client(self, client: Client) -> None:
        """Request one page again if none of the client is queued; if none is left, start delayed reads."""
        if self._pages.has(client):
            return
        waiting = self._put_back.get(client.number)
        if waiting is not None:
            read, partition, after = waiting.popleft()
            if not waiting:
                del self._put_back[client.number]
            self._request_next(read, partition, after)
        else:
            for whole in self._delayed.pop(client.number, ()):
                self._read_more(whole)

    def has_room(self, conn: LoopConnection) -> None:
        """Continue the work of a connection that accepts more output."""
        self._node.wake()
        self._held.has_room(conn)
        if isinstance(client := conn.context, Client):
            self._pages.resume(client)
            self._continue_client(client)

    def unsubscribed(self, client: Client) -> None:
        """Drop the reads of removed filters."""
        if client.number in self._current:
            self._drop_unwanted(client)

    def closed(self, client: Client) -> None:
        """Drop the reads of a closed connection."""
        if client.number in self._current:
            if client.session:
                self._node.count("retained_reads_cut", len(self._current[client.number]))
            self._drop_unwanted(client)
            self._copies.closed(client)

    def _is_wanted(self, read: RetainedRead) -> bool:
        """Return whether the subscription of a read still exists; a durable session's partition checks that itself."""
        name, whole = read.subscription.topic_filter, read.whole
        if whole.over or whole.client.conn.closed:
            return False
        if self._current.get(whole.client.number, {}).get(name) is not read.subscription:
            return False
        if whole.durable:
            return True
        return name in whole.client.subscriptions and (whole.hold is None or name in whole.hold.topic_filters)

    def _done(self, read: RetainedRead, partition: int) -> None:
        if partition in read.partitions:
            read.partitions.discard(partition)
            if not read.partitions:
                self._end_read(read)

    def _end_read(self, read: RetainedRead) -> None:
        self._ended(read)

    def _ended(self, read: RetainedRead) -> None:
        whole, name = read.whole, read.subscription.topic_filter
        current = self._current.get(whole.client.number)
        if current is not None and current.get(name) is read.subscription:
            del current[name]
            if not current:
                del self._current[whole.client.number]
        self.limits.ended(read)
        whole.open -= 1
        if whole.open:
            self._read_more(whole)
            return
        if whole.hold is not None:
            self._held.end(whole.hold)
        if whole.durable and not whole.over:
            self._copies.end(whole)

    def tick(self, now: float) -> None:
        """Send due requests, and request partitions by themselves after a node's timeout."""
        self._pace.tick(now)
        self._copies.tick(now)
        while self._refused and self._refused[0][0] <= now:
            _, read, partition, after = self._refused.popleft()
            self._request_again(read, partition, after)
        self._scans.tick(now)
