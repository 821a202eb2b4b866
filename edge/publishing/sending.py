"""Sending one message to all destinations, a retained message to its retained partition first.

Other destinations follow after that write is acknowledged: a client that received the live value never reads an older
retained one. The retained messages of one connection are pipelined.
Source: MQTT 5.0 section 3.3; docs/protocol.md section 7.
"""

from collections.abc import Callable
from dataclasses import dataclass

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.loop.state import InboundPublish, LoopConnection, Remote, Route
from edge.node.node import EdgeNode
from edge.node.ports import CorePublisher
from edge.publishing.pipelines import Pipeline, Pipelines
from edge.routes.shared_groups import RecordedPick, SharedGroup
from edge.subscriptions.topic_routes import TopicRoutes
from mqtt.reasons import FAILURE, ReasonCode
from wire.messages.batches import OriginKind, encode_owner

__all__ = ["MessageSender", "OutgoingMessage", "Picks"]

Picks = dict[bytes, Remote | int | None]  # recorded destination of a message's copy by share


@dataclass(slots=True)
class OutgoingMessage:
    """A message on its way to all destinations: a client's PUBLISH, or a subclass.

    Attributes:
        origin: OriginKind, and its two numbers.
        picks: Recorded destinations for shared groups; None: each group selects its own.
        retained_partition: The partition that retains the message, -1 for none.
        tag: Of the copy for the retained partition.
        outcome: Reason code of that copy's write, until it is taken; -1: none.
        copies: Number of local copies.
    """

    sending: "MessageSender"
    publish: InboundPublish
    origin: tuple[int, int, int] = (OriginKind.EDGE, 0, 0)
    picks: Picks | None = None
    retained_partition: int = -1
    tag: int = 0
    outcome: int = -1
    copies: int = 0

    @property
    def name(self) -> str:
        """The topic."""
        return self.publish.topic.decode()

    @property
    def size(self) -> int:
        """Bytes of payload and properties."""
        return len(self.publish.payload) + len(self.publish.properties)

    @property
    def owner(self) -> bytes:
        """The publisher's user as a record encodes it; the retained partition stores it."""
        client = self.publish.conn.context if self.publish.conn is not None else None
        if not isinstance(client, Client):
            return b""
        bounds = client.known_bounds
        most = bounds.retained_user_max, bounds.retained_bytes_user_max
        return encode_owner(client.owner.encode(), client.owner_made, *most)

    @property
    def retained_origin(self) -> tuple[int, int, int]:
        """The origin of the copy that was sent to the retained partition first."""
        return self.origin if self.origin[0] != OriginKind.EDGE else (OriginKind.EDGE, 0, self.tag)

    @property
    def waits_for_retained(self) -> bool:
        """Whether the acknowledgement of a retained write is counted."""
        return self.retained_partition >= 0 and self.publish.qos > 0

    @property
    def on_done(self) -> Callable[[int], object] | None:
        """Return the completion callback of a message that is sent to all destinations at once; QoS 0 has none."""
        return self.sent if self.publish.qos else None

    def routed(self, route: Route) -> None:
        """Send it, unless its publisher has disconnected."""
        if self.publish.conn is None or not self.publish.conn.closed:
            self.sending.send(self, route)

    def routed_to_others(self, route: Route) -> None:
        """Send it to all destinations except its retained partition, which has it."""
        self.sending.send_to_others(self, route)

    def sent(self, reason_code: int) -> bool:
        """Handle the outcome of a message that was sent to all destinations at once."""
        if self.waits_for_retained:
            self.sending.retained_written(self)
        return self.finished(reason_code)

    def on_retained_stored(self, reason_code: int) -> None:
        """Handle the outcome of the write to its retained partition."""
        self.sending.retained_written(self)
        self.sending.on_retained_stored(self, reason_code)

    def finished(self, reason_code: int) -> bool:
        """Handle the outcome; return whether the publisher's acknowledgement waits for ``acknowledge``."""
        del reason_code
        return False


class MessageSender:
    """Sends the messages of one edge.

    Args:
        node: This edge.
        loop: Publishes messages.
        clients: The connections.
        routes: Finds the Route of a topic.
    """

    def __init__(self, node: EdgeNode, loop: CorePublisher, clients: Clients, routes: TopicRoutes) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._routes = routes
        self._pipelines: Pipelines[OutgoingMessage] = Pipelines()

    def send(self, item: OutgoingMessage, route: Route) -> None:
        """Send a message to all destinations, and resume its connection; QoS 1 and 2 to the retained partition first.

        A message that may not join its connection's pipeline waits until that is empty, and parks the connection.
        """
        publish = item.publish
        publish.traced = publish.traced or route.traced
        item.retained_partition = self._node.map.partition_for(item.name) if publish.retain else -1
        item.copies = route.copies
        pipeline = self._pipelines.of(publish.conn.number) if publish.conn is not None else None
        if pipeline is not None and not self._may_join(pipeline, item, route):
            pipeline.waiting = item
            return
        if not publish.qos or item.retained_partition < 0 or _others(route, item.retained_partition).empty:
            if item.waits_for_retained:
                self._routes.cache.retained_started(item.name)
            bound = _with_picks(route, item.picks)
            owner = item.owner if item.retained_partition >= 0 else b""
            self._loop.publish(bound, publish, item.retained_partition, *item.origin, item.on_done, owner=owner)
            self._resume_connection(publish.conn)
            return
        self._retain_first(item)

    def _retain_first(self, item: OutgoingMessage) -> None:
        """Write a message to its retained partition and the queues there, then send it to the other destinations.

        Meanwhile the loop reads further retained messages of the connection. A refused message reaches no other
        destination.
        """
        publish, conn = item.publish, item.publish.conn
        self._routes.cache.retained_started(item.name)
        copy = InboundPublish(
            publish.topic, publish.payload, publish.qos, True, publish.properties, publish.version, publish.expiry_s,
            publish.packet_identifier, conn=conn,
        )  # fmt: skip
        copy.traced = publish.traced
        if conn is not None:
            self._pipelines.join(conn.number, item)
            self._loop.begin_pipeline(conn)
        item.tag = self._loop.publish(
            Route(publish.topic), copy, item.retained_partition, *item.origin, item.on_retained_stored, owner=item.owner
        )
        self._resume_connection(conn)

    def _may_join(self, pipeline: Pipeline[OutgoingMessage], item: OutgoingMessage, route: Route) -> bool:
        """Return whether a message may be written while earlier ones of its connection are in the pipeline."""
        if not item.waits_for_retained or item.retained_partition in route.partitions:
            return False  # its first write would reach subscribers
        return self._pipelines.may_join(pipeline, item)

    def retained_written(self, item: OutgoingMessage) -> None:
        """Count the retained write as finished, whether acknowledged or refused."""
        self._routes.cache.retained_finished(item.name)

    def on_retained_stored(self, item: OutgoingMessage, reason_code: int) -> None:
        """Send a message to its other destinations once all earlier ones of its connection are stored."""
        conn = item.publish.conn
        pipeline = self._pipelines.of(conn.number) if conn is not None else None
        if pipeline is None:
            self._send_after_retained(item, reason_code)
            return
        item.outcome = reason_code
        if not pipeline.is_draining:
            self._drain(pipeline)

    def _drain(self, pipeline: Pipeline[OutgoingMessage]) -> None:
        pipeline.is_draining = True
        while (first := pipeline.take_outcome()) is not None:
            self._send_after_retained(*first)
        pipeline.is_draining = False

    def _send_after_retained(self, item: OutgoingMessage, reason_code: int) -> None:
        publish, conn = item.publish, item.publish.conn
        if conn is not None and conn.closed and conn.session:
            self._leave(item)  # the client repeats it, perhaps already at another edge with newer messages behind it
        elif reason_code == ReasonCode.SESSION_TAKEN_OVER and conn is not None:
            if not conn.closed:
                self._clients.error(conn, reason_code)
            self._leave(item)
        elif reason_code >= FAILURE:
            self._loop.bears(publish, *item.retained_origin)
            without_reason_code = reason_code == ReasonCode.SERVER_BUSY and conn is not None and conn.version != 5
            if without_reason_code and conn is not None and not conn.closed:  # its record remains for the repeat
                self._clients.error(conn, ReasonCode.QUOTA_EXCEEDED)
            if not item.finished(reason_code):
                self._loop.acknowledge(publish, reason_code)
            self._leave(item)
        else:
            # The Route may have changed: a client that subscribed meanwhile reads the retained message behind this
            # write, and the hold of a subscriber's live messages may have ended.
            self._routes.with_route(publish.topic, item.routed_to_others)

    def send_to_others(self, item: OutgoingMessage, route: Route) -> None:
        """Send a message to all destinations except its retained partition."""
        publish = item.publish
        others = _others(route, item.retained_partition)
        if others.empty:
            code = 0 if route.partitions else ReasonCode.NO_MATCHING_SUBSCRIBERS
            self._loop.bears(publish, *item.retained_origin)
            self._loop.acknowledge(publish, code)
            item.finished(code)
        else:
            written = (item.tag, item.retained_partition)
            self._loop.publish(_with_picks(others, item.picks), publish, -1, *item.origin, item.finished, written)
        self._leave(item)

    def _leave(self, item: OutgoingMessage) -> None:
        """Continue with the next message of the pipeline, or with the message behind an empty one."""
        conn = item.publish.conn
        if conn is None:
            return
        pipeline = self._pipelines.leave(conn.number, item)
        if len(pipeline):
            if not pipeline.is_draining:
                self._drain(pipeline)
            return
        self._loop.end_pipeline(conn)
        if pipeline.waiting is not None:
            self._routes.with_route(pipeline.waiting.publish.topic, pipeline.waiting.routed)

    def _resume_connection(self, conn: LoopConnection | None) -> None:
        if conn is not None and not conn.closed:
            self._loop.resume(conn)


def _others(route: Route, retained_partition: int) -> Route:
    """Return the Route without the retained partition, which finds its own subscribers."""
    partitions = tuple(number for number in route.partitions if number != retained_partition)
    return Route(route.topic, route.subs, route.edges, partitions, route.groups, route.reason_code)


def _with_picks(route: Route, picks: Picks | None) -> Route:
    """Return the Route whose groups are bound to recorded picks; None: the Route unchanged."""
    if picks is None or not route.groups:
        return route
    groups: list[RecordedPick] = []
    for group in route.groups:
        assert isinstance(group, SharedGroup)
        groups.append(RecordedPick(group, picks.get(group.share)))
    return Route(
        route.topic, route.subs, route.edges, route.partitions, tuple(groups), route.reason_code, route.audience
    )
