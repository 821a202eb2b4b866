"""The contract between the hot loop and the edge core that decides: what the loop calls, and when.

Every method is synchronous, answers at once or later, never awaits, and raises only what it says. Inside a call the
handler may use any method of ``Engine`` (``write``, ``resume``, ``close``, ``publish``, ``install_route`` ...).
``resume`` and ``close`` never call the handler back before they return.
Decision: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

from typing import Protocol

from edge.loop import layout
from edge.loop.state import InboundPublish, LoopConnection, LoopPeer, PendingAck, Remote, Route, ShareGroup, Sub

__all__ = ["AckSink", "ClosedReason", "DropSink", "Handler"]


class ClosedReason:
    """Why a connection ended (``Handler.closed``)."""

    BY_PEER = layout.BY_PEER  # end of file or reset
    BY_US = layout.BY_US  # ``Engine.close``
    FAILED = layout.FAILED  # the transport failed: TLS, filter, link framing
    SHUTDOWN = layout.SHUTDOWN  # the loop ended


class Handler(Protocol):
    """The edge core as the loop sees it."""

    def packet(self, conn: LoopConnection, first_byte: int, body: bytes) -> None:
        """A packet that the loop does not handle (CONNECT, SUBSCRIBE, AUTH, DISCONNECT ...), length within bounds.

        ``conn`` is parked until ``resume`` or ``close``. ``body`` follows the fixed header; nothing in it was checked.
        The fixed header's flags were not checked either, except for PUBLISH.
        """

    def inbound(self, conn: LoopConnection, publish: InboundPublish, route: Route) -> None:
        """A parsed PUBLISH that the loop does not deliver itself; ``conn`` is parked until ``resume`` or ``close``.

        ``route``: of its topic, right as of now.

        Why: RETAIN is set; or QoS 2 of a durable session. Alias resolved, properties checked, quota counted, lease
        held. The core ends it with ``hot.publish(route, publish, ...)`` or ``hot.acknowledge(publish, reason_code)``,
        at once or later; it may resume before that (order is then its business: ``hot.begin_pipeline``). A repeat of a
        QoS 2 packet of this connection does not come here. One of an earlier connection does: its partition knows it.
        """

    def pubrel(self, conn: LoopConnection, packet_identifier: int, reason_code: int) -> None:
        """PUBREL of a durable session; not parked. The core answers with ``hot.released``."""

    def miss(self, conn: LoopConnection, topic: bytes) -> None:
        """No Route is cached for a topic (valid UTF-8, no wildcard, may begin with ``$``) that ``conn`` publishes to.

        Parked *before* the packet: install_route, then resume, and the packet is parsed again.
        """

    def prefetch(self, conn: LoopConnection, topics: list[bytes]) -> int:
        """Request the Routes of topics that ``conn`` publishes to behind one that it misses.

        Topics are valid UTF-8 without wildcards. No packet waits for them. Returns how many of the first were taken.
        """

    def fenced(self, conn: LoopConnection) -> None:
        """A QoS >= 1 PUBLISH came without a lease; parked before the packet until ``resume``."""

    def fence_over(self, now_ns: int) -> None:
        """The time of ``set_fence`` has come. What the core cuts now is neither parsed nor written any more."""

    def error(self, conn: LoopConnection, reason_code: int) -> None:
        """The client broke the protocol, or a bound; parked for good. The core writes DISCONNECT and closes."""

    def closed(self, conn: LoopConnection, why: int) -> None:
        """The connection is gone (``ClosedReason``); called once per attached connection, links included."""

    def accepted(self, listener: object, fd: int, address: str, port: int) -> None:
        """A new socket, with address and port at its other end: the core calls ``hot.attach`` or closes ``fd``."""

    def secured(self, conn: LoopConnection) -> None:
        """The TLS handshake of a link is done, nothing was read yet. The core may ``close`` it for its certificate."""

    def hello(self, conn: LoopConnection, payload: bytes) -> None:
        """A link's HELLO (payload of the frame). The core calls ``bind_link`` or ``close``; frames behind it wait."""

    def frame(self, peer: LoopPeer, kind: int, payload: bytes) -> None:
        """A numbered frame that the loop does not take itself (CONTROL, RAFT ...), in order.

        Raises:
            ValueError: It cannot be read: the loop calls ``broke`` and ends the connection.
        """

    def broke(self, peer: LoopPeer, why: str) -> None:
        """A frame of this incarnation cannot be read; its connection ends, and ``link_lost`` follows.

        Frames that came with it count as taken and do not come again: the core takes no other link of it.
        """

    def violated(self, peer: LoopPeer, what: str, reason: str) -> None:
        """The loop refused what a peer may not say (reason: ``wire/links/allowed.py``); ``tier`` closes its link."""

    def link_lost(self, peer: LoopPeer) -> None:
        """The peer's connection ended; frames not taken are kept for the next one until ``retire_peer``."""

    def hold(self, sub: Sub, topic: bytes, record: bytes) -> int:
        """Keep a copy for a subscriber that is ``held``, as a MSG record, until ``hot.deliver_held``.

        HELD; or HELD_FULL, to have its publisher wait for the end of the turn, in which room is made; or NOT_HELD,
        which is the same for all copies of a turn: the loop delivers it.
        """

    def pick(
        self, group: ShareGroup, route: Route, conn: LoopConnection | None, topic: bytes, qos: int
    ) -> Sub | Remote | None:
        """Choose a shared group's destination for one message; None drops it, counted. Called once per message."""

    def picked(self, peer: LoopPeer, share: bytes, topic: bytes, qos: int) -> Sub | None:
        """Choose the local member for a message that another edge picked us for; None refuses it."""

    def refused(self, message: PendingAck, remote: Remote, reason_code: int) -> Sub | Remote | PendingAck | None:
        """A picked destination refused (code >= 0x80) or died: choose another; None ends the message there.

        ``message`` itself: later, by ``hot.send_pick``.
        """

    def refresh(self, route: Route) -> Route | None:
        """Judge a Route of an older generation that is about to be used.

        ``hot.keep_route`` if it is right as it stands, else ``hot.replace_route``; None drops it, and the topic is
        asked for again by ``miss``.
        """

    def local(self, topic: bytes) -> Route:
        """Return a Route of this edge's own subscribers of a topic, for messages that other edges forwarded here.

        It is kept for the topic until the generation changes, and afterwards if its subscribers are the same tuple.
        """

    def authorize(self, conn: LoopConnection, topic: bytes, retain: bool) -> int:
        """Return at which QoS ``conn`` may publish to a topic: bit 0 to 2 plainly, bit 3 to 5 with RETAIN.

        Bit 6: all connections of the class that ``hot.join_class`` named get the same for plain publishing, and it is
        the same at each QoS; bits 3 to 5 count for ``retain`` alone then. The answer is kept until
        ``hot.void_verdicts``; a message it refuses gets 0x87. Called only when ``hot.authorizing`` is set, and not for
        topics that nobody may publish to.
        """

    def may_receive(self, conn: LoopConnection, topic: bytes, qos: int) -> bool:
        """Return whether a pushed message may be written to a connection that ``hot.judge_pushes_to`` named.

        It may call nothing of the loop. What is refused is dropped, and its partition told 0x87.
        """

    def given_up(self, share: bytes, record: bytes, since_ns: int) -> None:
        """A copy for a shared group waited for a member that may not receive it: it is another one's.

        It may call nothing of the loop; later ``hot.read_given_up`` reads it.
        """

    def sent(self, conn: LoopConnection, octets: int) -> None:
        """A connection that ``SessionOptions.metered`` named has sent so many bytes, which are dealt with."""

    def has_room(self, conn: LoopConnection) -> None:
        """A connection that ``hot.report_room`` named has taken enough to get more; once per call of that."""

    def memory_exceeded(self) -> None:
        """More is held for clients than ``hot.bound_held_bytes`` said."""

    def turn_end(self, now_ns: int) -> None:
        """End of a turn, before the flush: batched requests leave here. Skipped before ``hot.turn_end_ns``."""


class AckSink(Protocol):
    """Records what was acknowledged, for the audit; ``hot.ledger = None`` (default) costs one comparison."""

    def route_text(self, route: Route) -> bytes:
        """Return what each row says of a route: asked once per route, at its first acknowledgement."""

    def take_rows(self, rows: bytes, count: int) -> None:
        """Take the rows of a turn (``edge/loop/ack_rows.py``); when this returns, their acknowledgements leave."""


class DropSink(Protocol):
    """Writes drops of the loop down; ``hot.journal = None`` (default) costs one comparison of a drop."""

    def dropped(self, context: object, reason: str, topic: bytes, kind: int, a: int, b: int) -> None:
        """Record a dropped message: context of its connection or None, and its origin (kind 0: unknown)."""

    def denied(self, context: object, topic: bytes) -> None:
        """Write down that no rule lets a client publish to a topic: at most once in a second of each connection."""
