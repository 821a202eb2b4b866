"""Messages of other nodes: authorization and dispatch.

A router's responses go to the route cache, the registrar and the lease; a storage node's orders to the parts that carry
them out, its responses to pending requests. Allowed messages by sender: ``wire/links/allowed.py``.
"""

from collections.abc import Callable
from typing import Any

from access.operators.orders import order_record, refusal_of
from edge.clients.claims import ClaimsPolls
from edge.clients.disconnecting import Disconnecting
from edge.cluster.partition_requests import PartitionRequests
from edge.cluster_policy import ClusterPolicy
from edge.links import EdgeLinks
from edge.loop.state import LoopPeer
from edge.map_follower import EdgeMapFollower
from edge.node.node import EdgeNode
from edge.publishing.cluster_events import ClientEventPublisher
from edge.publishing.operator_messages import SEND_VERBS, OperatorMessages
from edge.publishing.publishing import EdgePublishing
from edge.publishing.redispatch import Redispatching
from edge.queries.operators import EdgeOperators
from edge.subscriptions.retained_reads import RetainedReads
from edge.subscriptions.topic_routes import TopicRoutes
from wire.links.allowed import (
    CELLS,
    TIER,
    PrimaryStatus,
    SenderRule,
    fault_of,
    is_early_stream,
    kinds_from,
    role_fault_of,
    standing,
)
from wire.links.roster import Roster, is_shard_owner
from wire.messages.connects import ConnectAnswer, decode_answers
from wire.messages.control import Control, decode_control, decode_controls, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.message import name_of
from wire.messages.nodes import HeartbeatReply, Moved, Relay, Relayed
from wire.messages.orders import NodeOrdered, OrderNode
from wire.messages.redispatch import RedispatchOrder, RedispatchReply
from wire.messages.retained import RetainedNone, RetainedPage
from wire.messages.routes import Invalidate, Resolved, RoutesAdded
from wire.messages.running_traces import RunningTrace
from wire.messages.sessions import KickSession, PollClaims, SessionExpired, SessionOpened
from wire.messages.wills import FireWill, WillFired
from wire.node.route_registrar import RouteRegistrar
from wire.queries.tracer import TRACE_VERBS

__all__ = ["NodeMessages"]

TAKEN_HERE = frozenset((FrameKind.CONTROL, FrameKind.CONTROLS, FrameKind.CONNECT_ANSWERS))
OF_PRIMARIES = frozenset(message for message, cell in CELLS.items() if cell.rule is SenderRule.PRIMARY)


class NodeMessages:
    """Dispatches the control messages of one edge.

    Args:
        node: This edge.
        links: Refuses nodes.
        follower: Repeats reports of filters to shard owners.
        policy: Handles the cluster's policy, and user records of routers.
        requests: Pending requests to partitions.
        routes: The route cache.
        registrar: Routes of this edge.
        leaving: Handles KickSession.
        claims: Handles PollClaims.
        retained: Handles pages of retained messages.
        publishing: Handles FireWill.
        events: Handles SessionExpired.
        redispatching: Handles RedispatchOrder.
        operators: Handles messages of operators.
        operator_messages: Handles orders to publish.
    """

    def __init__(
        self,
        node: EdgeNode,
        links: EdgeLinks,
        follower: EdgeMapFollower,
        policy: ClusterPolicy,
        requests: PartitionRequests,
        routes: TopicRoutes,
        registrar: RouteRegistrar,
        leaving: Disconnecting,
        claims: ClaimsPolls,
        retained: RetainedReads,
        publishing: EdgePublishing,
        events: ClientEventPublisher,
        redispatching: Redispatching,
        operators: EdgeOperators,
        operator_messages: OperatorMessages,
    ) -> None:
        self._node = node
        self._links = links
        self._follower = follower
        self._policy = policy
        self._requests = requests
        self._routes = routes
        self._registrar = registrar
        self._leaving = leaving
        self._claims = claims
        self._retained = retained
        self._operators = operators
        self._operator_messages = operator_messages
        self._roster = Roster(lambda: node.map)
        self._kinds = kinds_from(TIER_EDGE)  # of frames, by the sender's tier
        self._orders: dict[type, Callable[[str, Any], None]] = {  # of partitions; all others are responses to requests
            KickSession: self._kick,
            PollClaims: claims.answer,
            FireWill: publishing.fire_will,
            SessionExpired: events.session_expired,
            RedispatchOrder: redispatching.order,
            Moved: self._moved,
            RetainedNone: self._retained_none,
            RetainedPage: self._retained_page,
        }

    def frame(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """Handle a frame that the loop does not handle.

        Raises:
            Unreadable: The payload is malformed.
        """
        key = peer.key
        assert isinstance(key, PeerKey)
        if kind not in TAKEN_HERE or kind not in self._kinds.get(key.tier, ()):
            self._links.violated(peer, f"frame kind {kind}", TIER)
            return
        if kind == FrameKind.CONNECT_ANSWERS:
            for answer in decode_answers(payload):
                self.connect_answered(key.node, answer)
            return
        messages = [decode_control(payload)] if kind == FrameKind.CONTROL else decode_controls(payload)
        for message in messages:
            fault = fault_of(key, TIER_EDGE, message)
            if fault:
                self._links.violated(peer, name_of(message), fault)
                return
            if role_fault := role_fault_of(key, message, self._roster):
                early = is_early_stream(key, message, self._roster)
                self._links.violated(peer, name_of(message), role_fault, early=early)
                continue
            if key.tier == TIER_ROUTER:
                self.from_router(key.node, message)
            elif key.tier == TIER_STORAGE:
                self.from_storage(key.node, message)
            elif key.tier == TIER_OPERATOR:
                self._operators.take(key, message)
            elif isinstance(message, RunningTrace):
                self._operators.traces.heard(message)

    def from_router(self, node: str, message: Control) -> None:
        """Handle a message of a router."""
        if isinstance(message, Resolved):
            self._node.wake_lightly()
            if not self._routes.cache.resolved(node, message):
                self._refuse_placement(node, message)
            return
        self._node.wake()
        if isinstance(message, RoutesAdded):
            if not self._registrar.added(node, message):
                self._refuse_placement(node, message)
        elif isinstance(message, Invalidate):
            if not self._routes.cache.invalidate(node, message, self._node.now):
                self._node.count("invalidations_refused")
        elif isinstance(message, Moved):
            self._shard_moved(node, message)
        elif isinstance(message, Relayed):
            self._relayed(node, message)
        elif isinstance(message, OrderNode):
            self._ordered(node, message)
        elif isinstance(message, HeartbeatReply):
            if self._node.lease.was_asked(node, message):
                self._policy.replied(node, message)
            self._node.lease.handle(self._node.now, node, message)
        elif not self._policy.handle(node, message) and not self._node.lease.handle(self._node.now, node, message):
            self._node.count("messages_unknown")

    def from_storage(self, node: str, message: Control) -> None:
        """Handle a message of a storage node."""
        self._node.wake()
        if type(message) in OF_PRIMARIES and not self._is_primary(node, message):
            self._refuse_order(node, message)
            return
        take = self._orders.get(type(message))
        if take is None:
            self._answer(node, message)
        else:
            take(node, message)

    def _is_primary(self, node: str, message: Control) -> bool:
        """Return whether this edge's map has the node as primary of the message's partition."""
        placements = self._node.map.partitions
        if isinstance(message, KickSession):
            number, epoch = (self._node.map.partition_for(message.client_id), 0) if placements else (0, 0)
        else:
            assert isinstance(message, PollClaims | FireWill | SessionExpired | RedispatchOrder)
            number, epoch = message.partition, message.partition_epoch
        return standing(self._node.map, node, number, epoch, 0) is PrimaryStatus.PRIMARY

    def _refuse_order(self, node: str, message: Control) -> None:
        """Refuse an order of a node that is not primary in this edge's map; the node retries if the map is outdated."""
        self._refuse_placement(node, message)
        if isinstance(message, FireWill):
            self._node.tell(node, WillFired(message.request, message.partition, message.number, True))
        elif isinstance(message, RedispatchOrder):
            self._node.tell(node, RedispatchReply(message.request, message.partition, message.number, None, True))

    def _refuse_placement(self, node: str, message: Control) -> None:
        """Refuse a message for a partition or shard that the node does not have in this edge's map; its link stays."""
        peer = self._node.peer_of(node)
        if peer is not None:
            self._links.violated(peer, name_of(message), "placement")
        else:
            self._node.count("refused_placement")

    def _shard_moved(self, node: str, message: Moved) -> None:
        if message.request:
            if not self._routes.cache.moved(node, message, self._node.now):
                self._refuse_placement(node, message)
        elif is_shard_owner(self._node.map, node, message.number):
            self._follower.report_again(message.number)
        else:
            self._node.count("answers_unknown")  # the shard has another owner now, which gets its own report

    def _answer(self, node: str, message: Control) -> None:
        if not self._requests.answered(getattr(message, "request", 0), message, node):
            self._node.count("answers_unknown")

    def _kick(self, node: str, order: KickSession) -> None:
        self._node.tell(node, self._leaving.kick(order))

    def _ordered(self, router: str, order: OrderNode) -> None:
        refusal = refusal_of(order)
        if not order.dry_run:
            self._node.audit(order_record(order, router, refusal))
        if refusal:
            self._node.journal.note("refused", "verb", detail=f"{order.verb} by {router}: {refusal}")
            self._node.tell(router, NodeOrdered(order.request, error=refusal))
        elif order.verb == "client kick":
            self._node.tell(router, self._leaving.end_by_operator(order))
        elif order.verb in TRACE_VERBS:
            self._operators.ordered(router, order)
        elif order.verb in SEND_VERBS:
            self._operator_messages.take(router, order)
        else:
            self._node.ordered(router, order)

    def _moved(self, node: str, moved: Moved) -> None:
        self._requests.moved(moved.request, self._node.now, node)

    def _retained_none(self, node: str, answer: RetainedNone) -> None:
        self._retained.none(answer, node)

    def _retained_page(self, node: str, page: RetainedPage) -> None:
        if not self._retained.page(page, node):
            self._answer(node, page)

    def connect_answered(self, node: str, answer: ConnectAnswer) -> None:
        """Handle a storage node's response to a claim or a report; ``Connecting`` wakes other parts if necessary."""
        self._node.wake_lightly()
        if isinstance(answer, SessionOpened) and self._claims.is_outdated(answer):
            self._requests.moved(answer.request, self._node.now, node)
        elif not self._requests.answered(answer.request, answer, node):
            self._node.count("answers_unknown")

    def _relayed(self, router: str, relayed: Relayed) -> None:
        """Handle a kick relayed by a router, because the primary cannot reach this edge; the reply is relayed too."""
        entry = self._node.map.nodes.get(relayed.node)
        message = decode_control(relayed.message)
        storage = entry is not None and entry.tier == TIER_STORAGE
        alive = storage and self._node.map.is_alive(relayed.node, relayed.incarnation)
        if alive and isinstance(message, KickSession) and self._is_primary(relayed.node, message):
            answer = encode_control(self._leaving.kick(message))
            self._node.tell(router, Relay(relayed.node, relayed.incarnation, answer))
        else:
            self._node.count("relays_refused")
