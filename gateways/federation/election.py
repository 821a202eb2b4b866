"""Cores of filters: candidacy, resignation, takeover and membership.

Each filter has one core: the first agent with interested clients, after its rank times the step. Of two cores the lower
id remains. A core without interested clients hands over to its members. Pure logic.
Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from gateways.federation.agent_context import AgentContext, Neighbour
from gateways.federation.distribution_trees import DistributionTrees
from gateways.federation.messages import (
    DISTANCE_MAX,
    LEVELS_MAX,
    ReconsiderTopicCore,
    SubscriptionRequest,
    Topic,
    TopicCores,
    TopicSubscribe,
)
from gateways.federation.overlay import Overlay
from gateways.federation.pages import cut_pages, flood_page, may_pass, send_page
from gateways.federation.topics import CoreMember, CoreRecord, TopicState
from mqtt.topic_trie import TopicTrie

__all__ = ["Election"]

CACHED_TOPICS = 10_000
ENDED_S = 180.0  # longer than an announcement may be delayed in a link

_pack = msgspec.msgpack.Encoder().encode
_names = msgspec.msgpack.Decoder(tuple[str, ...])


class Election:
    """All federated filters from the view of one agent.

    Attributes:
      version: Increases when a filter or its members change.
      digests: Digests of retained registers by filter, which a core announces in tc.
    """

    def __init__(self, parts: AgentContext, overlay: Overlay, trees: DistributionTrees) -> None:
        self._parts, self._overlay, self._trees = parts, overlay, trees
        self.topics: dict[str, TopicState] = {}
        self.version = 0
        self.digests: dict[str, int] = {}
        self._trie = TopicTrie()
        self._cache: dict[str, tuple[str, ...]] = {}
        self._electing: dict[str, float] = {}
        self._queued_requests: dict[str, dict[str, SubscriptionRequest]] = {}  # core, filter: to send with this step
        self._unannounced: set[str] = set()  # filters of this core with unannounced changes
        self._seq = 0
        self._interval_at = 0.0
        self._seen_overlay = -1
        self._ended: dict[tuple[str, str], tuple[int, int, float]] = {}  # core, filter: last announcement, expiry
        self._reconsidered: set[tuple[str, str]] = set()

    # --- queries

    def destinations(self, topic: str) -> tuple[str, ...]:
        """Return the destinations of a topic over all matching filters, sorted, possibly including this agent."""
        found = self._cache.get(topic)
        if found is None:
            members: set[str] = set()
            for state in self._trie.match(topic):
                members |= state.members
            if len(self._cache) >= CACHED_TOPICS:
                self._cache.clear()
            found = self._cache[topic] = tuple(sorted(members))
        return found

    def matching(self, topic: str) -> list[TopicState]:
        """Return the filters that match a topic."""
        found: list[TopicState] = self._trie.match(topic)
        return found

    def wants(self, topic: str) -> bool:
        """Return whether a client of this broker wants a topic."""
        return self._parts.name in self.destinations(topic)

    def wanted_elsewhere(self) -> Iterator[str]:
        """Yield the filters that other agents want."""
        for topic_filter, state in self.topics.items():
            if len(state.members) > (1 if self._parts.name in state.members else 0):
                yield topic_filter

    # --- this broker's clients

    def interest(self, now: float, added: Iterable[tuple[str, int]], removed: Iterable[str]) -> None:
        """Apply changes of the clients' interest."""
        for topic_filter, qos in added:
            if topic_filter.startswith("$") or topic_filter.count("/") >= LEVELS_MAX:
                self._parts.drop("interest_refused")
                continue
            state = self._get_or_create(topic_filter)
            if state is not None and state.wanted != qos:
                state.wanted = qos
                self._unannounced.add(state.filter)
                self._join(state)
                self._evaluate(now, state)
        for topic_filter in removed:
            state = self.topics.get(topic_filter)
            if state is not None and state.wanted is not None:
                state.wanted = None
                self._unannounced.add(state.filter)
                self._electing.pop(topic_filter, None)
                if state.core and not state.is_core:
                    self._queue_request(state.core, SubscriptionRequest(topic_filter, 0, False, is_leave=True))
                self._evaluate(now, state)

    def restore(self, now: float, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore filters and their former members from the spool."""
        for key, value in rows:
            state = self._get_or_create(key.decode())
            if state is not None:
                members = _names.decode(value)
                state.records[""] = CoreRecord(0, 0, 0, members, 0, now, until=now + self._parts.hold_s)
                state.stored = frozenset(members)
                self._evaluate(now, state)

    # --- messages of other agents

    def cores(self, now: float, neighbour: str, message: TopicCores) -> None:
        """Apply a page of a core; new content is forwarded."""
        parts = self._parts
        at = parts.neighbours[neighbour]
        if message.core == parts.name:
            if message.incarnation > parts.incarnation or any(each.seq > self._seq for each in message.topics):
                parts.drop("own_core")
            return None
        if message.distance == 0 and message.core != neighbour:
            return parts.refuse(neighbour, "identity")
        known = self._overlay.incarnation(message.core)
        if known > message.incarnation:
            return parts.drop("former_core")
        changed = [each for each in message.topics if self._take(now, at, message, each)]
        if changed and message.distance < DISTANCE_MAX:
            forwarded = TopicCores(message.core, message.incarnation, message.distance + 1, tuple(changed))
            flood_page(parts, forwarded, neighbour)
        for each in changed:
            state = self.topics.get(each.filter)
            if state is not None:
                self._evaluate(now, state)
        return None

    def _take(self, now: float, at: Neighbour, page: TopicCores, topic: Topic) -> bool:
        parts, core = self._parts, page.core
        known = self.topics.get(topic.filter)
        record = known.records.get(core) if known is not None else None
        if record is not None and (record.incarnation, record.seq) >= (page.incarnation, topic.seq):
            is_same = (record.incarnation, record.seq) != (page.incarnation, topic.seq)
            if not is_same and (record.members, record.is_ended) != (topic.members, topic.is_ended):
                parts.drop("core_twice")
            return False
        if (page.incarnation, topic.seq) <= self._ended.get((core, topic.filter), (0, 0, 0.0))[:2]:
            return False  # an older announcement delayed in a link
        if not may_pass(at.policy.exports, topic.filter):
            parts.drop("export")
            return False
        if topic.is_ended and len(self._ended) < parts.settings.topics_max:
            self._ended[(core, topic.filter)] = (page.incarnation, topic.seq, now + ENDED_S)
            if known is None:
                return True
        key = (core, topic.filter)
        if key not in at.interests:
            if len(at.interests) >= at.policy.interests_max:
                parts.drop("interests")
                return False
            at.interests.add(key)
        state = self._get_or_create(topic.filter)
        if state is None:
            return False
        until = math.inf
        if topic.is_ended:
            until = now + parts.settings.missed * parts.settings.announce_s
        state.records[core] = CoreRecord(
            page.incarnation, topic.seq, topic.qos, topic.members, topic.digest, now, topic.is_ended, until
        )
        if topic.is_ended and not topic.members:
            del state.records[core]
            at.interests.discard(key)
        if state.is_core:
            self._inherit(now, state, topic.members)
        return True

    def _inherit(self, now: float, state: TopicState, members: Iterable[str]) -> None:
        """Keep another core's unreachable members; reachable ones will join by themselves."""
        for name in members:
            if name != self._parts.name and name not in state.own and self._overlay.distance(name) is None:
                state.own[name] = CoreMember(now, 0, False)
                self._unannounced.add(state.filter)

    def reconsider(self, now: float, message: ReconsiderTopicCore) -> None:
        """Resign if this agent is the greater core; otherwise forward the message."""
        state = self.topics.get(message.filter)
        if message.greater == self._parts.name:
            if state is not None and state.is_core and self._is_lower(message.lower):
                self._resign(now, state)
                self._join(state, message.lower)
                self._evaluate(now, state)
        elif message.distance < DISTANCE_MAX:
            forwarded = ReconsiderTopicCore(message.filter, message.lower, message.greater, message.distance + 1)
            for hop in self._overlay.next_hops(message.greater)[:1]:
                self._parts.send(hop, forwarded)

    def subscribe(self, now: float, neighbour: str, message: TopicSubscribe) -> TopicSubscribe | None:
        """Apply a member's request; return it, filtered by the neighbour's policy, if this agent is its core."""
        parts = self._parts
        at = parts.neighbours[neighbour]
        requests = tuple(each for each in message.requests if may_pass(at.policy.exports, each.filter))
        if len(requests) < len(message.requests):
            parts.drop("export")
            message = TopicSubscribe(
                message.member, message.incarnation, message.seq, message.core, message.distance, requests
            )
        if not self._trees.forward(now, neighbour, message) or message.core != parts.name:
            return None
        for request in requests:
            state = self.topics.get(request.filter)
            if state is None or not state.is_core:
                if request.is_join or request.is_leave:
                    parts.drop("not_core_of")
                continue
            if request.is_join:
                member = state.own.get(message.member)
                if member is None or not member.is_live:
                    self._unannounced.add(state.filter)
                state.own[message.member] = CoreMember(now, request.qos, True)
            elif request.is_leave and state.own.pop(message.member, None) is not None:
                self._unannounced.add(state.filter)
            self._evaluate(now, state)
        return message

    # --- decisions

    def _get_or_create(self, topic_filter: str) -> TopicState | None:
        state = self.topics.get(topic_filter)
        if state is None:
            if len(self.topics) >= self._parts.settings.topics_max:
                self._parts.drop("topics")
                return None
            state = self.topics[topic_filter] = TopicState(topic_filter)
            self._trie.add(topic_filter, topic_filter, state)
        return state

    def _find_core(self, now: float, state: TopicState) -> str:
        """Return the valid core with the lowest id, "" for none."""
        overlay, parts = self._overlay, self._parts
        silent_at = now - parts.settings.missed * parts.settings.announce_s
        found = [(parts.id, parts.name)] if state.is_core else []
        for core, record in state.records.items():
            if (
                core
                and not record.is_ended
                and record.last_seen >= silent_at
                and core in overlay.agents
                and overlay.incarnation(core) == record.incarnation
                and overlay.distance(core) is not None
            ):
                found.append((overlay.agents[core].announcement.id, core))
        if len(found) > 1:
            self._notify_greater(state, sorted(found))
        return min(found)[1] if found else ""

    def _notify_greater(self, state: TopicState, found: list[tuple[int, str]]) -> None:
        lower = found[0][1]
        for _, greater in found[1:]:
            if greater != self._parts.name and (state.filter, greater) not in self._reconsidered:
                self._reconsidered.add((state.filter, greater))
                for hop in self._overlay.next_hops(greater)[:1]:
                    self._parts.send(hop, ReconsiderTopicCore(state.filter, lower, greater))

    def _is_lower(self, core: str) -> bool:
        known = self._overlay.agents.get(core)
        return known is not None and (known.announcement.id, core) < (self._parts.id, self._parts.name)

    def _evaluate(self, now: float, state: TopicState) -> None:
        """Reevaluate one filter: its core, its members, and this agent's candidacy."""
        parts = self._parts
        core = self._find_core(now, state)
        if state.is_core and core != parts.name:
            self._resign(now, state)
        if core != state.core:
            was_lost = bool(state.core) and self._overlay.distance(state.core) is None
            state.core, state.core_since = core, now
            if core and core != parts.name:
                self._join(state)
            if not core and state.wanted is not None:
                self._schedule_candidacy(now, state, was_lost)
        elif not core and state.wanted is not None and state.filter not in self._electing:
            self._schedule_candidacy(now, state, False)
        if core:
            self._electing.pop(state.filter, None)
        if state.is_core:
            self._hand_over_core(now, state)
        elif core:
            is_listed = parts.name in state.records[core].members
            if is_listed and state.wanted is None:
                self._queue_request(core, SubscriptionRequest(state.filter, 0, False, is_leave=True))
            elif not is_listed:
                self._join(state)
        self._find_members(now, state)

    def _find_members(self, now: float, state: TopicState) -> None:
        settings = self._parts.settings
        members = state.find_members(
            self._parts.name,
            settings.missed * settings.announce_s,
            now,
            lambda name: self._overlay.distance(name) is not None,
        )
        if members != state.members:
            state.members = members
            self.version += 1
            self._cache.clear()
        if members != state.stored:
            state.stored = members
            self._parts.put("topic", state.filter.encode(), _pack(sorted(members)))
        if state.wanted is None and not state.records and not state.is_core:
            del self.topics[state.filter]
            self._trie.remove(state.filter, state.filter)
            self._electing.pop(state.filter, None)
            self._parts.delete("topic", state.filter.encode())
            self.version += 1
            self._cache.clear()

    def _schedule_candidacy(self, now: float, state: TopicState, was_lost: bool) -> None:
        """Wait by rank; listed members first, and after three intervals if the core became unreachable."""
        settings, live = self._parts.settings, self._overlay.live()
        listed = [each for each in live if each[1] in state.members or each[1] == self._parts.name]
        among = listed if len(listed) > 1 else live
        rank = among.index((self._parts.id, self._parts.name))
        wait = min(rank * settings.election_step_ms, settings.election_wait_ms_max) / 1000
        if was_lost:
            wait += settings.missed * settings.announce_s
        self._electing[state.filter] = now + wait

    def _become_core(self, now: float, state: TopicState) -> None:
        state.is_core = True
        self._unannounced.add(state.filter)
        state.own = {}
        self._inherit(now, state, state.members)
        state.core, state.core_since = self._parts.name, now
        self._find_members(now, state)

    def _resign(self, now: float, state: TopicState) -> None:
        """Resign as core in favour of a lower id; the members join that core."""
        state.is_core = False
        self._unannounced.discard(state.filter)
        self._flood_announcements([state], is_ended=True)
        state.core = ""
        self._parts.drop("cores_given_way")
        until = now + self._parts.settings.missed * self._parts.settings.announce_s
        members = tuple(sorted(state.members))
        state.records[self._parts.name] = CoreRecord(0, 0, 0, members, 0, now, True, until)
        state.own = {}

    def _hand_over_core(self, now: float, state: TopicState) -> None:
        """Resign as core without clients: a live member takes over; without members the filter ends."""
        if state.wanted is not None or (state.own and not any(each.is_live for each in state.own.values())):
            return
        members = tuple(sorted(state.own))
        state.is_core, state.core = False, ""
        self._unannounced.discard(state.filter)
        state.members = frozenset(members)
        self._flood_announcements([state], is_ended=True)
        if members:
            until = now + self._parts.settings.missed * self._parts.settings.announce_s
            state.records[self._parts.name] = CoreRecord(0, 0, 0, members, 0, now, True, until)
        state.own = {}

    def forget(self, now: float, agent: str) -> None:
        """Remove a forgotten agent from all lists."""
        for state in list(self.topics.values()):
            if state.own.pop(agent, None) is not None:
                self._unannounced.add(state.filter)
            for record in state.records.values():
                record.members = tuple(each for each in record.members if each != agent)
            state.records.pop(agent, None)
            self._evaluate(now, state)

    # --- announcements

    def announce(self, topic_filter: str) -> None:
        """Announce a filter with this step, if this agent is its core."""
        self._unannounced.add(topic_filter)

    def _join(self, state: TopicState, core: str = "") -> None:
        core = core or state.core
        if state.wanted is not None and core and core != self._parts.name:
            self._queue_request(core, SubscriptionRequest(state.filter, state.wanted, True))

    def _queue_request(self, core: str, request: SubscriptionRequest) -> None:
        self._queued_requests.setdefault(core, {})[request.filter] = request

    def _flood_announcements(self, states: Iterable[TopicState], is_ended: bool = False) -> None:
        """Flood this core's announcements of filters."""
        words: list[Topic] = []
        for state in states:
            self._seq += 1
            self._unannounced.discard(state.filter)
            qos = max([state.wanted or 0, *(each.qos for each in state.own.values())])
            digest = self.digests.get(state.filter, 0)
            members = tuple(sorted(state.members))
            state.announced = Topic(state.filter, self._seq, qos, members, digest, is_ended)
            words.append(state.announced)
        for page in cut_pages(words):
            flood_page(self._parts, TopicCores(self._parts.name, self._parts.incarnation, 0, page))

    def link_up(self, neighbour: str) -> None:
        """Send the last announcements of all cores to a new neighbour."""
        words: dict[tuple[str, int], list[Topic]] = {}
        for state in self.topics.values():
            if state.is_core and state.announced is not None:
                words.setdefault((self._parts.name, self._parts.incarnation), []).append(state.announced)
            for core, record in state.records.items():
                if record.seq:
                    word = Topic(state.filter, record.seq, record.qos, record.members, record.digest, record.is_ended)
                    words.setdefault((core, record.incarnation), []).append(word)
        for (core, incarnation), announced in words.items():
            distance = 0 if core == self._parts.name else 1
            for page in cut_pages(announced):
                send_page(self._parts, neighbour, TopicCores(core, incarnation, distance, page))

    # --- time

    def tick(self, now: float) -> None:
        """Become core after the wait, announce changes, and once an interval all filters."""
        if self._seen_overlay != self._overlay.version:
            self._seen_overlay = self._overlay.version
            for state in list(self.topics.values()):
                self._evaluate(now, state)
        for topic_filter in [each for each, due in self._electing.items() if due <= now]:
            del self._electing[topic_filter]
            state = self.topics[topic_filter]
            if state.wanted is not None and not self._find_core(now, state):
                self._become_core(now, state)
        if now >= self._interval_at:
            self._interval(now)
        if self._unannounced:
            self._announce_changes(now)
        queued, self._queued_requests = self._queued_requests, {}
        for core, requests in queued.items():
            self._trees.send_requests(core, requests.values())

    def _announce_changes(self, now: float) -> None:
        changed = [self.topics[each] for each in sorted(self._unannounced) if each in self.topics]
        changed = [state for state in changed if state.is_core]
        self._unannounced.clear()
        for state in changed:
            self._find_members(now, state)
        self._flood_announcements(changed)

    def _interval(self, now: float) -> None:
        settings = self._parts.settings
        self._interval_at = now + settings.announce_s
        self._reconsidered.clear()
        self._trees.expire(now)
        self._ended = {key: each for key, each in self._ended.items() if each[2] > now}
        silent_at = now - settings.missed * settings.announce_s
        for state in list(self.topics.values()):
            for core, record in list(state.records.items()):
                if now >= record.until or record.last_seen < now - self._parts.hold_s:
                    del state.records[core]
                    self._remove_interest(core, state.filter)
            for name, member in list(state.own.items()):
                if member.last_seen < now - self._parts.hold_s:
                    del state.own[name]
                elif member.last_seen < silent_at:
                    member.is_live = False
            self._unannounced.add(state.filter)
            self._join(state)
            self._evaluate(now, state)

    def _remove_interest(self, core: str, topic_filter: str) -> None:
        for at in self._parts.neighbours.values():
            at.interests.discard((core, topic_filter))

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        if self._queued_requests or self._unannounced or self._seen_overlay != self._overlay.version:
            return -math.inf
        return min(self._interval_at, min(self._electing.values(), default=math.inf))
