"""QoS 2 of durable publishers: the partition records packet identifiers and picks before any fan-out.

The origin from the partition travels with the message, so every edge detects a repeat. The record includes the
destinations of shared copies; a repeat uses them again instead of a new pick.
Source: MQTT 5.0 section 4.3.3; docs/protocol.md sections 4, 5.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.cluster.partition_requests import PartitionRequests
from edge.loop.state import InboundPublish, LoopConnection, PendingAck, Remote, Route
from edge.node.node import EdgeNode
from edge.node.ports import CorePublisher
from edge.publishing.picking import Picking, topic_of
from edge.publishing.sending import MessageSender, OutgoingMessage, Picks
from edge.rights.client_rights import ClientRights
from edge.routes.shared_groups import HERE, SharedGroup
from edge.subscriptions.topic_routes import TopicRoutes
from mqtt.reasons import FAILURE, ReasonCode
from wire.messages.batches import OriginKind
from wire.messages.control import Control
from wire.messages.redispatch import SharePick
from wire.messages.sessions import InboundRecorded, InboundReleased

__all__ = ["Recording"]


@dataclass(slots=True)
class _RecordedInbound:
    """A QoS 2 PUBLISH of a durable session, until its identifier and its picks are recorded."""

    recording: "Recording"
    client: Client
    publish: InboundPublish
    counter: int = -1  # assigned by the partition; -1: none yet
    known: dict[bytes, SharePick] = field(default_factory=dict)  # recorded picks by share

    def routed(self, route: Route) -> None:
        """Record the missing picks, or send the message."""
        self.recording.record(self, route)

    def recorded(self, answer: Control) -> None:
        """Continue after the partition's reply."""
        self.recording.recorded(self, answer)


@dataclass(slots=True)
class _ReplacementPick:
    """A replacement for a pick that refused a recorded message, until it is recorded."""

    recording: "Recording"
    copy: PendingAck
    group: SharedGroup
    choice: Remote | int
    pick: SharePick

    def recorded(self, answer: Control) -> None:
        """Send the copy to the new pick."""
        self.recording.pick_recorded(self, answer)


@dataclass(slots=True, kw_only=True)
class _Recorded(OutgoingMessage):
    """A QoS 2 PUBLISH of a durable session whose identifier is recorded."""

    recording: "Recording"

    def finished(self, reason_code: int) -> bool:
        """Release the identifier of a refused message before the client receives the failure."""
        publish = self.publish
        conn = publish.conn
        assert conn is not None
        if reason_code < FAILURE or conn.closed:
            return False
        if publish.reserved_ack is not None and publish.reserved_ack.delivered:
            return False  # no answer either: the client repeats the message, and its destinations detect that
        # A failing PUBREC frees the identifier at the client without a PUBREL, so the edge releases the record first.
        self.recording.refused(conn, publish, reason_code)
        return True


@dataclass(slots=True, frozen=True)
class _Rejection:
    """A refused message until its identifier is released."""

    loop: CorePublisher
    publish: InboundPublish
    reason_code: int

    def released(self, answer: Control) -> None:
        """Send the failing PUBREC."""
        if isinstance(answer, InboundReleased):
            self.loop.acknowledge(self.publish, self.reason_code)


@dataclass(slots=True, frozen=True)
class _Pubrel:
    """A PUBREL of a durable session."""

    loop: CorePublisher
    conn: LoopConnection
    packet_identifier: int

    def released(self, answer: Control) -> None:
        """Write PUBCOMP."""
        if isinstance(answer, InboundReleased) and not self.conn.closed:
            # An unknown identifier is no error: a client that missed our PUBCOMP repeats its PUBREL (section 3.7.2.1).
            self.loop.released(self.conn, self.packet_identifier, 0)


class Recording:
    """Records QoS 2 messages of durable publishers.

    Args:
        node: This edge.
        loop: Writes acknowledgements.
        clients: The connections.
        requests: Requests to the publishers' partitions.
        routes: Finds the Route of a topic.
        picking: Selects destinations of groups.
        sending: Sends a recorded message.
        rights: Publish permissions of each client.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: CorePublisher,
        clients: Clients,
        requests: PartitionRequests,
        routes: TopicRoutes,
        picking: Picking,
        sending: MessageSender,
        rights: ClientRights,
    ) -> None:
        self._node = node
        self._loop = loop
        self._clients = clients
        self._requests = requests
        self._routes = routes
        self._picking = picking
        self._sending = sending
        self._rights = rights

    def begin(self, client: Client, publish: InboundPublish, route: Route) -> None:
        """Record a PUBLISH and send it."""
        self.record(_RecordedInbound(self, client, publish), route)

    def record(self, item: _RecordedInbound, route: Route) -> None:
        """Record the identifier, and a pick for every group of the route without one; then send the message."""
        client, publish = item.client, item.publish
        if client.conn.closed:
            return
        if item.counter >= 0 and not self._rights.may_publish(client, publish.topic.decode(), 2, publish.retain):
            # The rules changed meanwhile. Without its release the next message with this identifier would count as a
            # repeat.
            self._node.count("refused_publish_rights")
            self._rights.refused(client, "publish", publish.topic.decode())
            self._node.journal.note(
                "refused", "not_authorized", client.client_id, publish.topic.decode(), detail="PUBLISH"
            )
            self.refused(client.conn, publish, ReasonCode.NOT_AUTHORIZED)
            self._loop.resume(client.conn)
            return
        destinations: Picks = {}
        picks = []
        for group in route.groups:
            assert isinstance(group, SharedGroup)
            pick = item.known.get(group.share)
            if pick is not None and item.counter >= 0:
                choice = self._destination(client, group, pick, item)
                if choice is not None:
                    destinations[group.share] = choice
                    continue
            choice = self._picking.choose(group, publish.topic)
            if choice is not None:
                attempt = 0 if pick is None else pick.attempt + 1
                picks.append(group.to_record(choice, self._node.incarnation, attempt))
        if item.counter < 0 or picks:
            self._request_record(client, publish.packet_identifier, picks, item.recorded)
            return
        origin = (OriginKind.SESSION, client.session, item.counter)
        self._sending.send(_Recorded(self._sending, publish, origin, destinations, recording=self), route)

    def recorded(self, item: _RecordedInbound, answer: Control) -> None:
        """Find the Route again: its groups may need picks that are not recorded yet."""
        client = item.client
        if client.conn.closed or not isinstance(answer, InboundRecorded):
            return
        if answer.reason_code:
            self._clients.error(client.conn, answer.reason_code)
            return
        item.counter = answer.counter
        item.known = {pick.share: pick for pick in answer.picks}
        self._routes.with_route(item.publish.topic, item.routed)

    def _destination(
        self, client: Client, group: SharedGroup, pick: SharePick, item: _RecordedInbound
    ) -> Remote | int | None:
        """Return the destination of a recorded pick, None if it must be replaced."""
        choice = group.from_record(pick, self._node.incarnation, self._node.peer_of(pick.edge))
        if choice == HERE and not self._picking.has_member(group.share, item.publish.topic):
            return HERE if self._loop.knows_pick(group.share, client.session, item.counter) else None
        return choice

    def _request_record(
        self, client: Client, packet_identifier: int, picks: list[SharePick], then: Callable[[Control], None]
    ) -> None:
        request = self._requests.of(client).record_inbound(packet_identifier, picks)
        if not self._requests.ask(request, then, self._node.now):
            self._clients.error(client.conn, ReasonCode.SERVER_BUSY)

    def redispatch(self, copy: PendingAck, group: SharedGroup) -> None:
        """Record another pick for a copy whose pick refused it or died; then send the copy."""
        assert copy.pick is not None
        self._redispatch(copy, group, copy.pick.attempt + 1)

    def _redispatch(self, copy: PendingAck, group: SharedGroup, attempt: int) -> None:
        parent = copy.parent
        assert parent is not None and parent.conn is not None
        client = parent.conn.context
        choice = self._picking.choose(group, topic_of(copy), copy.tried or [])
        if not isinstance(client, Client) or parent.conn.closed or choice is None:
            self._loop.send_pick(copy, None)  # the publisher repeats it elsewhere, or no member is left
            return
        item = _ReplacementPick(self, copy, group, choice, group.to_record(choice, self._node.incarnation, attempt))
        self._request_record(client, parent.packet_identifier, [item.pick], item.recorded)

    def pick_recorded(self, item: _ReplacementPick, answer: Control) -> None:
        """Send a copy to its new pick; replace a pick that died meanwhile."""
        copy, group = item.copy, item.group
        parent = copy.parent
        if parent is None or parent.conn is None or parent.conn.closed:
            self._loop.send_pick(copy, None)
            return
        if not isinstance(answer, InboundRecorded) or answer.reason_code:
            self._clients.error(parent.conn, getattr(answer, "reason_code", ReasonCode.UNSPECIFIED_ERROR))
            return
        destination = group.from_record(item.pick, self._node.incarnation, self._node.peer_of(item.pick.edge))
        if destination == HERE and self._picking.has_member(group.share, topic_of(copy)):
            self._loop.send_pick(copy, self._picking.member(group.share, topic_of(copy)))
        elif isinstance(destination, Remote):
            self._loop.send_pick(copy, destination)
        else:
            tried = copy.tried or []
            copy.tried = [*tried, item.choice] if isinstance(item.choice, Remote) else tried
            self._redispatch(copy, group, item.pick.attempt + 1)

    # --- release

    def refused(self, conn: LoopConnection, publish: InboundPublish, reason_code: int) -> None:
        """Release the identifier of a refused message, then send the failing PUBREC."""
        client = conn.context
        assert isinstance(client, Client)
        self._release(client, publish.packet_identifier, _Rejection(self._loop, publish, reason_code).released)

    def pubrel(self, conn: LoopConnection, packet_identifier: int) -> None:
        """Answer PUBREL of a durable session when its record is durably deleted; unknown ones too [MQTT-4.3.3-11]."""
        client = conn.context
        assert isinstance(client, Client)
        self._release(client, packet_identifier, _Pubrel(self._loop, conn, packet_identifier).released)

    def _release(self, client: Client, packet_identifier: int, then: Callable[[Control], None]) -> None:
        """Delete a packet identifier at its partition."""
        request = self._requests.of(client).release_inbound(packet_identifier)
        if not self._requests.ask(request, then, self._node.now):
            self._clients.error(client.conn, ReasonCode.SERVER_BUSY)
