"""Sending one message everywhere: to the topic's retained partition first, then to everybody else.

A retained message goes to the topic's retained partition, and to everybody else when it stands there:
who has a value live finds no older one any more. Those of one connection are pipelined.
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

Picks = dict[bytes, Remote | int | None]  # by share: where a message's copy goes, as recorded


@dataclass(slots=True)
class OutgoingMessage:
    """A message on its way to everybody: a client's PUBLISH, or what a subclass says.

    Attributes:
        origin: OriginKind, and its two numbers.
        picks: Where its copies for shared groups go; None: nothing is recorded, and each group picks as it likes.
        retained_partition: The partition that retains the message, -1 for none.
        tag: Of the copy that went to the retained partition first.
        outcome: Of that copy, until it is taken; -1: none.
        copies: How many this edge delivers.
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
        """Whose message it is, as a record says it: the partition that retains it keeps that."""
        client = self.publish.conn.context if self.publish.conn is not None else None
        if not isinstance(client, Client):
            return b""
        bounds = client.known_bounds
        most = bounds.retained_user_max, bounds.retained_bytes_user_max
        return encode_owner(client.owner.encode(), client.owner_made, *most)

    @property
    def went_by(self) -> tuple[int, int, int]:
        """The origin of the copy that went to the retained partition first."""
        return self.origin if self.origin[0] != OriginKind.EDGE else (OriginKind.EDGE, 0, self.tag)

    @property
    def waits_for_retained(self) -> bool:
        """Whether the acknowledgement of a retained write is counted."""
        return self.retained_partition >= 0 and self.publish.qos > 0

    @property
    def on_done(self) -> Callable[[int], object] | None:
        """Return the taker of the outcome of a message that goes everywhere at once; QoS 0 has none."""
        return self.sent if self.publish.qos else None

    def routed(self, route: Route) -> None:
        """Send it, unless its publisher has left."""
        if self.publish.conn is None or not self.publish.conn.closed:
            self.sending.send(self, route)

    def routed_again(self, route: Route) -> None:
        """Send it to everybody beside its retained partition, where it stands."""
        self.sending.send_to_others(self, route)

    def sent(self, reason_code: int) -> bool:
        """Take the outcome of a message that went everywhere at once."""
        if self.waits_for_retained:
            self.sending.retained_written(self)
        return self.finished(reason_code)

    def stands(self, reason_code: int) -> None:
        """Take the outcome of the write to its retained partition."""
        self.sending.retained_written(self)
        self.sending.stands(self, reason_code)

    def finished(self, reason_code: int) -> bool:
        """Take the outcome; return whether the publisher's answer waits for ``acknowledge``."""
        del reason_code
        return False


class MessageSender:
    """Sends the messages of one edge.

    Args:
        node: This edge.
        loop: Where messages are published.
        clients: The connections.
        routes: Where topics go.
    """

    def __init__(self, node: EdgeNode, loop: CorePublisher, clients: Clients, routes: TopicRoutes) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._routes = routes
        self._pipelines: Pipelines[OutgoingMessage] = Pipelines()

    def send(self, item: OutgoingMessage, route: Route) -> None:
        """Send a message everywhere, and go on with its connection; QoS 1 and 2 to the retained partition first.

        One that may not join its connection's pipeline waits until that is empty, and its connection with it.
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
            self._go_on(publish.conn)
            return
        self._retain_first(item)

    def _retain_first(self, item: OutgoingMessage) -> None:
        """Write a message to its retained partition and the queues there, then send it to everybody else.

        Meanwhile its connection is read for more retained messages. What is refused reaches nobody.
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
            Route(publish.topic), copy, item.retained_partition, *item.origin, item.stands, owner=item.owner
        )
        self._go_on(conn)

    def _may_join(self, pipeline: Pipeline[OutgoingMessage], item: OutgoingMessage, route: Route) -> bool:
        """Whether a message may be written now, behind others of its connection that are not sent to everybody yet."""
        if not item.waits_for_retained or item.retained_partition in route.partitions:
            return False  # its first write would reach subscribers
        return self._pipelines.may_join(pipeline, item)

    def retained_written(self, item: OutgoingMessage) -> None:
        """Note that a retained write is acknowledged, or refused."""
        self._routes.cache.retained_finished(item.name)

    def stands(self, item: OutgoingMessage, reason_code: int) -> None:
        """Send a message to everybody else once it, and those before it, stand in their retained partitions."""
        conn = item.publish.conn
        pipeline = self._pipelines.of(conn.number) if conn is not None else None
        if pipeline is None:
            self._stands(item, reason_code)
            return
        item.outcome = reason_code
        if not pipeline.is_draining:
            self._drain(pipeline)

    def _drain(self, pipeline: Pipeline[OutgoingMessage]) -> None:
        pipeline.is_draining = True
        while (first := pipeline.take_outcome()) is not None:
            self._stands(*first)
        pipeline.is_draining = False

    def _stands(self, item: OutgoingMessage, reason_code: int) -> None:
        publish, conn = item.publish, item.publish.conn
        if conn is not None and conn.closed and conn.session:
            self._leave(item)  # its client sends it again, and may have elsewhere, with newer ones behind it
        elif reason_code == ReasonCode.SESSION_TAKEN_OVER and conn is not None:
            if not conn.closed:
                self._clients.error(conn, reason_code)
            self._leave(item)
        elif reason_code >= FAILURE:
            self._loop.bears(publish, *item.went_by)
            untold = reason_code == ReasonCode.SERVER_BUSY and conn is not None and conn.version != 5
            if untold and conn is not None and not conn.closed:  # its record stays for when the message comes again
                self._clients.error(conn, ReasonCode.QUOTA_EXCEEDED)
            if not item.finished(reason_code):
                self._loop.acknowledge(publish, reason_code)
            self._leave(item)
        else:
            # Who subscribed meanwhile reads the retained message behind this write; who stopped holding back its live
            # messages no longer takes them where the Route of that time says.
            self._routes.with_route(publish.topic, item.routed_again)

    def send_to_others(self, item: OutgoingMessage, route: Route) -> None:
        """Send a message to everybody beside its retained partition."""
        publish = item.publish
        others = _others(route, item.retained_partition)
        if others.empty:
            code = 0 if route.partitions else ReasonCode.NO_MATCHING_SUBSCRIBERS
            self._loop.bears(publish, *item.went_by)
            self._loop.acknowledge(publish, code)
            item.finished(code)
        else:
            written = (item.tag, item.retained_partition)
            self._loop.publish(_with_picks(others, item.picks), publish, -1, *item.origin, item.finished, written)
        self._leave(item)

    def _leave(self, item: OutgoingMessage) -> None:
        """Go on with the next message of the pipeline, or with the one that waited until it is empty."""
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

    def _go_on(self, conn: LoopConnection | None) -> None:
        if conn is not None and not conn.closed:
            self._loop.resume(conn)


def _others(route: Route, retained_partition: int) -> Route:
    """Return where a message goes beside its retained partition, which finds the subscribers that it has itself."""
    partitions = tuple(number for number in route.partitions if number != retained_partition)
    return Route(route.topic, route.subs, route.edges, partitions, route.groups, route.reason_code)


def _with_picks(route: Route, picks: Picks | None) -> Route:
    """Return the Route whose groups are bound to recorded picks; None: the Route as it is."""
    if picks is None or not route.groups:
        return route
    groups: list[RecordedPick] = []
    for group in route.groups:
        assert isinstance(group, SharedGroup)
        groups.append(RecordedPick(group, picks.get(group.share)))
    return Route(
        route.topic, route.subs, route.edges, route.partitions, tuple(groups), route.reason_code, route.audience
    )
