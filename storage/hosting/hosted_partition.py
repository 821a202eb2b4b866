"""A partition at its primary: its components, and its phases until it serves.

| phase | state | ends when | next |
|---|---|---|---|
| loading | the whole log is applied and being synced; rows are read in slices | all rows are read | settling |
| settling | the state is complete; the log is sent to the in-sync copies | log committed, map epoch settled | polling |
| polling | each live edge is polled for its connections | all replies are processed, or their edges dead | serving |
| serving | requests are processed; the served clock and its timers run | never | |

The map epoch is settled when the former primary acknowledged it, or when its lease has certainly expired. Before the
last phase the served clock is stopped and no reply is sent. Requests are pending in ``waiting``, in order and bounded;
the core processes them as soon as the partition serves.

A phase never goes back. The map can end any phase: ``Placements`` drops the object, and the copy becomes a backup's.
An epoch that follows directly, with this node still the primary, changes no phase. Source: docs/protocol.md sections
9, 10.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from conf.metrics import Histogram
from mqtt.reasons import ReasonCode
from storage.hosting.edge_orders import EdgeOrders
from storage.hosting.loading import load
from storage.hosting.pending_until_serving import PendingUntilServing, Waiting, WaitingBytes
from storage.messages.delivery import COPIES_ALL, PartitionDelivery
from storage.messages.fast_path_publish import FastPathPublish
from storage.messages.inbound import InboundIdentifiers
from storage.messages.origins import edge_sender
from storage.messages.publishers import Publishers
from storage.messages.retained import RetainedStore
from storage.sessions.disconnected import DisconnectedSessions
from storage.sessions.fast_path_claims import FastPathClaims
from storage.sessions.held_filters import PartitionFilterReads
from storage.sessions.ownership import Owners
from storage.sessions.route_window import RouteWindow
from storage.sessions.subscriptions import Subscriptions
from storage.state.partition import Overlay, Partition, Reads
from storage.state.settings import PartitionSettings
from storage.state.timers import (
    AskRoutesAgain,
    EndConnections,
    EndHold,
    EndSession,
    ExpireRetained,
    FireWillAgain,
    GiveUpCopies,
    KickAgain,
    PurgeQueue,
    RedispatchAgain,
    SaveAcks,
    StopWaitingForKick,
    Timer,
    WillDelayOver,
)
from wire.messages.batches import PublishMessage
from wire.messages.cluster_map import ClusterMap
from wire.messages.hello import PeerKey
from wire.messages.sessions import Claim, Claims, CloseSession, PollClaims

__all__ = ["HostedPartition", "PartitionCounters", "PartitionMetrics", "PartitionPhase", "ProcessPending"]

POLL_AGAIN_S = 0.2  # the first interval, doubled each time, because many partitions poll at once
POLL_AGAIN_MAX_S = 1.6
# Of the 48 bits of session counters: more sessions than a partition creates under one epoch
SESSIONS_PER_EPOCH_BITS = 28
ORDERS_PER_EPOCH_BITS = 32
INBOUND_SKIPPED = 1 << 32  # QoS 2 messages of one session that a lost copy may have numbered
CLAIMS_MAX = 1_000_000  # of one edge: as many as it can hold of one partition, and more
DUE_MAX = 500  # timers taken from the clock at once: a million sessions may expire together
STEPS_PER_TIMER = 4  # of about ten microseconds
TIMER_STEPS = 100  # for the timers of one iteration
REQUEST_STEPS = 3  # for a request that was pending until this partition serves
STEPS_PER_ADVANCE = 3  # of about ten microseconds
COUNTED_AT_ONCE = 250  # sessions; counting one costs no more than reading a row
SESSION_BYTES = 256  # rows of a session without its queue, roughly


class PartitionPhase(IntEnum):
    """Phase of a partition at its primary, in the order in which it goes through them."""

    LOADING = 0
    SETTLING = 1
    POLLING = 2
    SERVING = 3


FILL_BOUNDS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class PartitionCounters(NamedTuple):
    """Content of a partition at its last count."""

    online: int  # sessions
    queued: int  # unconsumed entries
    keys: int
    bytes: int
    fill: float  # of the fullest queue, by messages or bytes; 1 is its bound
    subscriptions: int = 0
    fills: tuple[int, ...] = (0,) * (len(FILL_BOUNDS) + 1)  # histogram of the fill ratios of non-empty queues
    fill_sum: float = 0.0
    queue_bytes: int = 0


class PartitionMetrics(NamedTuple):
    """A partition's values on the metrics page."""

    key: tuple[str, ...]  # its labels
    serving: bool
    epoch: float
    lag: float
    sessions: int
    tally: PartitionCounters
    retained: int  # messages
    retained_bytes: int
    ending: int  # ended sessions with undeleted rows
    ages: bool  # its queues are not empty, so their age grows


class HostedPartition:
    """One partition at its primary."""

    def __init__(
        self,
        number: int,
        settings: PartitionSettings,
        store: Reads,
        overlay: Overlay,
        cluster_map: Callable[[], ClusterMap],
        now: float,
        window: RouteWindow,
        waiting_bytes: WaitingBytes,
    ) -> None:
        self.partition = Partition(number, settings, store, overlay, now)
        self.delivery = PartitionDelivery(self.partition, self._live)
        self.subscriptions = Subscriptions(self.partition, self.delivery, cluster_map, window)
        self.owners = Owners(self.partition, self.delivery, self.subscriptions, self._is_alive, self._live)
        self.orders = EdgeOrders(self.owners.wills.orders, self.delivery.redispatches.orders)
        self.fast_path_claims = FastPathClaims(self.partition, self.owners)
        self.disconnected = DisconnectedSessions(self.partition, self.subscriptions)
        self.held_filters = PartitionFilterReads(self.partition)
        self.delivery.outbound.take_group = self.subscriptions.take_group
        self.retained = RetainedStore(self.partition, self.delivery)
        self.inbound = InboundIdentifiers(self.partition)
        self.publishers = Publishers()
        self.fast_path = FastPathPublish(self.partition, self.delivery.origins, self.publishers)
        self.delivery.targets.forget_routes = self.fast_path.forget_routes
        self.tally = PartitionCounters(0, 0, 0, 0, 0.0)
        self._size = (0, 0)
        self.changed = True  # since the last count
        self.metrics: PartitionMetrics | None = None  # cached until the next count
        self.phase = PartitionPhase.LOADING
        self.serving = False  # the last phase; a field, because each message reads it several times
        self.served_from_ms = 0  # the served clock at the start of the phase
        self.placed_at = 0  # map epoch that made this node the primary
        self.loaded_to = 0  # op_index that every in-sync replica must have before this one serves
        self._map = cluster_map
        self._polled: dict[str, int] = {}  # live edges without a reply to the claims poll
        self._claimed: dict[str, list[Claim]] = {}  # edge -> claims of the pieces received so far
        self._taken: dict[str, Iterator[int]] = {}  # edge -> iterator over a complete reply, in slices
        self._beginning: Iterator[int] | None = None  # work between the last reply and serving
        self._poll_at = float("-inf")
        self._poll_again_s = POLL_AGAIN_S
        self._looked_epoch = -1  # map epoch of the last step towards serving
        self.waiting = PendingUntilServing(settings.waiting_opens_max, waiting_bytes)
        self._more_due = False  # more timers are due than one iteration may run

    def _is_alive(self, edge: str, incarnation: int) -> bool:
        return self._map().is_alive(edge, incarnation)

    def _live(self, tier: str, number: int) -> str:
        nodes = self._map().live(tier)
        return nodes[number % len(nodes)].node if nodes else ""

    def load(self) -> Iterator[int]:
        """Read the state from the store, in slices; yields the cost of each, in rows."""
        yield from load(self.partition, self.delivery, self.subscriptions, self.owners, self.retained, self.inbound)
        self.loaded_to = self.partition.meta.op_index
        first = self.partition.local.accepted << SESSIONS_PER_EPOCH_BITS
        if self.partition.meta.next_session < first:
            yield from self._renumber(first)
        yield from self.count()
        self._enter(PartitionPhase.SETTLING)

    def _enter(self, phase: PartitionPhase) -> None:
        assert phase == self.phase + 1, f"from {self.phase.name} to {phase.name}"
        self.phase = phase
        self.serving = phase is PartitionPhase.SERVING
        self.metrics = None
        self.served_from_ms = self.partition.served_ms

    def _renumber(self, first: int) -> Iterator[int]:
        """Skip the numbers that this copy may have missed: receivers would treat reused ones as repeats."""
        partition = self.partition
        partition.meta.next_session = first
        ordered = partition.local.accepted << ORDERS_PER_EPOCH_BITS
        partition.meta.next_handed = max(partition.meta.next_handed, ordered)
        partition.meta.next_will = max(partition.meta.next_will, ordered)
        for passed, session in enumerate(partition.sessions.values(), 1):
            if not session.made("inbound"):  # else its lowest counter stays, and no other may be far above it
                session.next_inbound += INBOUND_SKIPPED
            if passed % COUNTED_AT_ONCE == 0:
                yield COUNTED_AT_ONCE

    def count(self) -> Iterator[int]:
        """Count this partition's content, in slices; yields the sessions of each.

        Sessions that arrive meanwhile are counted next time, because they mark the partition as changed.
        """
        self.changed, self.metrics = False, None
        online = queued = keys = size = subscribed = queue_bytes = 0
        fill = 0.0
        fills = Histogram(FILL_BOUNDS)
        settings = self.partition.settings
        sessions = list(self.partition.sessions.values())
        for passed, session in enumerate(sessions, 1):
            online += session.edge != ""
            waiting = session.queued
            queued += waiting
            subscriptions = len(session.made("subscriptions") or ())
            subscribed += subscriptions
            keys += 1 + subscriptions + waiting
            size += SESSION_BYTES
            queue_bytes += session.queue_bytes
            if waiting:
                messages, octets = session.queue_most(settings.queue_messages_max, settings.queue_bytes_max)
                filled = max(waiting / max(1, messages), session.queue_bytes / max(1, octets))
                fill = max(fill, filled)
                fills.observe(filled)
            if passed % COUNTED_AT_ONCE == 0:
                yield COUNTED_AT_ONCE
        keys, size = keys + len(self.retained), size + queue_bytes + self.retained.payload_bytes
        metrics = tuple(fills.counts), fills.total, queue_bytes
        self.tally = tally = PartitionCounters(online, queued, keys, size, fill, subscribed, *metrics)
        self._size = (_coarse(tally.keys), _coarse(tally.bytes))
        self.metrics = None
        yield len(sessions) % COUNTED_AT_ONCE

    @property
    def size(self) -> tuple[int, int]:
        """Return (keys, bytes) for a rebalance, rounded so that insignificant changes are not reported."""
        return self._size

    def wait_to_serve(self, waiting: Waiting) -> bool:
        """Keep a request until this partition ``takes`` it; return False, counted, if too many are pending."""
        if self.waiting.keep(waiting):
            return True
        self.partition.count("requests_dropped_not_serving")
        return False

    def may_advance(self, now: float, settled_epoch: int) -> bool:
        """Return whether ``advance`` has work."""
        if self.phase is PartitionPhase.SETTLING:
            return settled_epoch >= self.placed_at and self.partition.commit_index >= self.loaded_to
        due = self.goes_on or now >= self._poll_at
        return self.phase is PartitionPhase.POLLING and (due or self._looked_epoch != self._map().epoch)

    @property
    def goes_on(self) -> bool:
        """Whether the next iteration has activation work to resume."""
        return self.phase is PartitionPhase.POLLING and bool(self._taken or not self._polled)

    def advance(self, now: float, settled_epoch: int, steps_max: int) -> int:
        """Advance towards serving as far as the map allows; return the steps of ten microseconds that it took."""
        if not self.may_advance(now, settled_epoch):
            return 0
        cluster_map = self._map()
        self._looked_epoch = cluster_map.epoch
        if self.phase is PartitionPhase.SETTLING:
            self._enter(PartitionPhase.POLLING)
            self._polled = {edge.node: edge.incarnation for edge in cluster_map.live("edge")}
        for edge in [edge for edge, incarnation in self._polled.items() if not cluster_map.is_alive(edge, incarnation)]:
            del self._polled[edge]
            self._claimed.pop(edge, None)
            self._taken.pop(edge, None)  # its connections have ended
        if self._polled and now >= self._poll_at:  # repeated until answered: an edge's link may not be up yet
            self._poll_at = now + self._poll_again_s
            self._poll_again_s = min(2 * self._poll_again_s, POLL_AGAIN_MAX_S)
            for edge in [edge for edge in self._polled if edge not in self._taken]:
                self.partition.send_control(
                    edge, PollClaims(self.partition.number, self.partition.number, self.partition.epoch)
                )
        return STEPS_PER_ADVANCE + self._take_some(steps_max - STEPS_PER_ADVANCE)

    def _take_some(self, steps_max: int) -> int:
        """Process claims of edges; after all of them, end the connections of dead edges and serve."""
        steps = 0
        for edge in list(self._taken):
            for more in self._taken[edge]:
                steps += more
                if steps >= steps_max:
                    return steps
            del self._taken[edge], self._polled[edge]
        if not self._polled:
            self._beginning = self._beginning or self._begin()
            for more in self._beginning:
                steps += more
                if steps >= steps_max:
                    return steps
            self._serve()
        return steps

    def owns_session(self, number: int, peer: PeerKey) -> bool:
        """Return whether a session's connection is at this edge."""
        session = self.partition.sessions.get(number)
        return session is not None and (session.edge, session.incarnation) == (peer.node, peer.incarnation)

    def is_authorized(self, request: object, peer: PeerKey) -> bool:
        """Return whether an edge may send this request: only the edge with the connection may."""
        if isinstance(request, CloseSession):
            return self.owners.is_held_by(request.client_id, peer.node, peer.incarnation)
        session = getattr(request, "session", 0)
        return not session or self.owns_session(session, peer)

    def claims_answered(self, answer: Claims, edge: str, incarnation: int) -> None:
        """Process one edge's reply to the claims poll."""
        if self._polled.get(edge) == incarnation and edge not in self._taken:
            before = [] if answer.first else self._claimed.get(edge)
            if before is None or len(before) + len(answer.claims) > CLAIMS_MAX:
                self._claimed.pop(edge, None)  # of an incomplete reply: the poll is repeated
                return
            before += answer.claims
            self._claimed[edge] = before
            if not answer.last:
                return
            self._taken[edge] = self.owners.claimed(edge, incarnation, self._claimed.pop(edge))

    def publish(self, message: PublishMessage, peer: PeerKey, most: int = COPIES_ALL) -> int:
        """Publish one message: store it if it is retained here, and queue it for its subscribers.

        Return the number of queues; above ``most`` it is left unfinished (``PartitionDelivery.resume``).
        """
        partition = self.partition
        if self.publishers.observe(message.session, message.owner_epoch, partition.now, self._map().lease_s):
            partition.count("superseded")
            self.delivery.acknowledge(message, peer.node, ReasonCode.SESSION_TAKEN_OVER)
            return 0
        kept = message.retain and not message.share and self._retains(message.topic)
        if kept and not self.delivery.origins.is_repeat(message, peer.node, peer.incarnation):
            refusal = self.retained.refusal(message)
            if refusal:
                self.delivery.acknowledge(message, peer.node, refusal)
                return 0
            self.retained.store(message, peer.incarnation)
        return self.delivery.publish(message, peer.node, peer.incarnation, most)

    def _retains(self, topic: bytes) -> bool:
        return self._map().partition_for(topic.decode()) == self.partition.number

    def _begin(self) -> Iterator[int]:
        """End connections at dead edges, and at edges that die meanwhile: only serving partitions are notified."""
        ended_for: list[tuple[str, int]] | None = None
        while ended_for != (live := [(edge.node, edge.incarnation) for edge in self._map().live("edge")]):
            ended_for = live
            yield from self.owners.absent(self._is_alive)

    def _serve(self) -> None:
        self._beginning = None
        self._enter(PartitionPhase.SERVING)
        self.owners.serve()
        live = {edge_sender(edge.node, edge.incarnation) for edge in self._map().live("edge")}
        self.delivery.origins.forget_dead_edges(live)
        self.subscriptions.serve()
        self.orders.serve()
        self.waiting.begin()

    def run_timers(self, steps_max: int = TIMER_STEPS) -> int:
        """Run due timers, once this partition serves. Return the steps that it took.

        If sessions expire together, some are processed now and the others afterwards.
        """
        steps = 0
        self._more_due = False
        while self.serving and len(self.partition.work) < DUE_MAX:
            if steps >= steps_max:
                self._more_due = True
                break
            timer = self.partition.due()
            if timer is None:
                break
            if isinstance(timer, EndSession | AskRoutesAgain):
                self.partition.work.append(timer)
            else:
                steps += STEPS_PER_TIMER
                self._timer(timer)
        return steps

    def close_operation(self) -> list[tuple[bytes, bytes | None]]:
        """Close the operation being built and return its writes; pending acknowledgements are saved with it."""
        if self.partition.writes or self.partition.touched:
            self.delivery.consumed.ride()
        return self.partition.close_operation()

    @property
    def takes(self) -> bool:
        """Whether a request is processed now: this partition serves, and no older one is pending."""
        return self.serving and not self.waiting

    def can_claim_fast(self, epoch: int) -> bool:
        """Return whether it serves this partition_epoch with no pending request and no uncommitted change of claims."""
        partition = self.partition
        return epoch == partition.epoch and self.serving and not self.waiting and partition.claims_settled

    def is_time(self, epoch: int) -> bool:
        """Return whether a partition_epoch is in this node's current term as primary."""
        return self.partition.since <= epoch <= self.partition.epoch

    @property
    def is_behind(self) -> bool:
        """Whether ``catch_up`` has work."""
        delivery = self.delivery
        fills = delivery.outbound.freed or delivery.consumed.saving
        if self.serving:
            return bool(fills or self._more_due or self.waiting)
        return bool(fills) and not self.goes_on  # windows are filled once the claims are processed

    def catch_up(self, steps_max: int, process_pending: "ProcessPending") -> int:
        """Resume work of an iteration that exceeds its budget; return the steps that it took.

        Pending requests go before later ones; at least twice as many as arrived are processed.
        """
        steps = self.run_timers(steps_max) if self._more_due else 0
        if self.serving and self.waiting:
            steps += self._process_pending_some(steps_max - steps, process_pending)
        steps += self.delivery.outbound.pump_freed(max(1, steps_max - steps))
        return steps + self.delivery.consumed.save_some(max(1, steps_max - steps))

    def _process_pending_some(self, steps_max: int, process_pending: "ProcessPending") -> int:
        steps, least = 0, 2 * self.waiting.take_arrivals()
        while (steps < steps_max or least > 0) and (waiting := self.waiting.take()) is not None:
            process_pending(self, waiting)
            steps += REQUEST_STEPS
            least -= 1
        return steps

    @property
    def has_work(self) -> bool:
        """Whether ``do_work`` has work."""
        return self.serving and bool(self.partition.work)

    def do_work(self, steps_max: int) -> int:
        """Run a slice of background work; return the steps that it took, of about ten microseconds."""
        steps = 0
        while self.partition.work and steps < steps_max:
            work = self.partition.work.popleft()
            if isinstance(work, EndSession):
                steps += self.owners.expire(work.session)
            elif isinstance(work, EndConnections):
                steps += self.owners.dead_edges.end_some()
            elif isinstance(work, GiveUpCopies):
                steps += self.delivery.abandoned_copies.resume(work)
            elif isinstance(work, PurgeQueue):
                steps += self.delivery.purges.resume(work)
            else:
                steps += self.subscriptions.ask_again(work.request)
        if not self.partition.work:
            steps += self.run_timers()
        return steps

    def _timer(self, timer: Timer) -> None:
        if isinstance(timer, SaveAcks):
            self.delivery.consumed.begin_to_save()
        elif isinstance(timer, StopWaitingForKick):
            self.owners.kick_waited(timer.client_id)
        elif isinstance(timer, KickAgain):
            self.owners.kick_again(timer.client_id, timer.owner_epoch)
        elif isinstance(timer, WillDelayOver):
            self.owners.wills.due(timer.client_id)
        elif isinstance(timer, FireWillAgain):
            self.owners.wills.fire_again(timer.number)
        elif isinstance(timer, RedispatchAgain):
            self.delivery.redispatches.send_again(timer.number)
        elif isinstance(timer, ExpireRetained):
            self.retained.expire(timer.topic)
        elif isinstance(timer, EndHold):
            session = self.partition.sessions.get(timer.session)
            if session is not None and session.held:
                self.delivery.outbound.hold_expired(session)


ProcessPending = Callable[[HostedPartition, Waiting], None]  # processes a pending request


def _coarse(number: int) -> int:
    """Keep the four leading bits."""
    shift = max(0, number.bit_length() - 4)
    return number >> shift << shift
