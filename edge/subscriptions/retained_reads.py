"""Retained messages for a new subscription: read after the routes stand, delivered before what was held.

A concrete filter asks one partition, a wildcard every storage node once. Copies carry RETAIN 1 [MQTT-3.3.1-8]. For a
durable session they go through its queue, and the last of them ends the holding of live messages there. Pages are
judged and delivered some in a turn, one of each client in turn: who reads everything again and again holds nobody up.
A client that is slow to acknowledge, or a queue without room, delays its own reads and loses nothing of them: pages
wait, within bounds, and beyond those are read again. Source: MQTT 5.0 section 3.3.1.3; docs/protocol.md section 7.
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
from edge.subscriptions.sys_scope import has_figures, is_routed
from edge.subscriptions.sys_topics import SysTopics
from mqtt.topics import has_wildcard
from wire.messages.control import Control
from wire.messages.retained import ReadRetained, RetainedMessage, RetainedPage
from wire.messages.sessions import SessionSubscription

__all__ = ["RetainedReads"]

PAGE = 100
UNREAD_S = 5.0  # most that a client is not read for whose reads wait
RETRY_S = 0.5  # before a node is asked again that has too many look-ups under way
READS_MAX = 16  # filters of one SUBSCRIBE read at a time: a thousand of one client keep nobody else's waiting


@dataclass(slots=True, frozen=True)
class _Asked:
    """A page that one partition was asked for."""

    reads: "RetainedReads"
    read: RetainedRead
    partition: int

    def answered(self, answer: Control) -> None:
        """Deliver it, and go on behind it."""
        if isinstance(answer, RetainedPage):
            self.reads.came(self.read, self.partition, answer)


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
        self._scans = NodeScans(node, requests, self.scanned, self._ask_alone)
        self.page = self._scans.page  # of a node, if it answers ReadRetainedAll
        self.none = self._scans.none  # likewise: partitions without a match
        self.map_moved = self._scans.map_moved
        self._current: dict[int, dict[str, SessionSubscription]] = {}  # by connection: what is read for it, by filter
        self._put_back: dict[int, deque[tuple[RetainedRead, int, str]]] = {}  # by connection: pages to read again
        self._delayed: dict[int, list[SubscribeReads]] = {}  # by connection: that are read when it has room
        self._refused: deque[tuple[float, RetainedRead, int, str]] = deque()  # when to ask again; the next one first
        self._pages = RetainedPages()
        self._copies = RetainedCopies(node, loop, requests, held, sys, rights, self._pages, self.begin)
        self._pace = RetainedPace(node.limits.retained_rate_max)
        self.limits = RetainedLimits(node)

    def bound(self) -> None:
        """Go by the node's rate of now."""
        self._pace.rate = self._node.limits.retained_rate_max

    @property
    def waits(self) -> bool:
        """Whether a read of several partitions is under way, or something waits for its time."""
        return bool(len(self._scans) or self._pace or self._refused or self._copies.waits)

    @property
    def busy(self) -> bool:
        """Whether pages wait for the next turn."""
        return len(self._pages) > 0

    @property
    def stalled(self) -> int:
        """How many clients have no room for the pages that wait for them."""
        return self._pages.stalled

    @property
    def held_bytes(self) -> int:
        """Bytes of the pages that wait."""
        return self._pages.held_bytes

    def unfinished(self, client: Client) -> int:
        """Return how many filters of a client are being read."""
        return len(self._current.get(client.number, ()))

    def read_for_connection(
        self, client: Client, granted: list[SessionSubscription], existed: list[bool], hold: Hold | None
    ) -> None:
        """An ephemeral session subscribed; what is held for it is delivered after the last copy."""
        self._start(client, granted, existed, durable=False, hold=hold)

    def read_for_session(
        self, client: Client, granted: list[SessionSubscription], existed: list[bool], number: int
    ) -> None:
        """A durable session subscribed, with this request; its partition holds live messages until the last copy."""
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
        if wait_s and wanted:  # whoever asks for more meanwhile is not read
            self._loop.charge(client.conn, 1, int((min(wait_s, UNREAD_S) + 1.0) * NS))
        self.begin(SubscribeReads(client, durable, hold, wanted, number))

    def begin(self, whole: SubscribeReads) -> None:
        """Begin to read what was subscribed to; an older read of the same filter ends, for this one has all of it."""
        client = whole.client
        if whole.wanted:
            current = self._current.setdefault(client.number, {})
            replaces = any(one.topic_filter in current for one in whole.wanted)
            current.update((one.topic_filter, one) for one in whole.wanted)
            if replaces:
                self._look_again(client)
        self._read_more(whole)

    def _look_again(self, client: Client) -> None:
        """Let go of reads that are not wanted any more, also where they wait for room."""
        self._pages.resume(client)
        kept = self._put_back.pop(client.number, None)
        for read, number, after in kept or ():
            if self._is_wanted(read):
                self._put_back.setdefault(client.number, deque()).append((read, number, after))
            else:
                self._done(read, number)
        self._go_on(client)

    def _read_more(self, whole: SubscribeReads) -> None:
        """Begin as many reads as may be under way; what ends at once is not begun from within itself."""
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
        """Return whether a client has no room for what was read for it."""
        return not client.conn.closed and (self._pages.is_stalled(client) or client.number in self._put_back)

    def _paces(self, whole: SubscribeReads) -> bool:
        """Return whether what is not begun of a SUBSCRIBE waits for its time."""
        client, now = whole.client, self._node.now
        if not whole.paced and self._pace.wait_s(client.number, now) and not client.conn.closed:
            whole.paced = True
            self._node.count("retained_reads_paced")
            self._pace.later(client.number, now, partial(self._read_on, whole))
        return whole.paced

    def _read_on(self, whole: SubscribeReads) -> None:
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
        if has_figures(name):
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

    def _ask_alone(self, read: RetainedRead, partition: int) -> None:
        """Ask a partition by itself, now or when it has a primary, that was to be asked with its node."""
        self._answered(read, partition, 0)
        self._ask_again(read, partition, "")

    def scanned(self, read: RetainedRead, partition: int, answer: RetainedPage | None) -> None:
        """A node has answered for a partition; None: nothing matches there."""
        if answer is not None:
            self.came(read, partition, answer)
        else:
            self._answered(read, partition, 0)
            self._done(read, partition)

    def _ask_on(self, read: RetainedRead, partition: int, after: str) -> None:
        """Ask for the next page, in its time."""
        client, now = read.whole.client.number, self._node.now
        if self._pace.is_waiting(client) or self._pace.wait_s(client, now):
            self._pace.later(client, now, partial(self._ask_again, read, partition, after))
        else:
            self._ask(read, partition, after)

    def _ask_again(self, read: RetainedRead, partition: int, after: str) -> None:
        if partition not in read.partitions:
            return  # it ended meanwhile
        if not self._is_wanted(read):
            self._done(read, partition)
            return
        self._ask(read, partition, after)

    def _answered(self, read: RetainedRead, partition: int, messages: int) -> None:
        """Note how many messages a partition had."""
        self._pace.give_back(read.whole.client.number, read.reserved.pop(partition, messages) - messages)

    def _ask(self, read: RetainedRead, partition: int, after: str) -> None:
        if read.left <= 0:
            self.limits.reached(read, 0, "")
            self._done(read, partition)
            return
        read.reserved[partition] = min(PAGE, read.left)
        read.asked_after[partition] = after
        self._pace.reserve(read.whole.client.number, read.reserved[partition], self._node.now)
        request = ReadRetained(
            self._requests.next_number(),
            partition,
            0,
            read.subscription.topic_filter,
            after,
            min(PAGE, read.left),
        )
        if not self._requests.ask(request, _Asked(self, read, partition).answered, self._node.now):
            self._node.count("retained_reads_dropped")
            self._answered(read, partition, 0)
            self._done(read, partition)

    def came(self, read: RetainedRead, partition: int, answer: RetainedPage) -> None:
        """A page: it is taken now or in a later turn, or let go where nobody waits for it any more."""
        self._answered(read, partition, len(answer.messages))
        after = read.asked_after.pop(partition, "")
        if partition in read.partitions:
            self._pages.put(ReadPage(self, read, partition, answer, after, self._node.now))

    def next_turn(self) -> None:
        """Go on with pages that wait."""
        self._pages.next_turn()

    # --- pages

    def take(self, page: ReadPage) -> bool:
        """Deliver as much of a page as its client has room for; False if some is left."""
        read = page.read
        if page.partition not in read.partitions or not self._is_wanted(read):
            self._done(read, page.partition)
            self._go_on(read.whole.client)
            return True
        if page.messages is None:
            return self._check(page)
        return self._copies.deliver(page, self._finish)

    def _check(self, page: ReadPage) -> bool:
        """Leave out what is beyond the bound of a read, or what its user may not leave there any more; then deliver."""
        read = page.read
        messages = page.answer.messages[: max(0, read.left)]
        if len(messages) < len(page.answer.messages) or (len(messages) == read.left and page.answer.more):
            dropped = len(page.answer.messages) - len(messages)
            self.limits.reached(read, dropped, page.answer.messages[-1].topic)
        read.left -= len(messages)
        if messages and self._node.limits.recheck_retained_source:
            left = [AbsentClientMessage(one.owner, one.owner_made, one.topic, one.qos) for one in messages]
            checked: list[bool] = []
            self._absent.judge_retained(left, partial(self._checked, page, messages, checked))
            if page.messages is None:
                checked.append(False)  # the answer comes later, and brings the page again
                return True
        else:
            page.messages = messages
        return self._copies.deliver(page, self._finish)

    def _checked(
        self, page: ReadPage, messages: list[RetainedMessage], later: list[bool], may_stay: list[bool]
    ) -> None:
        """Note what of a page may be delivered; the read may have ended meanwhile."""
        kept = [message for message, stays in zip(messages, may_stay, strict=True) if stays]
        if len(kept) < len(messages):
            self._node.count("dropped_retained_source", len(messages) - len(kept))
            self._copies.note(page.read, "not_authorized", messages[may_stay.index(False)].topic)
        page.messages = kept
        if later:
            self._pages.put(page)

    def _finish(self, page: ReadPage) -> None:
        """All of a page is delivered: ask for what is behind it."""
        read, answer = page.read, page.answer
        if page.partition not in read.partitions:
            return
        if not answer.more or not self._is_wanted(read):
            self._done(read, page.partition)
            self._go_on(read.whole.client)
        elif answer.messages:
            self._next(read, page.partition, answer.messages[-1].topic)
        else:  # the node has too many look-ups
            self._refused.append((self._node.now + RETRY_S, read, page.partition, page.after))

    def _next(self, read: RetainedRead, partition: int, after: str) -> None:
        """Ask for a page; those that were put back come first."""
        waiting = self._put_back.get(read.whole.client.number)
        if waiting is None:
            self._ask_on(read, partition, after)
        else:
            waiting.append((read, partition, after))
            self._go_on(read.whole.client)

    def put_back(self, page: ReadPage) -> None:
        """Keep nothing of what is left of a page: it is read again when the client has room."""
        read = page.read
        if page.messages is not None:
            read.left += page.count
        self._node.count("retained_pages_put_back")
        waiting = self._put_back.setdefault(read.whole.client.number, deque())
        waiting.append((read, page.partition, page.last_delivered))

    def _go_on(self, client: Client) -> None:
        """Ask for one page again, if none of the client waits; if none is left, begin what was not read yet."""
        if self._pages.has(client):
            return
        waiting = self._put_back.get(client.number)
        if waiting is not None:
            read, partition, after = waiting.popleft()
            if not waiting:
                del self._put_back[client.number]
            self._ask_on(read, partition, after)
        else:
            for whole in self._delayed.pop(client.number, ()):
                self._read_more(whole)

    def has_room(self, conn: LoopConnection) -> None:
        """A connection has taken more of what it was sent: what waited for that goes on."""
        self._node.wake()
        self._held.has_room(conn)
        if isinstance(client := conn.context, Client):
            self._pages.resume(client)
            self._go_on(client)

    def unsubscribed(self, client: Client) -> None:
        """A client let go of filters: what waits for their retained messages is forgotten."""
        if client.number in self._current:
            self._look_again(client)

    def closed(self, client: Client) -> None:
        """A connection is gone."""
        if client.number in self._current:
            if client.session:
                self._node.count("retained_reads_cut", len(self._current[client.number]))
            self._look_again(client)
            self._copies.closed(client)

    def _is_wanted(self, read: RetainedRead) -> bool:
        """Whether the subscription that asked still stands; a durable session's partition judges that itself."""
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
                self._end(read)

    def _end(self, read: RetainedRead) -> None:
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
        """Ask partitions by themselves that did not answer a node's question in time; live messages go on."""
        self._pace.tick(now)
        self._copies.tick(now)
        while self._refused and self._refused[0][0] <= now:
            _, read, partition, after = self._refused.popleft()
            self._ask_again(read, partition, after)
        self._scans.tick(now)
