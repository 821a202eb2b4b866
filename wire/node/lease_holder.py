"""A node's duties towards the routers: register its incarnation, hold a lease, follow the map.

Sans-IO. The lease counts from the time when the answered heartbeat was *sent*. A heartbeat is sent only when the owner
calls ``beat``, so a stuck loop loses its lease. Acknowledging a map epoch states that its effects are in force here, so
the owner acknowledges after it has applied the change. Rules: docs/protocol.md section 2.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection

from conf.events import say
from wire.clock import next_moment, tier_phase
from wire.links.roster import is_router
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState
from wire.messages.control import Control
from wire.messages.hello import TIER_ROUTER, PeerKey
from wire.messages.map_pages import MapReader
from wire.messages.nodes import (
    DrainNode,
    FollowMap,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MapPage,
    MapStep,
    Registered,
    RegisterRequest,
    RequestRefused,
)
from wire.messages.ranges import NODES_MAX
from wire.node.known_cluster import KnownCluster

__all__ = ["LeaseHolder"]

logger = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 4
SETTLING_S = 0.05  # between heartbeats while an epoch is not settled: it shortens every change of placement
SEEKING_S = 0.1  # between heartbeats to every router while none grants
LAG_S = 0.5  # behind the leader's map for this long: the followed router is cut off from the leader
PAGE_WAIT_S = 2.0  # for a page (256 KiB) or step of the map from a live router
RETRY_S = 0.25  # of a registration or a map request without an answer
STRANDED_S = 10.0  # without a lease and a router of the map, while others answer at the seeds: several elections
BEATS_MAX = 64  # remembered heartbeats to one router: more than those of a lease
READS_APART_S = 8.0  # at most between two reads of the whole map, after repeated contradictions
READS_CALM_S = 10.0  # without a read, after which the next may start at once

Answer = HeartbeatReply | Registered | RequestRefused | MapPage | MapStep


class LeaseHolder:
    """Registration, lease and map stream of one node.

    Args:
        entry: This node as it registers.
        send: Sends a control message to a router; False when that is impossible now.
        on_map: The map moved to a new epoch; called before that epoch is acknowledged.
        whole: Storage: the store was verified complete.
        ended_incarnation: A former incarnation of this node that has provably ended; 0 for none.
        follows: Request the map from a router; a router has its own and passes it to ``take_own``.
        count: Counts an event by name.
        group: At a router, returns the members of its Raft group; None: the map identifies routers.
        cluster_id: Of this node's cluster; "" before the first map.
    """

    def __init__(
        self,
        entry: NodeEntry,
        send: Callable[[str, Control], bool],
        on_map: Callable[[ClusterMap], None],
        *,
        whole: bool = True,
        ended_incarnation: int = 0,
        follows: bool = True,
        count: Callable[[str], None] = lambda _: None,
        group: Callable[[], Collection[str]] | None = None,
        cluster_id: str = "",
    ) -> None:
        self.entry = entry
        self.map = ClusterMap(cluster="")
        self.cluster = KnownCluster(cluster_id)
        self.lease_until = float("-inf")
        self.settled_epoch = 0
        self.newest_at = float("-inf")  # own clock: at that time no node had a newer map than our current one
        self.leader = ""
        self.ended = False  # this incarnation is dead in the map: a new one must be started
        self.unreachable: list[str] = []
        self.stores_aside = 0  # quarantined stores that this node still keeps
        self.policy_received = 0  # newest received policy_epoch, set by the owner
        self.policy_epoch = 0  # no part of this node uses an older one
        self.policy_digest = b""  # at policy_received
        self.policy_floor = 0  # policy epoch at registration: no client is accepted before it is received
        self.sizes: dict[int, tuple[int, int]] = {}  # of own partitions or shards: (keys, bytes), sent when changed
        self._send = send
        self._on_map = on_map
        self._whole = whole
        self._ended_incarnation = ended_incarnation
        self._count = count
        self._group = group
        self._routers: dict[str, None] = {}  # connected
        self._incarnations: dict[str, int] = {}  # of routers that were connected
        self._beats: dict[str, deque[Heartbeat]] = {}  # router -> heartbeats that it may answer
        self._requested: set[str] = set()  # routers to which this incarnation sent a registration or its end
        self._registered = False
        self._refusal = ""  # of the registration, as logged
        self._follows = follows
        self.following = ""  # the router that sends the steps of the map; "" until one is followed
        self._pages = MapReader()
        self._page_by = float("inf")  # deadline of a requested page
        self._request = 0
        self._sent_sizes: tuple[str, dict[int, tuple[int, int]]] = ("", {})
        self._next_beat = float("-inf")  # when the next heartbeat is due
        self._next_try = float("-inf")
        self._last_grant = float("-inf")
        self._behind_since = float("inf")
        self._router_index = 0
        self._stop: DrainNode | Leave | None = None  # sent to the leader until the map shows it
        self._next_stop = float("inf")
        self._contradicted: int | None = None  # log epoch in which the leader contradicted our map
        self._reads_apart_s = 0.0  # until the next read of the whole map, if this one contradicts too
        self._read_at = float("-inf")
        self._follow_at = float("-inf")
        self._stranded_by = float("inf")  # deadline after which this incarnation ends: the routers of its map are gone

    # --- links

    def router_up(self, node: str, now: float, incarnation: int = 0) -> None:
        """A link to this incarnation of a router was established.

        A new connection may have replaced the link's former one, and the router then forgot its followers.
        """
        if self._incarnations.get(node) != incarnation:  # a new incarnation has no requests yet
            self._incarnations[node] = incarnation
            self._beats.pop(node, None)
            self._requested.discard(node)
        self._routers[node] = None
        if self.following == node:
            self.follow_again(now)
        self._next_try = now
        self._next_beat = min(self._next_beat, now)

    def router_down(self, node: str) -> None:
        """The link to a router is closed."""
        self._routers.pop(node, None)
        if self._sent_sizes[0] == node:
            self._sent_sizes = ("", {})  # its next incarnation does not have them
        if self.following == node:
            self.follow_again(float("-inf"))  # ask another router at once: a lagging node delays the cluster
        if self.leader == node:
            self.leader = ""

    # --- state

    def has_lease(self, now: float) -> bool:
        """True while this node may decide: its incarnation is active in its map and its lease has not expired."""
        return now < self.lease_until and not self.ended and self.active

    @property
    def linked(self) -> list[str]:
        """The linked routers of the cluster; at a router, itself too while it leads."""
        if not self._follows:
            return [node for node in self._routers if self._group is None or node in self._group()]
        return [node for node in self._routers if self._is_accepted(node)]

    @property
    def is_reading_map(self) -> bool:
        """Whether the map's first page arrived and its last one did not."""
        return self._pages.reading

    @property
    def refusal(self) -> str:
        """Why the routers refuse this node; "" if they do not."""
        return self._refusal

    @property
    def active(self) -> bool:
        """True once the map that this node acknowledged lists its own incarnation as active."""
        return self.map.is_alive(self.entry.node, self.entry.incarnation)

    def _is_accepted(self, node: str) -> bool:
        """Return whether messages of this router are accepted (``wire/links/roster.py``)."""
        return is_router(self.map, PeerKey(node, TIER_ROUTER, self._incarnations.get(node, 0)))

    def next_deadline(self) -> float:
        """Return when ``beat`` has to be called next."""
        if self._registered:
            return min(self._next_beat, self._next_stop, self._next_try, self._page_by)
        return min(self._next_try, self._page_by)

    # --- the policy

    def follow_policy(self, now: float, received: int, in_force: int, digest: bytes = b"") -> None:
        """Set the received and the effective policy epoch; a new effective one is sent with a heartbeat at once."""
        assert in_force <= received, "only a received policy is effective"
        self.policy_received, self.policy_digest = received, digest
        if in_force > self.policy_epoch:
            self.policy_epoch = in_force
            self._next_beat = min(self._next_beat, now)

    def policy_contradicted(self, received: int, digest: bytes) -> None:
        """Replace a policy that was not a state of the log and was never in effect."""
        self.policy_received, self.policy_digest, self.policy_epoch = received, digest, 0
        self.policy_floor = min(self.policy_floor, received)

    @property
    def knows_policy(self) -> bool:
        """Whether the effective policy is no older than this node's registration."""
        return self.policy_epoch >= self.policy_floor

    # --- stopping

    def drain(self, now: float) -> None:
        """Request the leader to move this incarnation's roles, repeatedly until the map shows it."""
        self._stop, self._next_stop = DrainNode(), now

    def leave(self, now: float) -> None:
        """Return the lease, so that other nodes need not wait for its end; this incarnation decides no more."""
        self.lease_until = float("-inf")
        self._stop, self._next_stop = Leave(), now

    @property
    def drains(self) -> bool:
        """Whether the map has this incarnation as stopping."""
        own = self.map.nodes.get(self.entry.node)
        return self.active and own is not None and own.stops

    def _send_stop(self, now: float) -> None:
        if self._stop is None or (isinstance(self._stop, DrainNode) and self.drains):
            self._next_stop = float("inf")
        else:
            self._next_stop = now + RETRY_S
            self._send_request(self._stop)

    # --- time

    def beat(self, now: float) -> None:
        """Register, follow the map and renew the lease as due; called by the loop that does the node's work."""
        if self.ended or not self.linked:
            self._check_stranded(now)
            self._next_beat = self._next_try = now + RETRY_S
            self._page_by = float("inf")
            self._next_stop = max(self._next_stop, self._next_try)
            return
        self._stranded_by = float("inf")
        if now >= self._page_by:
            self.follow_again(now)
        if now >= self._next_try:
            self._next_try = now + RETRY_S
            if not self._registered:
                self._request += 1
                self._send_request(RegisterRequest(self._request, self.entry, self._whole, self._ended_incarnation))
            if self._follows and not self.following and now >= self._follow_at:
                self.following = self._router()
                if self._send(self.following, FollowMap(self.map.epoch)):
                    self._page_by = now + PAGE_WAIT_S
                else:
                    self.following = ""
        if self._registered and now >= self._next_stop:
            self._send_stop(now)
        if self._registered and now >= self._next_beat:
            self._heartbeat(now)
        if self._registered and (self.following or not self._follows):
            self._next_try = now + 10 * RETRY_S

    def _check_stranded(self, now: float) -> None:
        """End this incarnation if the routers of its map were replaced: the next one starts from its seeds."""
        if self.ended or not self._routers or self.has_lease(now):
            self._stranded_by = float("inf")
        elif self._stranded_by == float("inf"):
            self._stranded_by = now + STRANDED_S
        elif now >= self._stranded_by:
            say(logger, "node.routers_replaced", routers=", ".join(sorted(self._routers)))
            self.ended = True

    def _heartbeat(self, now: float) -> None:
        beat = Heartbeat(self.entry.node, self.entry.incarnation, now, self.map.epoch, self.unreachable[:NODES_MAX])
        beat.stores_aside = self.stores_aside
        beat.policy_received, beat.policy_epoch = self.policy_received, self.policy_epoch
        beat.map_digest, beat.policy_digest = self.map.digest, self.policy_digest
        if now - self._last_grant > self.map.lease_s / 2:
            # The leader is silent or unknown. A new leader counts our lease from its election only, and the link to the
            # former one may not be known to be dead: send to every router instead of the reported leader.
            for router in self.linked:
                self._send_beat(router, beat)
            self._next_beat = now + SEEKING_S
            return
        router = self._router()
        if self._sent_sizes != (router, self.sizes):
            self._sent_sizes = (router, dict(self.sizes))
            beat.sizes = self._sent_sizes[1]
        self._send_beat(router, beat)
        if self.settled_epoch < self.map.epoch:
            self._next_beat = now + SETTLING_S
        else:  # together with other periodic work of this process
            period_s = self.map.lease_s / HEARTBEATS_PER_LEASE
            self._next_beat = next_moment(now, period_s, tier_phase(self.entry.tier))

    def _router(self) -> str:
        """Return the leader if it is linked, else the linked routers in turn."""
        routers = self.linked
        if self.leader in routers:
            return self.leader
        self._router_index += 1
        return routers[self._router_index % len(routers)]

    def _send_request(self, message: Control) -> None:
        router = self._router()
        self._requested.add(router)
        self._send(router, message)

    def _send_beat(self, router: str, beat: Heartbeat) -> None:
        self._beats.setdefault(router, deque(maxlen=BEATS_MAX)).append(beat)
        self._send(router, beat)

    # --- messages

    def handle(self, now: float, node: str, message: Control) -> bool:
        """Process a router's message; False if it belongs to another part. An unrequested answer has no effect."""
        if isinstance(message, Answer) and not self.was_asked(node, message):
            self._count("answers_unknown")
            return True
        if isinstance(message, HeartbeatReply):
            if message.incarnation == self.entry.incarnation:  # a former incarnation may have used another host's clock
                self._replied(now, node, message)
        elif isinstance(message, Registered):
            if message.incarnation == self.entry.incarnation:  # ignores a late answer to a former incarnation
                self._registered = True
                self._next_beat = now
                self.policy_floor = max(self.policy_floor, message.policy_epoch)
        elif isinstance(message, RequestRefused):
            self._refused(message)
            if message.leader_hint:
                self.leader = message.leader_hint
            self._next_try = min(self._next_try, now + RETRY_S / 5)
            self._next_stop = min(self._next_stop, now + RETRY_S / 5) if self._stop is not None else self._next_stop
        elif isinstance(message, MapPage):
            self._page(now, message)
        elif isinstance(message, MapStep):
            self._step(now, message.delta)
        else:
            return False
        return True

    def was_asked(self, node: str, message: Answer) -> bool:
        """Return whether this router's answer was requested."""
        if isinstance(message, MapPage | MapStep):
            return node == self.following
        if isinstance(message, HeartbeatReply):
            return self._beat_of(node, message) is not None and (message.leader == node or _is_referral(message))
        return node in self._requested

    def _page(self, now: float, page: MapPage) -> None:
        """Process a page and request the next one, unless the map is no newer than ours."""
        self._page_by = float("inf")
        if self._contradicted is not None and page.epoch < self._contradicted:
            self._read_whole(now, f"it is of epoch {page.epoch}, and the log is at {self._contradicted}")
            return
        if page.epoch <= self.map.epoch and self.map.cluster and self._contradicted is None:
            return
        try:
            cluster_map = self._pages.take(page)
        except ValueError as error:
            self._read_whole(now, str(error))
            return
        if cluster_map is not None and not self.cluster.accepts(cluster_map):
            self.follow_again(now + RETRY_S)
        elif cluster_map is not None and self._contradicted is not None and page.epoch <= self.map.epoch:
            self._compare_whole(cluster_map)
        elif cluster_map is not None:
            self.map = cluster_map
            self._moved(now)
        elif self.is_reading_map:
            self._page_by = now + PAGE_WAIT_S
            if self.following:
                self._send(self.following, FollowMap(self.map.epoch, *self._pages.wanted))

    def _step(self, now: float, delta: MapDelta) -> None:
        if delta.epoch == self.map.epoch + 1:
            try:
                self.map.apply(delta)
            except ValueError as error:
                self._read_whole(now, str(error))
            else:
                self._moved(now)
        elif delta.epoch > self.map.epoch + 1 and not self._is_before_page(delta):
            self._read_whole(now, f"a step is missing behind epoch {self.map.epoch}")

    def _is_before_page(self, delta: MapDelta) -> bool:
        """Return whether a step follows requested pages, which then keep it, or is included in them."""
        if self.is_reading_map:
            return self._pages.keep(delta)
        return self._page_by < float("inf")  # sent before the router received the request: its page has this step

    def _compare_whole(self, cluster_map: ClusterMap) -> None:
        """End this incarnation if its map differs from the log's at that epoch: its later actions are void."""
        if (cluster_map.epoch, cluster_map.digest) == (self.map.epoch, self.map.digest):
            self._contradicted = None
            return
        say(logger, "map.of_another_log", epoch=self.map.epoch)
        self._count("maps_of_another_log")
        self.ended = True

    def _read_whole(self, now: float, why: str) -> None:
        """Request the whole map. Repeated requests back off: a faulty router cannot cause a storm of reads."""
        self._count("map_reads_whole")
        say(logger, "map.read_anew", why=why)
        if now - self._read_at > READS_CALM_S:
            self._reads_apart_s = 0.0
        self._read_at = now
        self._follow_at = now + self._reads_apart_s
        self._reads_apart_s = min(READS_APART_S, max(RETRY_S, 2 * self._reads_apart_s))
        self.follow_again(self._follow_at)

    def follow_again(self, at: float) -> None:
        """Request the whole map from any router."""
        self._pages.forget()
        self.following = ""
        self._page_by = float("inf")
        self._next_try = at

    def _refused(self, message: RequestRefused) -> None:
        """Log once why this node is refused: unlike a missing leader, this does not resolve itself."""
        own = not self._registered and message.request == self._request
        if own and message.code == "invalid" and message.detail != self._refusal:
            self._refusal = message.detail
            say(logger, "node.not_let_in", why=message.detail)

    def _beat_of(self, node: str, reply: HeartbeatReply) -> Heartbeat | None:
        """Return the heartbeat that a router answers, None if none of that time was sent to it."""
        return next((beat for beat in self._beats.get(node, ()) if beat.sent_at == reply.sent_at), None)

    def policy_contradicts(self, node: str, reply: HeartbeatReply) -> bool:
        """Return whether the leader contradicts the policy that this node has now."""
        beat = self._beat_of(node, reply)
        reported = (beat.policy_received, beat.policy_digest) if beat is not None else None
        return reply.reload_policy and reported == (self.policy_received, self.policy_digest)

    def _replied(self, now: float, node: str, reply: HeartbeatReply) -> None:
        beat = self._beat_of(node, reply)
        assert beat is not None, "an unrequested answer was accepted"
        self.leader = reply.leader
        if reply.reload_map:
            if (beat.map_epoch, beat.map_digest) == (self.map.epoch, self.map.digest) and self._contradicted is None:
                self._contradicted = reply.map_epoch
                self._count("map_contradicted")
                if self._follows:
                    self._read_whole(now, f"epoch {self.map.epoch} is no state of the routers' log")
            return
        self.settled_epoch = max(self.settled_epoch, reply.settled_epoch)
        self._compare(now, reply)
        if reply.lease_s > 0 and not isinstance(self._stop, Leave):
            self._last_grant = now
            self.lease_until = max(self.lease_until, reply.sent_at + reply.lease_s)

    def _compare(self, now: float, reply: HeartbeatReply) -> None:
        """Request the map from the leader when the followed router lags, or a step of the leader is lost."""
        if reply.map_epoch <= self.map.epoch:
            self._behind_since = float("inf")
            if reply.map_epoch:  # the leader's, as of a quorum round that began after our heartbeat
                self.newest_at = max(self.newest_at, reply.sent_at)
        elif self._behind_since == float("inf"):
            self._behind_since = now
        elif self._follows and now - self._behind_since > LAG_S:
            lost = now - self._behind_since > PAGE_WAIT_S and self._page_by == float("inf")
            if self.following != reply.leader or lost:
                self._behind_since = now
                self.follow_again(now)

    def take_own(self, now: float, cluster_map: ClusterMap) -> None:
        """Apply a step of a router's own state machine."""
        if cluster_map.cluster and not self.cluster.accepts(cluster_map):
            return  # this router's log is of another cluster: its process ends
        self.map = cluster_map
        self._moved(now)

    def _moved(self, now: float) -> None:
        own = self.map.nodes.get(self.entry.node)
        if own is not None:
            # A map from before our registration still shows a former incarnation, alive or dead; a lagging router
            # sends it, or our own log when replayed. It does not concern this one. A map that shows this one dead
            # does, even without an acknowledged registration: the answer may have been lost with its router.
            newer = self._registered and own.incarnation > self.entry.incarnation
            dead = own.incarnation == self.entry.incarnation and own.state == NodeState.DEAD
            self.ended = self.ended or newer or dead
        if own is not None and own.incarnation == self.entry.incarnation and own.alive:
            self._registered = True
        self._behind_since, self._contradicted = float("inf"), None
        if self.following and not self._is_accepted(self.following):  # it relays the map but is not registered yet
            self.follow_again(now)
        self._on_map(self.map)
        self._next_beat = now  # acknowledge at once


def _is_referral(reply: HeartbeatReply) -> bool:
    """Return whether a reply only names the leader: leases, epochs and reloads come only from the leader itself."""
    gives = reply.lease_s or reply.settled_epoch or reply.map_epoch or reply.policy_epoch
    return not (gives or reply.reload_map or reply.reload_policy)
