"""The interface between the loop and the edge core: all calls of the loop into the core.

Every method is synchronous, never awaits, and raises only the documented errors. Inside a call the handler may use any
method of ``BrokerLoop`` (``write``, ``resume``, ``close``, ``publish``, ``install_route`` ...). ``resume`` and
``close`` never call the handler before they return.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from typing import Protocol

from edge.loop import layout
from edge.loop.state import InboundPublish, LoopConnection, LoopPeer, PendingAck, Remote, Route, ShareGroup, Sub

__all__ = ["AckSink", "ClosedReason", "DropSink", "Handler"]


class ClosedReason:
    """Cause of a closed connection (``Handler.closed``)."""

    BY_PEER = layout.BY_PEER  # end of file or reset
    BY_US = layout.BY_US  # ``BrokerLoop.close``
    FAILED = layout.FAILED  # the transport failed: TLS, filter, link framing
    SHUTDOWN = layout.SHUTDOWN  # the loop ended


class Handler(Protocol):
    """The edge core's interface for the loop."""

    def packet(self, conn: LoopConnection, first_byte: int, body: bytes) -> None:
        """Handle a packet outside the loop (CONNECT, SUBSCRIBE, AUTH, DISCONNECT ...), length within bounds.

        ``conn`` is parked until ``resume`` or ``close``. ``body`` follows the fixed header and is not validated. The
        fixed header's flags are not validated either, except for PUBLISH.
        """

    def inbound(self, conn: LoopConnection, publish: InboundPublish, route: Route) -> None:
        """Handle a parsed PUBLISH that the loop does not deliver; ``conn`` is parked until ``resume`` or ``close``.

        ``route``: the current Route of its topic.

        Reasons: RETAIN, or QoS 2 of a durable session. The alias is resolved, properties are validated, the quota is
        counted, and the lease is held. The core completes it with ``hot.publish(route, publish, ...)`` or
        ``hot.acknowledge(publish, reason_code)``, at once or later. If it resumes earlier, it is responsible for the
        order (``hot.begin_pipeline``). A repeated QoS 2 packet of this connection is not passed here. One of an earlier
        connection is: its partition detects it.
        """

    def pubrel(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """Handle PUBREL of a durable session; not parked. The core answers with ``hot.released``."""

    def miss(self, conn: LoopConnection, topic: bytes) -> None:
        """Request the Route of a topic (valid UTF-8, no wildcard, may begin with ``$``) that ``conn`` publishes to.

        Parked *before* the packet: after install_route and resume, the packet is parsed again.
        """

    def prefetch(self, conn: LoopConnection, topics: list[bytes]) -> int:
        """Request the Routes of topics that ``conn`` publishes to behind a missed one.

        Topics are valid UTF-8 without wildcards. No packet waits for them. Returns how many of the first were accepted.
        """

    def fenced(self, conn: LoopConnection) -> None:
        """Handle a QoS >= 1 PUBLISH without a lease; parked before the packet until ``resume``."""

    def fence_over(self, now_ns: int) -> None:
        """Handle the time of ``set_fence``. Connections that the core cuts now are neither parsed nor written."""

    def error(self, conn: LoopConnection, reason_code: int) -> None:
        """Handle a protocol error or an exceeded limit; parked permanently. The core writes DISCONNECT and closes."""

    def closed(self, conn: LoopConnection, why: int) -> None:
        """Handle a closed connection (``ClosedReason``); called once per attached connection, links included."""

    def accepted(self, listener: object, fd: int, address: str, port: int) -> None:
        """Handle a new socket with its peer's address and port: the core calls ``hot.attach`` or closes ``fd``."""

    def secured(self, conn: LoopConnection) -> None:
        """Handle a link's completed TLS handshake, before any read. The core may ``close`` it for its certificate."""

    def hello(self, conn: LoopConnection, payload: bytes) -> None:
        """Handle a link's HELLO (payload of the frame): call ``bind_link`` or ``close``; frames behind it wait."""

    def frame(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """Handle a numbered frame of other kinds (CONTROL, RAFT ...), in order.

        Raises:
            ValueError: It is malformed: the loop calls ``broke`` and ends the connection.
        """

    def broke(self, peer: LoopPeer, why: str) -> None:
        """Handle a malformed frame of this incarnation; its connection ends, and ``link_lost`` follows.

        Frames that arrived with it count as acknowledged and are not repeated: the core accepts no other link of it.
        """

    def violated(self, peer: LoopPeer, what: str, reason: str) -> None:
        """Handle a forbidden message of a peer (reason: ``wire/links/allowed.py``); ``tier`` closes its link."""

    def link_lost(self, peer: LoopPeer) -> None:
        """Handle a lost link; unacknowledged frames are kept for the next one until ``retire_peer``."""

    def hold(self, sub: Sub, topic: bytes, record: bytes) -> int:
        """Keep a copy for a ``held`` subscriber, as a MSG record, until ``hot.deliver_held``.

        Returns HELD, HELD_FULL or NOT_HELD. HELD_FULL parks its publisher until the end of the iteration, which frees
        space. NOT_HELD is the same for all copies of an iteration: the loop delivers them.
        """

    def pick(
        self, group: ShareGroup, route: Route, conn: LoopConnection | None, topic: bytes, qos: int
    ) -> Sub | Remote | None:
        """Select a shared group's destination for one message; None drops it, counted. Called once per message."""

    def picked(self, peer: LoopPeer, share: bytes, topic: bytes, qos: int) -> Sub | None:
        """Select the local member for a message that another edge sent to this one; None refuses it."""

    def refused(self, message: PendingAck, remote: Remote, reason_code: int) -> Sub | Remote | PendingAck | None:
        """Select another destination after a refusal (code >= 0x80) or failure; None ends the message there.

        ``message`` itself: later, by ``hot.send_pick``.
        """

    def refresh(self, route: Route) -> Route | None:
        """Check a Route of an older generation before its use.

        Calls ``hot.keep_route`` if it is current, else ``hot.replace_route``; None drops it, and ``miss`` requests the
        topic again.
        """

    def local(self, topic: bytes) -> Route:
        """Return a Route of this edge's own subscribers of a topic, for messages that other edges forwarded here.

        It is kept for the topic until the generation changes, and afterwards if its subscribers are the same tuple.
        """

    def authorize(self, conn: LoopConnection, topic: bytes, retain: bool) -> int:
        """Return the QoS levels at which ``conn`` may publish to a topic: bits 0 to 2 plain, bits 3 to 5 with RETAIN.

        Bit 6: the plain result holds for all connections of the ``hot.join_class`` class and is equal for each QoS;
        bits 3 to 5 are valid for ``retain`` alone then. The result is cached until ``hot.void_verdicts``; a refused
        message gets 0x87. Called only when ``hot.authorizing`` is set, and not for topics that no client may publish
        to.
        """

    def may_receive(self, conn: LoopConnection, topic: bytes, qos: int) -> bool:
        """Return whether a pushed message may be written to a connection of ``hot.judge_pushes_to``.

        It must not call the loop. A refused message is dropped, and its partition receives 0x87.
        """

    def given_up(self, share: bytes, record: bytes, since_ns: int) -> None:
        """Handle a shared group's pending copy that its member may no longer receive: send it to another one.

        It must not call the loop; later ``hot.read_given_up`` reads it.
        """

    def sent(self, conn: LoopConnection, octets: int) -> None:
        """Count processed bytes of a ``SessionOptions.metered`` connection."""

    def has_room(self, conn: LoopConnection) -> None:
        """Handle free output capacity of a ``hot.report_room`` connection; once per call of that."""

    def memory_exceeded(self) -> None:
        """Handle held bytes of clients above the limit of ``hot.bound_held_bytes``."""

    def turn_end(self, now_ns: int) -> None:
        """End an iteration, before the flush: send batched requests. Skipped before ``hot.turn_end_ns``."""


class AckSink(Protocol):
    """Records acknowledged messages for the audit; ``hot.ledger = None`` (default) costs one comparison."""

    def route_text(self, route: Route) -> bytes:
        """Return the part of each row that describes a route; called once per route, at its first acknowledgement."""

    def take_rows(self, rows: bytes, count: int) -> None:
        """Store the rows of an iteration (``edge/loop/ack_rows.py``); then their acknowledgements are sent."""


class DropSink(Protocol):
    """Records drops of the loop; ``hot.journal = None`` (default) costs one comparison per drop."""

    def dropped(self, context: object, reason: str, topic: bytes, kind: int, a: int, b: int) -> None:
        """Record a dropped message: context of its connection or None, and its origin (kind 0: unknown)."""

    def denied(self, context: object, topic: bytes) -> None:
        """Record that no rule allows a client to publish to a topic: at most once per second and connection."""
