"""Ownership of client IDs: opening, taking over and closing sessions. ``wills`` has the will of each connection.

A *claim* is the one connection that may act for a client ID, by ``owner_epoch``. Opening requests the edge of an older
claim to close it and waits a short while for its reply. Then one operation raises ``owner_epoch``, decides the old
will, and ends or resumes the session (docs/protocol.md section 6). Claims without a will and without a durable session
stay in memory; a new primary polls all edges for them before it opens a session.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from storage.messages.delivery import PartitionDelivery
from storage.messages.origins import edge_sender
from storage.rights.filters import add_filters, mark_authorized, sys_filters
from storage.rights.owners import NO_OWNER, Owner, owner_by_claim, owner_of
from storage.sessions.dead_edges import DeadEdges
from storage.sessions.holders import Opening, SessionOwner
from storage.sessions.new_sessions import make_session, session_refusal
from storage.sessions.opened import OpenedConnects
from storage.sessions.session_ends import SessionEnds
from storage.sessions.subscriptions import Subscriptions
from storage.sessions.wills import Wills
from storage.state.durable_sessions import ENDING, DurableSession
from storage.state.partition import Partition
from storage.state.rows import NEVER, WillRow
from storage.state.timers import EndSession, KickAgain, StopWaitingForKick
from wire.messages.batches import OriginKind
from wire.messages.control import encode_control
from wire.messages.nodes import Relay
from wire.messages.sessions import (
    Claim,
    CloseSession,
    KickSession,
    OpenSession,
    SessionClosed,
    SessionExpired,
    SessionKicked,
    SessionOpened,
)

__all__ = ["Owners"]

NO_EXPIRY_INTERVAL = 0xFFFFFFFF
REPEAT_S = 1.0  # interval of unanswered kicks
PASSED_PER_STEP = 20  # connections or in-flight messages that are scanned in one step of ten microseconds
STEPS_PER_CLAIM = 2  # including the written session row
STEPS_PER_END = 4  # of a connection whose will may have to be published
NOT_AUTHORIZED = 0x87
SERVER_BUSY = 0x89
SESSION_TAKEN_OVER = 0x8E
QUOTA_EXCEEDED = 0x97


class Owners:
    """Owners of the client IDs of one partition: claims and openings."""

    def __init__(
        self,
        partition: Partition,
        delivery: PartitionDelivery,
        subscriptions: Subscriptions,
        is_alive: Callable[[str, int], bool],
        live: Callable[[str, int], str],
    ) -> None:
        self._partition = partition
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._is_alive = is_alive  # (edge, incarnation), by the map
        self._live = live  # (tier, number): a live node's name; "" if there is none
        self._repeats = 0
        self.opened = OpenedConnects(partition)
        self.holders: dict[str, SessionOwner] = {}
        self.openings: dict[str, deque[Opening]] = {}
        self._kicks: dict[tuple[str, int], SessionOwner] = {}  # (client ID, owner_epoch) not yet confirmed closed
        self._reported: set[tuple[str, int]] = set()  # client ID, owner_epoch: CloseSession is pending
        self.wills = Wills(partition, live, delivery.redispatches)
        self.ends = SessionEnds(partition, delivery, subscriptions, self.wills.session_over)
        self.dead_edges = DeadEdges(partition)

    def __len__(self) -> int:
        return len(self.holders)

    # --- restore

    def restore_session(self, session: DurableSession) -> None:
        """Restore the owner of a durable session whose row has an open connection."""
        owner = Owner(session.owner, session.owner_made)
        self.holders[session.client_id] = SessionOwner(
            session.edge, session.incarnation, session.connection, session.owner_epoch, session.number, owner
        )

    def restore_will(self, key: bytes, row: WillRow) -> None:
        """Restore a will from disk: of an open connection, delayed, or firing."""
        if self.wills.restore(key, row) and row.client_id not in self.holders:
            owner = Owner(row.owner, row.owner_made)
            self.holders[row.client_id] = SessionOwner(
                row.edge, row.incarnation, row.connection, row.owner_epoch, 0, owner
            )

    def claimed(self, edge: str, incarnation: int, claims: list[Claim]) -> Iterator[int]:
        """Process an edge's list of its connections of this partition; yields the steps that it takes."""
        held = {claim.client_id: claim for claim in claims if claim.owner_epoch}
        opening: dict[str, set[int]] = {}
        for new in claims:  # one client may have several that are opening
            if not new.owner_epoch:
                opening.setdefault(new.client_id, set()).add(new.connection)
        for passed, client_id in enumerate(sorted(self.holders), 1):
            if passed % PASSED_PER_STEP == 0:
                yield 1
            holder = self.holders.get(client_id)
            if holder is None or holder.edge != edge or holder.incarnation != incarnation:
                continue
            if (client_id, holder.owner_epoch) in self._reported:
                continue  # the pending report has the way it ended
            if holder.connection in opening.get(client_id, ()):
                continue  # its CONNECT was committed; the edge sends it again
            claim = held.get(client_id)
            if claim is None or claim.owner_epoch < holder.owner_epoch:
                self._end(client_id, holder, clean=False)
                yield STEPS_PER_END
        for claim in held.values():
            yield STEPS_PER_CLAIM
            current = self.holders.get(claim.client_id)
            known = current.owner if current is not None and current.owner_epoch == claim.owner_epoch else NO_OWNER
            owner = owner_by_claim(known, claim)
            holder = SessionOwner(edge, incarnation, claim.connection, claim.owner_epoch, claim.session, owner)
            session = self._partition.sessions.get(claim.session)
            replaced = session is not None and session.deadline == ENDING
            if replaced or (current is not None and current.owner_epoch > claim.owner_epoch):
                self._kick(claim.client_id, holder)  # taken over: the edge may not have the former primary's order
                continue
            self.holders[claim.client_id] = holder
            if session is not None and session.owner_epoch == claim.owner_epoch:
                self._bind(session, holder)
                self._delivery.outbound.resume(session)
                yield len(session.inflight) // PASSED_PER_STEP

    # --- open

    def open(self, request: OpenSession, edge: str, incarnation: int) -> None:
        """Process the CONNECT of a connection; a repeat under a newer partition_epoch takes over no connection.

        A CONNECT of an edge that died while it was pending is dropped: whether it was processed before is unknown by
        then.
        """
        if not self._is_alive(edge, incarnation):
            self._partition.count("opens_of_the_dead")
            return
        opening = Opening(request, edge, incarnation)
        was_processed = self.opened.process_pending(edge, incarnation, request)
        waiting = self.openings.get(request.client_id)
        holder = self.holders.get(request.client_id)
        for other in waiting or ():
            if other.edge == edge and other.incarnation == incarnation and other.request.request == request.request:
                return  # it is already queued
        if not request.withdrawn and self._is_anothers(request):
            self._refuse_other_user(opening)
            return
        mine = holder is not None and holder.is_for(opening)
        if request.withdrawn or (was_processed and not mine):
            if mine and holder is not None and waiting is None:
                self._end(request.client_id, holder, clean=False)
            self._refuse(opening, SESSION_TAKEN_OVER)
            return
        if waiting is None and holder is not None and holder.opened_here and mine:
            self._answer(opening, holder)
            return
        if waiting is not None:
            if len(waiting) >= self._partition.settings.waiting_opens_max:
                self._refuse(opening)
            else:
                waiting.append(opening)
            return
        if len(self.openings) >= self._partition.settings.waiting_opens_max:
            self._refuse(opening)
            return
        self._start(opening)

    def _refuse(self, opening: Opening, reason_code: int = SERVER_BUSY) -> None:
        partition = self._partition
        if reason_code not in (QUOTA_EXCEEDED, NOT_AUTHORIZED):  # those have counters of their own
            partition.count("opens_refused" if reason_code == SERVER_BUSY else "opens_over")
        partition.answer(
            opening.edge, SessionOpened(opening.request.request, partition.number, partition.epoch, reason_code)
        )

    def _is_refused(self, opening: Opening) -> bool:
        request = opening.request
        if not request.expiry_s or opening.ends:
            return False  # it makes no stored session
        refusal = session_refusal(self._partition, request)
        if refusal:
            self._partition.count(refusal)
            self._refuse(opening, QUOTA_EXCEEDED)
        return bool(refusal)

    def _is_anothers(self, request: OpenSession) -> bool:
        """Return whether the client ID or its session belongs to another user than the CONNECT's.

        A session that ends in slices counts until it is deleted: its replacement may have been its owner's.
        """
        holder = self.holders.get(request.client_id)
        session = self._partition.by_client.get(request.client_id)
        if holder is None and session is None:
            return False
        asks = owner_of(request)
        if holder is not None and not holder.owner.admits(asks):
            return True
        return session is not None and not Owner(session.owner, session.owner_made).admits(asks)

    def _refuse_other_user(self, opening: Opening) -> None:
        self._partition.count("refused_owner")
        self._refuse(opening, NOT_AUTHORIZED)

    def _start(self, opening: Opening) -> None:
        if self._is_refused(opening):  # before the older connection is closed
            return
        client_id = opening.request.client_id
        holder = self.holders.get(client_id)
        if holder is None or not self._is_alive(holder.edge, holder.incarnation):
            self._open(opening, clean=False)
            return
        if holder.is_for(opening):  # committed by a former primary, whose response was lost
            self._open(opening, clean=True)
            return
        self.openings[client_id] = deque((opening,))
        self._kick(client_id, holder)
        partition = self._partition
        partition.set_timer(partition.deadline_in(partition.settings.kick_wait_s), StopWaitingForKick(client_id))

    def _kick(self, client_id: str, holder: SessionOwner) -> None:
        partition = self._partition
        self._kicks[client_id, holder.owner_epoch] = holder
        partition.send_control(holder.edge, self._order(client_id, holder))
        partition.set_timer(partition.deadline_in(REPEAT_S), KickAgain(client_id, holder.owner_epoch))

    def _order(self, client_id: str, holder: SessionOwner) -> KickSession:
        return KickSession(self._partition.number, client_id, holder.connection, holder.owner_epoch)

    def kicked(self, answer: SessionKicked, edge: str, incarnation: int) -> None:
        """Process an edge's reply to a kick; late replies through a router are ignored."""
        kicked = self._kicks.get((answer.client_id, answer.owner_epoch))
        if kicked is None or kicked.edge != edge or kicked.incarnation != incarnation:
            return
        del self._kicks[answer.client_id, answer.owner_epoch]
        holder = self.holders.get(answer.client_id)
        if holder is None or holder.owner_epoch == answer.owner_epoch:  # not a reply about an older connection
            self._proceed(answer.client_id, clean=answer.clean)

    def kick_waited(self, client_id: str) -> None:
        """Process a CONNECT whose wait for the older connection's edge timed out."""
        self._proceed(client_id, clean=False)

    def kick_again(self, client_id: str, owner_epoch: int) -> None:
        """Repeat a kick until its edge has replied or is dead, also through a router: the direct link may be down."""
        holder = self._kicks.get((client_id, owner_epoch))
        if holder is None:
            return
        if not self._is_alive(holder.edge, holder.incarnation):
            del self._kicks[client_id, owner_epoch]
            return
        self._repeats += 1
        relay = Relay(holder.edge, holder.incarnation, encode_control(self._order(client_id, holder)))
        self._partition.send_control(self._live("router", self._repeats), relay)
        self._kick(client_id, holder)

    def _proceed(self, client_id: str, *, clean: bool) -> None:
        waiting = self.openings.pop(client_id, None)
        if not waiting:
            return
        self._finish(waiting.popleft(), clean=clean)
        while waiting:
            self.open(waiting[0].request, waiting[0].edge, waiting[0].incarnation)
            waiting.popleft()

    def _finish(self, opening: Opening, *, clean: bool) -> None:
        """Process a pending CONNECT unless it is refused now."""
        if self._is_anothers(opening.request):  # it may have got an owner while this one waited
            self._refuse_other_user(opening)
        elif not self._is_refused(opening):
            self._open(opening, clean=clean)

    def _open(self, opening: Opening, *, clean: bool) -> None:
        """Raise owner_epoch, decide the old will, resume or replace the session, and respond, in one operation."""
        partition = self._partition
        request = opening.request
        client_id = request.client_id
        partition.owner_counter += 1
        owner_epoch = partition.epoch << 32 | partition.owner_counter
        session = partition.by_client.get(client_id)
        resumed = session is not None and not request.clean_start and session.deadline != ENDING
        former = self.holders.get(client_id)
        present = resumed
        if session is not None and former is not None and former.is_for(opening):
            present = resumed and session.session_present  # a former primary created the session for this CONNECT
        self.wills.taken_over(client_id, resumed=resumed, clean=clean)
        if session is not None and not resumed:
            if not self._replace(session, owner_epoch):
                self._wait_for_end(opening)
                return
            session = None
        if session is None and request.expiry_s:
            session = make_session(partition, client_id)
        number = session.number if session else 0
        owner = owner_of(request)
        holder = SessionOwner(opening.edge, opening.incarnation, request.connection, owner_epoch, number, owner)
        self.holders[client_id] = holder
        if session is not None:
            session.ephemeral_end = request.expiry_s == 0
            if request.expiry_s:
                session.expiry_s = request.expiry_s
            session.owner_epoch = owner_epoch
            if owner != (session.owner, session.owner_made):
                session.judged = 0  # its filters were granted to a client without a user
            partition.give(session, *owner)
            if not session.made("subscriptions"):
                mark_authorized(session, request.judged)
            session.session_present = present
            session.protocol_version = request.protocol_version
            session.bound_queue(request.queue_messages_max, request.queue_bytes_max)
            session.window = max(1, min(request.receive_maximum, partition.settings.outbound_window_max))
            self._bind(session, holder)
            self._delivery.consumed.save(session)
        if request.will is not None:
            will = WillRow(client_id, owner_epoch, request.will, opening.edge, opening.incarnation)
            will.connection = request.connection
            will.owner, will.owner_made = owner
            self.wills.add(will)
        durable = request.will is not None or session is not None
        self.opened.remember(opening.edge, opening.incarnation, request.request, stored=durable)
        partition.count("opened")
        holder.opened_here, holder.session_present = True, present
        self._answer(opening, holder)
        if session is not None:
            self._delivery.outbound.resume(session)

    def _replace(self, session: DurableSession, owner_epoch: int) -> bool:
        """End a session that a CONNECT replaces; return whether it is deleted completely.

        A session that ends in slices belongs to no connection from now on, even if an edge claims it at a later
        primary.
        """
        if session.deadline == ENDING:
            return not self.ends.goes_on(session)
        session.edge = ""
        session.unbind()
        session.reads = None
        session.owner_epoch = owner_epoch
        return self.ends.end(session)

    def _wait_for_end(self, opening: Opening) -> None:
        """Delay a CONNECT until its predecessor's session is deleted; the client's next CONNECTs queue after it."""
        client_id = opening.request.client_id
        opening.ends = True
        self.holders.pop(client_id, None)
        self.openings.setdefault(client_id, deque()).appendleft(opening)

    def _answer(self, opening: Opening, holder: SessionOwner) -> None:
        partition = self._partition
        opened = SessionOpened(opening.request.request, partition.number, partition.epoch, 0, holder.owner_epoch)
        session = partition.sessions.get(holder.session)
        if session is not None:
            opened.session = session.number
            opened.session_present = holder.session_present
            opened.sys_filters = sys_filters(session)
            if not add_filters(session, opening.request.judged, opened):
                partition.count("filters_untold")
        partition.answer(opening.edge, opened)

    def _bind(self, session: DurableSession, holder: SessionOwner) -> None:
        session.edge = holder.edge
        session.incarnation = holder.incarnation
        session.connection = holder.connection
        session.deadline = NEVER
        session.reads = None
        session.live_retained.clear()
        session.unbind()
        self._partition.touch(session)

    # --- close

    def will_close(self, request: CloseSession) -> None:
        """Record the pending report of a connection's end: an edge's claims must not decide first.

        An edge no longer claims a client that sent DISCONNECT 0x00; its will must not be published.
        """
        self._reported.add((request.client_id, request.owner_epoch))

    def close(self, request: CloseSession, edge: str) -> None:
        """End a connection; a lower owner_epoch than the current one has no effect."""
        holder = self.holders.get(request.client_id)
        accepted = holder is not None and holder.owner_epoch == request.owner_epoch
        if accepted and holder is not None:
            session = self._partition.sessions.get(holder.session)
            if session is not None and request.expiry_s >= 0:
                session.expiry_s = request.expiry_s
            self._end(request.client_id, holder, clean=request.clean)
        self._partition.answer(edge, SessionClosed(request.request, accepted))

    def is_held_by(self, client_id: str, edge: str, incarnation: int) -> bool:
        """Return whether the connection that owns a client ID is at this incarnation of an edge."""
        holder = self.holders.get(client_id)
        return holder is not None and (holder.edge, holder.incarnation) == (edge, incarnation)

    def edge_dead(self, edge: str, incarnation: int) -> None:
        """End the connections of a dead edge incarnation, as without DISCONNECT."""
        for key in [key for key, holder in self._kicks.items() if holder.edge == edge]:
            del self._kicks[key]
        for client_id in sorted(self.openings):
            self._drop_connects_of(client_id, edge, incarnation)
        self._delivery.origins.forget_sender(OriginKind.EDGE, edge_sender(edge, incarnation))
        orders = self._delivery.redispatches.orders.edge_dead(edge), self.wills.orders.edge_dead(edge)
        self.dead_edges.add(self._end_of(edge, incarnation, chain(*orders)))

    def _drop_connects_of(self, client_id: str, edge: str, incarnation: int) -> None:
        """Remove a dead edge's CONNECTs from the head; retry those that waited behind it for a session's end."""
        waiting = self.openings[client_id]
        awaited = False
        while waiting and waiting[0].edge == edge and waiting[0].incarnation == incarnation:
            awaited = waiting.popleft().ends or awaited
        if not waiting:
            del self.openings[client_id]
        elif awaited:  # a session's end processes only the first one
            del self.openings[client_id]
            for opening in waiting:
                self.open(opening.request, opening.edge, opening.incarnation)

    def _end_of(self, edge: str, incarnation: int, orders: Iterator[None]) -> Iterator[int]:
        """End the connections of a dead edge, without pending CONNECTs; yields the steps that it takes.

        ``orders`` sends that edge's publish orders to other edges.
        """
        for passed, client_id in enumerate(list(self.holders), 1):
            holder = self.holders.get(client_id)
            if holder is not None and holder.edge == edge and holder.incarnation == incarnation:
                self._end(client_id, holder, clean=False)
                yield STEPS_PER_END
            elif passed % 100 == 0:
                yield 1
        yield from self.opened.forget(edge, incarnation)
        for _ in orders:
            yield STEPS_PER_END

    def absent(self, is_alive: Callable[[str, int], bool]) -> Iterator[int]:
        """End connections of dead edges that rows list as open, after the claims poll; yields the steps it takes."""
        for passed, client_id in enumerate(sorted(self.holders), 1):
            if passed % PASSED_PER_STEP == 0:
                yield 1
            holder = self.holders.get(client_id)
            if holder is None or (client_id, holder.owner_epoch) in self._reported:
                continue
            if not is_alive(holder.edge, holder.incarnation):
                self._end(client_id, holder, clean=False)
                yield STEPS_PER_END
        yield from self.opened.forget_dead(is_alive)

    def serve(self) -> None:
        """Begin to serve: pending reports are processed now."""
        self._reported.clear()

    def _end(self, client_id: str, holder: SessionOwner, *, clean: bool) -> None:
        partition = self._partition
        del self.holders[client_id]
        session = partition.sessions.get(holder.session)
        ends = session is None or session.ephemeral_end or session.expiry_s == 0
        session_s = 0 if ends or session is None else session.expiry_s
        self.wills.connection_ended(client_id, holder.owner_epoch, clean=clean, session_s=session_s)
        if session is None:
            return
        session.edge = ""
        session.unbind()
        session.reads = None
        self._delivery.consumed.save(session)
        if ends:
            self.ends.end(session)
        elif session.expiry_s != NO_EXPIRY_INTERVAL:
            session.deadline = partition.deadline_in(session.expiry_s)  # [MQTT-3.1.2-23]
            partition.set_timer(session.deadline, EndSession(session.number))

    def _report_expired(self, session: DurableSession) -> None:
        partition = self._partition
        expired = SessionExpired(partition.number, partition.epoch, session.client_id, session.owner)
        partition.send_control(self._live("edge", session.number), expired)

    def expire(self, number: int) -> int:
        """Delete some of an expired session; it may have been resumed since. Return the steps that it took."""
        session = self._partition.sessions.get(number)
        if session is None or session.edge or not NEVER < session.deadline <= self._partition.served_ms:
            return 1
        if session.deadline != ENDING:
            self._partition.count("sessions_expired")
            if self._partition.settings.events:
                self._report_expired(session)
        steps, more = self.ends.resume(session)
        waiting = self.openings.get(session.client_id) or (None,)
        awaited = waiting[0] is not None and waiting[0].ends
        work = self._partition.work
        if more:
            (work.appendleft if awaited else work.append)(EndSession(number))
        elif awaited:
            self._proceed(session.client_id, clean=False)
        return steps
