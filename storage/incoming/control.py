"""Control messages to a storage node: authorization of the sender, and dispatch to the handler.

The permission table is checked first (``wire/links/allowed.py``). Replies of edges and of shard owners contain the
request number, which identifies the partition.
"""

from storage.hosting.iteration import Iteration
from storage.hosting.partitions import Partitions
from storage.hosting.pending_until_map import PendingUntilMap
from storage.hosting.pending_until_serving import PartitionRequest
from storage.hosting.route_reports import RouteReports
from storage.incoming.requests import Requests
from storage.incoming.session_orders import SESSION_VERBS, carry_out
from storage.queries.operators import StorageOperators
from wire.links.allowed import RELAYED, TIER, fault_of, is_early_stream, role_fault_of
from wire.links.roster import Roster, is_shard_owner
from wire.messages.control import Control, decode_control
from wire.messages.hello import TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.message import name_of
from wire.messages.nodes import Moved, Relayed
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.queries import Query, StartTrace, StopTrace
from wire.messages.redispatch import RedispatchReply
from wire.messages.retained import ReadRetainedAll
from wire.messages.routes import RoutesAdded
from wire.messages.running_traces import RunningTrace
from wire.messages.sessions import Claims, SessionKicked
from wire.messages.user_counts import UserCounts
from wire.messages.wills import WillFired
from wire.node.lease_holder import LeaseHolder
from wire.queries.tracer import TRACE_VERBS

__all__ = ["ControlMessages"]


class ControlMessages:
    """The control messages of one node's peers.

    Args:
        iteration: Time, counts, refusals.
        lease: Handles the routers' messages about lease and map.
        partitions: The partitions with this node as primary.
        early: Forgets requests that no newer map can make valid.
        requests: Handles requests of edges.
        reports: Notified of shards whose owner rejected a report.
        operators: Handles queries.
    """

    def __init__(
        self,
        iteration: Iteration,
        lease: LeaseHolder,
        partitions: Partitions,
        early: PendingUntilMap,
        requests: Requests,
        reports: RouteReports,
        operators: StorageOperators,
    ) -> None:
        self._iteration = iteration
        self._lease = lease
        self._roster = Roster(lambda: lease.map)
        self._partitions = partitions
        self._early = early
        self._requests = requests
        self._reports = reports
        self._operators = operators

    def take(self, peer: PeerKey, message: Control) -> None:
        """Process one message.

        Condemn a peer that may never send it, refuse one whose current role does not allow it.
        """
        fault = fault_of(peer, TIER_STORAGE, message)
        if fault:
            self._iteration.condemn(peer, name_of(message), fault)
        elif role_fault := role_fault_of(peer, message, self._roster):
            early = is_early_stream(peer, message, self._roster)
            self._iteration.refuse(peer, name_of(message), role_fault, early=early)
        elif peer.tier == TIER_ROUTER and self._lease.handle(self._iteration.now, peer.node, message):
            self._early.forget_before(self._lease.newest_at)
        elif isinstance(message, PartitionRequest):
            self._requests.ask(peer, message)
        elif isinstance(message, ReadRetainedAll):
            self._requests.read_all(peer, message)
        elif isinstance(message, SessionKicked):
            self._kicked(message, peer.node, peer.incarnation)
        elif isinstance(message, Relayed):
            self._relayed(peer, message)
        elif isinstance(message, Claims):
            self._claims(message, peer)
        elif isinstance(message, WillFired):
            hosted = self._partitions.reach(message.partition)
            if hosted is not None:
                hosted.owners.wills.fired(message, peer.node)
        elif isinstance(message, RedispatchReply):
            hosted = self._partitions.reach(message.partition)
            if hosted is not None and hosted.serving:
                hosted.delivery.redispatches.answered(message, peer.node)
                hosted.owners.wills.send_some()
        elif isinstance(message, RoutesAdded):
            hosted = self._partitions.reach(message.request >> 32)
            if hosted is not None and not hosted.subscriptions.routes_added(peer.node, message):
                self._iteration.refuse(peer, name_of(message), "placement")
        elif isinstance(message, Moved):
            self._moved(peer, message)
        elif isinstance(message, Query | StartTrace | StopTrace):
            self._operators.take(peer, message)
        elif isinstance(message, RunningTrace):
            self._operators.heard(message)
        elif isinstance(message, UserCounts):
            self._partitions.users.take(peer, message, self._iteration.now)
        elif isinstance(message, OrderNode):
            self._ordered(peer.node, message)
        else:
            self._iteration.count("messages_unknown")

    def _ordered(self, router: str, order: OrderNode) -> None:
        if not self._operators.allow(router, order):
            return
        if order.verb in TRACE_VERBS:
            self._operators.ordered(router, order)
            return
        if order.verb not in SESSION_VERBS:
            self._iteration.orders.append((router, order))
            return
        cluster_map = self._lease.map
        number = cluster_map.partition_for(order.subject) if cluster_map.partitions else -1
        hosted = self._partitions.reach(number)
        if hosted is None or not hosted.serving or self._iteration.fenced:
            error = f"partition {number} of {order.subject[:64]!r} is not served here now: ask again"
            self._iteration.send_control(router, NodeOrdered(order.request, error=error))
        else:
            carry_out(hosted, router, order)

    def _claims(self, message: Claims, peer: PeerKey) -> None:
        hosted = self._partitions.reach(message.partition)
        if hosted is not None and hosted.partition.epoch == message.partition_epoch:
            hosted.claims_answered(message, peer.node, peer.incarnation)

    def _moved(self, peer: PeerKey, message: Moved) -> None:
        """Retry a request soon after a shard's owner with another map rejected it, unless map or timer do it first."""
        self._iteration.count("moved")
        if message.request:
            hosted = self._partitions.reach(message.request >> 32)
            if (
                hosted is not None
                and hosted.serving
                and not hosted.subscriptions.retry_routes_soon(peer.node, message.request)
            ):
                self._iteration.refuse(peer, name_of(message), "placement")
        elif is_shard_owner(self._lease.map, peer.node, message.number):
            self._reports.schedule_retry(message.number, self._iteration.now)
        else:
            self._iteration.count("answers_unknown")  # the shard has a new owner since, which gets its own report

    def _kicked(self, answer: SessionKicked, edge: str, incarnation: int) -> None:
        hosted = self._partitions.reach(answer.request)
        if hosted is not None:
            hosted.owners.kicked(answer, edge, incarnation)

    def _relayed(self, router: PeerKey, relayed: Relayed) -> None:
        """Process an edge's reply forwarded by a router because its direct link is down."""
        message = decode_control(relayed.message)
        entry = self._lease.map.nodes.get(relayed.node)
        if entry is None or not self._lease.map.is_alive(relayed.node, relayed.incarnation):
            self._iteration.count("relays_refused")
            return
        sender = PeerKey(relayed.node, entry.tier, relayed.incarnation)
        if not isinstance(message, RELAYED) or fault_of(sender, TIER_STORAGE, message):
            self._iteration.refuse(router, "Relayed", TIER)
        elif isinstance(message, SessionKicked):
            self._kicked(message, relayed.node, relayed.incarnation)
