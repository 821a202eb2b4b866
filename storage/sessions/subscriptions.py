"""Subscriptions of durable sessions, and the routes that make them effective at every edge.

SUBSCRIBE is committed as *pending*. Then the filter's route is added at all its shards. Then the mark that the route
is registered is committed, and only after that the response leaves (docs/protocol.md rule 3.8). Other SUBSCRIBEs for a
filter with a pending route wait for the same mark. A new primary adds the unmarked routes again.
"""

from collections.abc import Callable, Iterator, Set
from itertools import islice
from typing import NamedTuple

from mqtt.errors import RemoteProtocolError
from mqtt.filter_costs import FilterCosts
from mqtt.reasons import ReasonCode
from mqtt.topics import parse_shared, validate_topic_filter
from storage.messages.delivery import PartitionDelivery
from storage.rights.filters import mark_partial, note_granted
from storage.sessions.route_window import RouteWindow, UnsentRoutes
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.rows import FilterRow, SubscriptionRow, pack
from storage.state.timers import AskRoutesAgain
from wire.links.roster import is_shard_owner
from wire.messages.cluster_map import ClusterMap
from wire.messages.routes import AddRoutes, RemoveRoutes, RouteEntry, RoutesAdded, SenderReport
from wire.messages.sessions import (
    SessionSubscribed,
    SessionSubscription,
    SessionUnsubscribed,
    SubscribeSession,
    UnsubscribeSession,
)
from wire.node.route_registrar import REPEAT_S, by_shard, is_of_owner, route_entry, sender_report

__all__ = ["Subscriptions"]

NO_SUBSCRIPTION_EXISTED = 0x11
STALE_SESSION = 0x80
ROUTES_PER_STEP = 16  # sent to a shard in a step of about ten microseconds
REMOVED_AT_ONCE = 10  # filters, which may have routes at every shard
MESSAGE_ROUTES = 8  # with the cost of one message to a shard
MOVED_AGAIN_S = 0.05  # retry delay after "moved" from an unchanged owner: its map differs only briefly


class Waiter:
    """A SUBSCRIBE with filters whose routes are not all registered."""

    __slots__ = ("answer", "edge", "granted", "missing", "session")

    def __init__(
        self, edge: str, session: int, granted: list[SessionSubscription], answer: SessionSubscribed, missing: set[str]
    ) -> None:
        self.edge = edge
        self.session = session
        self.granted = granted
        self.answer = answer
        self.missing = missing


class PendingSubscription(NamedTuple):
    """Routes of one request that a shard's owner has not acknowledged."""

    shard: int
    names: list[str]
    owner: str


class Subscriptions:
    """Subscriptions and routes of one partition."""

    def __init__(
        self,
        partition: Partition,
        delivery: PartitionDelivery,
        cluster_map: Callable[[], ClusterMap],
        window: RouteWindow,
    ) -> None:
        self._partition = partition
        self._delivery = delivery
        self._map = cluster_map
        self._window = window
        self._unsent = UnsentRoutes()
        self._costs = FilterCosts(partition.trie)
        self.members: dict[str, int] = {}  # route -> sessions that hold it
        self.registered: set[str] = set()
        self._pending: dict[str, dict[int, int]] = {}  # route -> unacknowledged shard -> request, 0: not sent
        self._in_flight: dict[int, PendingSubscription] = {}  # by request
        self._ask_at: dict[int, int] = {}  # request -> retry time: of several timers only the last one counts
        self._waiting: dict[str, list[Waiter]] = {}  # by missing route
        self._leaving: dict[str, None] = {}  # routes to be removed at their shards
        self._version = 0
        self._recounted: set[str] = set()  # shared groups whose member count here differs from their shard's
        self._request = partition.number << 32  # so that a reply identifies its partition

    def __len__(self) -> int:
        return sum(self.members.values())

    @property
    def filters(self) -> int:
        """Number of different filters."""
        return len(self.members)

    # --- restore

    def restore(self, session: DurableSession, subscription: SessionSubscription, *, partial: bool) -> None:
        """Restore a subscription from disk."""
        mark_partial(session, subscription, partial=partial)
        self._attach(session, subscription)

    def restore_standing(self, route: str) -> None:
        """Restore the mark that a route is registered."""
        self.registered.add(route)

    def serve(self) -> None:
        """Begin to serve: add again the routes without a mark, report the others."""
        self._request_routes([route for route in sorted(self.members) if route not in self.registered])

    # --- subscribe

    def subscribe(self, request: SubscribeSession, edge: str) -> None:
        """Add or replace subscriptions [MQTT-3.8.4-3]; answered when their routes are registered."""
        partition = self._partition
        session = partition.sessions.get(request.session)
        if session is None or session.owner_epoch != request.owner_epoch:
            codes = [STALE_SESSION] * len(request.subscriptions)
            partition.send_control(edge, SessionSubscribed(request.request, codes, [False] * len(codes)))
            return
        existed = [subscription.topic_filter in session.subscriptions for subscription in request.subscriptions]
        codes = self._check_subscriptions(session, request.subscriptions)
        granted = []
        holds = False
        held, partial = len(session.subscriptions), set(request.partial)
        for at, (subscription, before, code) in enumerate(zip(request.subscriptions, existed, codes, strict=True)):
            if code >= 0x80:
                continue
            granted.append(subscription)
            mark_partial(session, subscription, partial=at in partial)
            if before and partition.ledger is not None:
                partition.ledger.unsubscribed(session.number, subscription.topic_filter)
            self._attach(session, subscription)
            partition.put(
                keys.subscription_key(partition.number, session.number, subscription.topic_filter),
                pack(SubscriptionRow(subscription, at in partial, partition.served_ms)),
            )
            shared = subscription.topic_filter.startswith("$share/")
            holds |= not shared and (
                subscription.retain_handling == 0 or (subscription.retain_handling == 1 and not before)
            )
        judged = session.judged
        note_granted(session, request, held, len(granted))
        if judged != session.judged:
            partition.touch(session)
        if holds:
            self._delivery.outbound.hold(session, request.read or request.request)
        answer = SessionSubscribed(request.request, codes, existed)
        routes = {subscription.topic_filter for subscription in granted}
        missing = {route for route in routes if route not in self.registered}
        waiter = Waiter(edge, session.number, granted, answer, missing)
        if not missing:
            self._subscribed(waiter)
            return
        for route in missing:
            self._waiting.setdefault(route, []).append(waiter)
        self._request_routes(sorted(missing - self._pending.keys()))

    def _check_subscriptions(self, session: DurableSession, wanted: list[SessionSubscription]) -> list[int]:
        """Return a reason code per subscription: its QoS, or the reason for the refusal."""
        partition, held = self._partition, session.subscriptions
        room = partition.settings.filters_per_session_max - len(held)
        codes = []
        fresh: list[tuple[int, str]] = []  # index, filter
        for subscription in wanted:
            name = subscription.topic_filter
            if name in held:
                codes.append(subscription.qos)
                continue
            if not _is_valid(name):  # edges refuse these; an edge that does not must not crash this node
                codes.append(int(ReasonCode.TOPIC_FILTER_INVALID))
            elif len(fresh) >= room:
                partition.count("refused_filters_per_session")
                codes.append(int(ReasonCode.QUOTA_EXCEEDED))
            else:
                fresh.append((len(codes), name))
                codes.append(subscription.qos)
        verdicts = self._costs.admits(session.number, held, [name for _, name in fresh])
        for (index, _), verdict in zip(fresh, verdicts, strict=True):
            if not verdict:
                partition.count("refused_filter_cost")
                codes[index] = int(ReasonCode.QUOTA_EXCEEDED)
        return codes

    def _subscribed(self, waiter: Waiter) -> None:
        partition = self._partition
        partition.send_control(waiter.edge, waiter.answer)
        if partition.ledger is not None and waiter.granted and waiter.session in partition.sessions:
            partition.ledger.subscribed(waiter.session, waiter.granted)

    def _attach(self, session: DurableSession, subscription: SessionSubscription) -> None:
        name = subscription.topic_filter
        shared = parse_shared(name)
        if name not in session.subscriptions:
            self.members[name] = self.members.get(name, 0) + 1
            if shared is not None and name in self.registered:
                self._recounted.add(name)
        session.subscriptions[name] = subscription
        if shared is None:
            self._partition.trie.add(name, session.number, (session, subscription))
            self._delivery.targets.forget_routes()
        else:
            self._delivery.targets.groups.join(f"{shared[0]}/{shared[1]}".encode(), session)

    # --- unsubscribe

    def unsubscribe(self, request: UnsubscribeSession, edge: str) -> None:
        """Remove subscriptions; answered when committed [MQTT-3.10.4-4]."""
        partition = self._partition
        session = partition.sessions.get(request.session)
        codes = []
        if session is not None and session.owner_epoch == request.owner_epoch:
            codes = self.remove(session, request.topic_filters, revoked=request.revoked)
        partition.send_control(edge, SessionUnsubscribed(request.request, codes))

    def remove(self, session: DurableSession, names: list[str], *, revoked: bool) -> list[int]:
        """Remove subscriptions of a session; return a reason code for each.

        Args:
            revoked: The user lost the right to them: queued copies of a shared group go to other members.
        """
        codes, gone = [], []
        for name in names:
            codes.append(0 if name in session.subscriptions else NO_SUBSCRIPTION_EXISTED)
            if name in session.subscriptions:
                self._delivery.forget_live(session)
                gone += self._detach(session, name)
                shared = parse_shared(name) if revoked else None
                if shared is not None:
                    self._delivery.abandoned_copies.begin(session, f"{shared[0]}/{shared[1]}".encode())
        self._answer_waiting(gone)
        self._leave(gone)
        return codes

    def take_group(self, session: DurableSession, name: str) -> None:
        """Remove a session from a shared group after its edge refused a copy."""
        self.remove(session, [name], revoked=True)

    def ends(self, session: DurableSession) -> None:
        """Remove a session that gets no more subscriptions from the filter costs."""
        self._costs.forget(session.number)

    def drop_session(self, session: DurableSession) -> None:
        """Remove every subscription of a session that is being deleted."""
        self.ends(session)
        self.drop_some(session, len(session.subscriptions))

    def drop_some(self, session: DurableSession, most: int) -> None:
        """Remove some subscriptions of an ended session."""
        gone = []
        for name in sorted(islice(session.subscriptions, most)):
            gone += self._detach(session, name)
        self._answer_waiting(gone)
        self._leave(gone)

    def _detach(self, session: DurableSession, name: str) -> list[str]:
        """Remove one subscription; return [name] if no session of the partition has it any more."""
        partition = self._partition
        if partition.ledger is not None:
            partition.ledger.unsubscribed(session.number, name)
        del session.subscriptions[name]
        if session.made("partial"):
            session.partial.discard(name)
        self._costs.removed(session.number, name)
        partition.delete(keys.subscription_key(partition.number, session.number, name))
        shared = parse_shared(name)
        if shared is None:
            partition.trie.remove(name, session.number)
            self._delivery.targets.forget_routes()
        else:
            self._delivery.targets.groups.leave(f"{shared[0]}/{shared[1]}".encode(), session)
        self.members[name] -= 1
        if self.members[name]:
            if shared is not None:
                self._recounted.add(name)
            return []
        self._recounted.discard(name)
        del self.members[name]
        self.registered.discard(name)
        unsent = self._pending.pop(name, {})  # the reply to an AddRoutes in flight does not cover a later route
        for shard in unsent if shared is None else by_shard(self._map(), [name]):
            self._unsent.discard(shard, name)
        partition.delete(keys.filter_key(partition.number, name))
        return [name]

    # --- routes

    def _entry(self, name: str) -> RouteEntry:
        return route_entry(name, self.members.get(name, 0))

    def _request_routes(self, routes: list[str]) -> None:
        for name in routes if self._leaving else ():
            self._leaving.pop(name, None)  # it stays: removing it now would remove the route added here
        placed = by_shard(self._map(), routes)
        for shard, names in placed.items():
            for name in names:
                self._pending.setdefault(name, {})[shard] = 0
        self._send_routes(placed)

    def _send_routes(self, placed: dict[int, list[str]]) -> None:
        """Send routes to the owners of shards, now or once the window allows."""
        owners: dict[str, None] = {}
        for shard, names in sorted(placed.items()):
            owner = self._map().shards[shard].owner
            self._unsent.add(owner, shard, names)
            owners[owner] = None
        self._ask_more(list(owners))

    def _ask_more(self, owners: list[str]) -> None:
        number = self._partition.number
        for owner in owners:
            while self._unsent.waits_for(owner) and self._window.has_capacity(owner, number):
                self.request_next(owner)
            if self._unsent.waits_for(owner):
                self._window.wait(owner, number)

    def request_next(self, owner: str) -> bool:
        """Send one pending request to this owner; return False if no other is pending."""
        shard, names = self._unsent.take(owner)
        if names and shard < len(self._map().shards):
            self._request += 1
            self._in_flight[self._request] = PendingSubscription(shard, names, owner)
            self._window.sent(owner, self._partition.number, len(names))
            for name in names:
                pending = self._pending.get(name)
                if pending is not None and shard in pending:
                    pending[shard] = self._request
            self._send(self._request)
        return self._unsent.waits_for(owner)

    def _take(self, request: int) -> PendingSubscription:
        """Remove a request that was answered or is obsolete."""
        asked = self._in_flight.pop(request)
        del self._ask_at[request]
        self._window.settled(asked.owner, self._partition.number, len(asked.names))
        return asked

    def _send(self, request: int) -> None:
        partition = self._partition
        shard, names, _ = self._in_flight[request]
        placement = self._map().shards[shard]
        self._version += 1
        self._ask_in(request, REPEAT_S)
        partition.send_control(
            placement.owner,
            AddRoutes(
                request,
                shard,
                placement.epoch,
                partition.number,
                partition.epoch,
                self._version,
                [self._entry(name) for name in names if name in self.members],  # without routes removed since
            ),
        )

    def _unanswered(self, request: int) -> list[str]:
        """Return the routes that wait for this request."""
        shard, names, _ = self._in_flight[request]
        return [name for name in names if self._pending.get(name, {}).get(shard) == request]

    def report_member_counts(self) -> None:
        """Report changed member counts of shared groups to the shards; no response waits for it."""
        if self._recounted:
            names, self._recounted = sorted(self._recounted), set()
            self._send_routes(by_shard(self._map(), names))

    def ask_again(self, request: int) -> int:
        """Retry an unanswered AddRoutes under its number, so that either reply is valid.

        Return the steps that it took.
        """
        if request not in self._in_flight or self._ask_at[request] > self._partition.served_ms:
            return 1
        shard, names, _ = self._in_flight[request]
        if self._unanswered(request) and shard < len(self._map().shards):
            self._send(request)
        else:
            self._take(request)
        return 1 + len(names) // ROUTES_PER_STEP

    def retry_routes_soon(self, router: str, request: int) -> bool:
        """Retry an AddRoutes soon that was rejected because two maps differ.

        Returns:
            False: the map does not list this router as owner of the request's shard; nothing changed.
        """
        asked = self._in_flight.get(request)
        if asked is None:
            return True
        if not is_shard_owner(self._map(), router, asked.shard):
            return False
        if self._ask_at[request] > self._partition.deadline_in(MOVED_AGAIN_S):
            self._ask_in(request, MOVED_AGAIN_S)
        return True

    def _ask_in(self, request: int, seconds: float) -> None:
        self._ask_at[request] = self._partition.deadline_in(seconds)
        self._partition.set_timer(self._ask_at[request], AskRoutesAgain(request))

    def placement_changed(self, shards: set[int]) -> None:
        """Send pending routes of shards with another owner or epoch again."""
        again: dict[int, list[str]] = {}
        for request in [request for request, asked in self._in_flight.items() if asked.shard in shards]:
            left = self._unanswered(request)
            shard = self._take(request).shard
            again.setdefault(shard, []).extend(left)
            for name in left:
                self._pending[name][shard] = 0
        owners = self._unsent.move(shards, lambda shard: self._map().shards[shard].owner)
        self._send_routes({shard: names for shard, names in again.items() if names and shard < len(self._map().shards)})
        self._ask_more(owners)

    def report(self, shards: Set[int]) -> Iterator[tuple[int, SenderReport] | None]:
        """Return the report to the owners of some shards, pending filters included; see ``sender_report``."""
        partition = self._partition
        self._version += 1
        return sender_report(self._map(), partition.number, partition.epoch, self._version, self.members, shards)

    def routes_added(self, router: str, answer: RoutesAdded) -> bool:
        """Process a shard's acknowledgement: no edge has a cached route without these filters there.

        Returns:
            False: the map does not list this router as owner of the request's shard; nothing changed.
        """
        asked = self._in_flight.get(answer.request)
        partition = self._partition
        if asked is None:
            return True
        if not is_shard_owner(self._map(), router, asked.shard):
            return False
        if answer.sender_epoch != partition.epoch or not is_of_owner(self._map(), asked.shard, answer):
            return True
        answered = self._unanswered(answer.request)
        self._take(answer.request)
        registered = []
        for name in answered:
            pending = self._pending[name]
            del pending[asked.shard]
            if not pending:
                del self._pending[name]
                self.registered.add(name)
                registered.append(name)
                partition.put(keys.filter_key(partition.number, name), pack(FilterRow(name)))
        self._answer_waiting(registered)
        return True

    def _answer_waiting(self, settled: list[str]) -> None:
        """Answer each SUBSCRIBE whose last missing routes are these."""
        for name in settled:
            for waiter in self._waiting.pop(name, ()):
                waiter.missing.discard(name)
                if not waiter.missing:
                    self._subscribed(waiter)

    def _leave(self, names: list[str]) -> None:
        self._leaving.update(dict.fromkeys(names))
        if names:
            self._window.leave(self._partition.number)

    @property
    def leaving(self) -> int:
        """Number of filters that ``remove_some`` has to remove."""
        return len(self._leaving)

    def remove_some(self) -> int:
        """Remove the routes of some unused filters at their shards; return the cost in routes."""
        partition = self._partition
        names = list(islice(self._leaving, REMOVED_AT_ONCE))
        for name in names:
            del self._leaving[name]
        worth = 0
        for shard, placed in sorted(by_shard(self._map(), names).items()):
            placement = self._map().shards[shard]
            self._version += 1
            removal = RemoveRoutes(
                shard,
                placement.epoch,
                partition.number,
                partition.epoch,
                self._version,
                [self._entry(name) for name in placed],
            )
            partition.send_control(placement.owner, removal)
            worth += max(len(placed), MESSAGE_ROUTES)
        return worth


def _is_valid(name: str) -> bool:
    try:
        shared = parse_shared(name)
        validate_topic_filter(name if shared is None else shared[1])
    except RemoteProtocolError:
        return False
    return True
