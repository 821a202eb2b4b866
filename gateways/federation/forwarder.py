"""Custody of messages between agents: which neighbour gets a message for which destinations, and when it is let go.

A row goes when the next hop has kept it, the broker took it, or its time is over; the last is counted. When a way is
cut, rows take another. Pure logic. Source: docs/protocol.md, custody. Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from gateways.federation.agent_context import AgentContext, Neighbour
from gateways.federation.delivery import FederatedDelivery
from gateways.federation.distribution_trees import DistributionTrees
from gateways.federation.election import Election
from gateways.federation.events import AckHost, Captured, HoldLink
from gateways.federation.messages import HOPS_MAX, CustodyAck, TopicMessage, pack_properties
from gateways.federation.next_hops import NextHops
from gateways.federation.overlay import NOT_KEPT, Overlay
from gateways.federation.rows import HOST, Rows, StoredMessage, message_key
from gateways.federation.transit_monitor import TransitMonitor
from mqtt.properties import Properties, PropertyId

__all__ = ["Forwarder"]

LAST_TOPICS_MAX = 10_000
SWEEP_S = 5.0
DISTRUST_S = 30.0
DOUBT_S = 0.3  # a message waits so long before it goes back to an agent that had it
FULL_HOLD_S = 0.5  # a neighbour is not read for so long while the spool is full
NOT_CARRIED = (
    PropertyId.MESSAGE_EXPIRY_INTERVAL,
    PropertyId.TOPIC_ALIAS,
    PropertyId.SUBSCRIPTION_IDENTIFIER,
)


class _Line:
    """Both directions of custody with one neighbour, for as long as the link's frames go on.

    Attributes:
        queue: Messages to send, and for which destinations.
        flying: By custody number, of which none is missing up to ``sent``: message and destinations.
        let_go: The number before the first of them.
        taken, kept: Highest number received, and the one that may be told as kept; ``told`` was.
    """

    def __init__(self) -> None:
        self.queue: deque[tuple[bytes, tuple[str, ...]]] = deque()
        self.flying: dict[int, tuple[bytes, tuple[str, ...]]] = {}
        self.sent = self.let_go = self.taken = self.kept = self.told = 0
        self.progress_at = -math.inf


class Forwarder:
    """See the module.

    Attributes:
        ways: Of messages, from here.
    """

    def __init__(
        self,
        parts: AgentContext,
        overlay: Overlay,
        meshes: DistributionTrees,
        election: Election,
        rows: Rows,
        delivery: FederatedDelivery,
        found_room: Callable[[Captured], None],
    ) -> None:
        self._parts, self._overlay, self._meshes, self._election = parts, overlay, meshes, election
        self._rows, self._delivery, self._found_room = rows, delivery, found_room
        self._passing_on = TransitMonitor(parts, overlay)
        self._lines: dict[str, _Line] = {}
        self._number = 0
        self._last: dict[str, tuple[int, frozenset[str]]] = {}  # topic: number, destinations
        self._backlog: deque[tuple[str, Captured | TopicMessage, int, int]] = deque()  # until the spool has room
        self._backlog_from: set[str] = set()
        self._backlog_at = 0.0
        self.ways = NextHops(parts, overlay, meshes)
        self._ways_version = (-1, -1)
        self._doubtful: deque[tuple[float, bytes]] = deque()
        self._sweep_at = 0.0

    # --- ways

    def _route(self, now: float, stored: StoredMessage, is_sure: bool = False) -> None:
        """Queue a message for the neighbours that lead to its destinations.

        A neighbour that had it before leads back until all have heard of a cut: the message waits for that, once.
        """
        message = stored.message
        waiting = tuple([each for each, at in stored.owed.items() if at is None and each != HOST])
        if len(waiting) == 1:
            found: Iterable[tuple[str, str, tuple[str, ...]]] = ((*self.ways.of(message.topic, waiting[0]), waiting),)
        else:
            found = self.ways.split(message.topic, waiting)
        for name, reason, destinations in found:
            if name and name in message.path and not is_sure:
                self._doubtful.append((now + DOUBT_S, stored.key))
            elif name:
                self._line(name).queue.append((stored.key, destinations))
            elif reason:
                self._end(stored, destinations, reason)

    def _reroute(self, now: float) -> None:
        """Give every message that waits its way anew; one that is with a neighbour that is down waits."""
        up = set(self._overlay.up())
        for name, line in self._lines.items():
            line.queue.clear()
            for key, destinations in line.flying.values():
                stored = self._rows.stored.get(key)
                for destination in destinations if stored is not None else ():
                    assert stored is not None
                    at = stored.owed.get(destination, HOST)
                    if name in up and at is None:
                        stored.owed[destination] = name
                    elif name not in up and at == name:
                        stored.owed[destination] = None
        for stored in list(self._rows.stored.values()):
            self._route(now, stored)

    def _line(self, neighbour: str) -> _Line:
        line = self._lines.get(neighbour)
        if line is None:
            line = self._lines[neighbour] = _Line()
        return line

    # --- from the broker

    @property
    def holds_copies(self) -> bool:
        """Whether messages of the broker wait for room: they are not acknowledged."""
        return HOST in self._backlog_from

    def originate(self, now: float, captured: Captured, stamp: int, number: int = 0) -> tuple[int, bool]:
        """Take a captured message to all that want it; ``number`` is that of one that waited for room.

        Returns:
            Its number, and whether the broker may be acknowledged; False while the spool is full.
        """
        name = self._parts.name
        if not number:
            self._number += 1
            number = self._number
        destinations = tuple(each for each in self._election.destinations(captured.topic) if each != name)
        if not destinations:
            self._parts.drop("captured_for_nothing")
            return number, True
        if captured.qos and (self._rows.is_full() or HOST in self._backlog_from):
            self._backlog_from.add(HOST)
            self._backlog.append((HOST, captured, stamp, number))
            self._parts.counts["spool_full"] += 1
            return number, False
        message = self._message(captured, destinations, stamp, number)
        if captured.qos:
            stored = StoredMessage(
                message_key(name, self._parts.incarnation, number), message, self._parts.wall_ms(now), ""
            )
            for destination in destinations:
                self._rows.owe(stored, destination)
            self._route(now, stored)
        else:
            self._send_now(now, message, destinations, "")
        return number, True

    def _message(self, captured: Captured, destinations: tuple[str, ...], stamp: int, number: int) -> TopicMessage:
        properties: Properties = {each: value for each, value in captured.properties.items() if each not in NOT_CARRIED}
        expiry = captured.properties.get(PropertyId.MESSAGE_EXPIRY_INTERVAL, 0)
        assert isinstance(expiry, int)
        after = 0
        if captured.qos:
            last, reached = self._last.pop(captured.topic, (0, frozenset()))
            if reached.issuperset(destinations):
                after = last
            self._last[captured.topic] = (number, frozenset(destinations))
            if len(self._last) > LAST_TOPICS_MAX:
                del self._last[next(iter(self._last))]
        return TopicMessage(
            agent=self._parts.name,
            incarnation=self._parts.incarnation,
            number=number,
            after=after,
            custody=1 if captured.qos else 0,
            topic=captured.topic,
            payload=captured.payload,
            qos=captured.qos,
            is_retained=captured.is_retained,
            is_register=False,
            stamp=stamp,
            age_ms=0,
            expiry_ms=expiry * 1000,
            properties=pack_properties(properties),
            to=destinations,
            path=(self._parts.name,),
        )

    def pass_register(self, now: float, message: TopicMessage, source: str = "") -> None:
        """Send a retained register towards its receivers; one that is lost is asked for again."""
        if len(message.path) < HOPS_MAX:
            self._send_now(now, message, (each for each in message.to if each != self._parts.name), source)

    # --- from neighbours

    def received(self, now: float, at: Neighbour, message: TopicMessage, data: bytes) -> bool:
        """Take a message of a neighbour, whose bytes are ``data``; return whether it is a new one for this broker."""
        line = self._line(at.name)
        if message.path[-1] != at.name:
            self._parts.refuse(at.name, "path")
            return False
        if message.custody:
            if message.custody != line.taken + 1:
                self._parts.refuse(at.name, "custody")
                return False
            line.taken = message.custody
            if not message.expiry_ms and self._parts.name in message.to:
                self._passing_on.arrived(message)
            if self._rows.is_full(len(message.path)) or at.name in self._backlog_from:
                self._backlog_from.add(at.name)
                self._backlog.append((at.name, message, 0, 0))
                self._parts.counts["spool_full"] += 1
                self._parts.ready.effects.append(HoldLink(at.name, now + FULL_HOLD_S))
                return False
        return self._take(now, at, line, message, data)

    def _take(self, now: float, at: Neighbour, line: _Line, message: TopicMessage, data: bytes = b"") -> bool:
        parts = self._parts
        if message.custody > line.kept:
            line.kept = message.custody
        born_ms = parts.wall_ms(now) - message.age_ms
        if not at.may_send(message.topic):
            parts.drop("import")
            return False
        reason = self._over(message, message.age_ms)
        if reason:
            parts.drop(reason)
            return False
        key = message_key(message.agent, message.incarnation, message.number)
        is_here = parts.name in message.to
        is_new = is_here and message.agent != parts.name and not self._rows.is_seen(key)
        if is_here and not is_new:
            parts.drop("repeat")
        if is_new:
            self._rows.see(now, key, message.qos > 0)
            if not self._election.wants(message.topic):
                parts.drop("not_wanted")
                is_new = False
        if not message.qos:
            if is_new:
                self._deliver_now(now, message, born_ms)
            self._send_now(now, message, (each for each in message.to if each != parts.name), at.name)
            return is_new
        stored = self._rows.stored.get(key) or StoredMessage(key, message, born_ms, at.name, data)
        has_come_back = False
        others = [each for each in message.to if each != parts.name] if is_here else message.to
        for destination in others:
            at_hop = stored.owed.get(destination, HOST)
            if at_hop == HOST:
                self._rows.owe(stored, destination)
            elif at_hop is not None:
                self._take_back(stored, destination, at_hop)
                has_come_back = True
        if is_new:
            self._delivery.take(now, stored)
        if has_come_back:  # ways differ until all have heard of a cut
            self._doubtful.append((now + DOUBT_S, stored.key))
        elif others:
            self._route(now, stored)
        return is_new

    def _take_back(self, stored: StoredMessage, destination: str, neighbour: str) -> None:
        """Hold a row that came back while a neighbour has it: what that one says to have kept may be this very copy."""
        flying = self._line(neighbour).flying
        for number, (key, destinations) in flying.items():
            if key == stored.key and destination in destinations:
                flying[number] = (key, tuple(each for each in destinations if each != destination))
        stored.owed[destination] = None
        self._parts.counts["came_back"] += 1

    def _over(self, message: TopicMessage, age_ms: int) -> str:
        if message.expiry_ms and age_ms >= message.expiry_ms:
            return "expired"
        return "held_too_long" if age_ms > self._parts.hold_s * 1000 else ""

    def _deliver_now(self, now: float, message: TopicMessage, born_ms: int) -> None:
        if self._delivery.is_up:
            self._delivery.hand_over(now, message, born_ms, 0)
        else:
            self._parts.drop("host_down")

    def _send_now(self, now: float, message: TopicMessage, destinations: Iterable[str], source: str) -> None:
        """Send a message of QoS 0, which nobody keeps."""
        for name, reason, those in self.ways.split(message.topic, destinations):
            at = self._parts.neighbours.get(name)
            if at is None or not at.is_up:
                self._parts.drop(name or reason or "no_way")
            elif name == source:
                self._parts.drop("forwarded_back")
            elif at.outgoing.free_at() > now:
                self._parts.drop("ceiling")
            else:
                self._send(now, at, message, those, message.age_ms, 0)

    def _send(
        self, now: float, at: Neighbour, message: TopicMessage, to: tuple[str, ...], age_ms: int, custody: int
    ) -> float:
        """Send a copy; return when the neighbour may be sent another one."""
        path, name = message.path, self._parts.name
        self._parts.send(
            at.name,
            TopicMessage(
                message.agent,
                message.incarnation,
                message.number,
                message.after,
                custody,
                message.topic,
                message.payload,
                message.qos,
                message.is_retained,
                message.is_register,
                message.stamp,
                age_ms if age_ms > 0 else 0,
                message.expiry_ms,
                message.properties,
                to,
                path if path[-1] == name else (*path, name),
            ),
        )
        return at.outgoing.take(now, len(message.payload) + len(message.topic) + 100)

    def kept(self, now: float, at: Neighbour, message: CustodyAck) -> None:
        """Let go what a neighbour has in its spool."""
        line = self._line(at.name)
        if message.custody > line.sent:
            return self._parts.refuse(at.name, "kept")
        if message.custody <= line.let_go:
            return None
        line.progress_at = now
        self._overlay.trust(now, at.name)
        all_stored = self._rows.stored
        for number in range(line.let_go + 1, message.custody + 1):
            key, destinations = line.flying.pop(number)
            stored = all_stored.get(key)
            if stored is not None:
                for destination in destinations:
                    self._rows.settle(stored, destination)
        line.let_go = message.custody
        return None

    # --- links and time

    def link_up(self, neighbour: str, is_resumed: bool) -> None:
        """Begin with a neighbour anew, where its frames do not go on."""
        if not is_resumed:
            old = self._lines.get(neighbour)
            self._lines[neighbour] = _Line()
            for key, destinations in old.flying.values() if old is not None else ():
                stored = self._rows.stored.get(key)
                for destination in destinations if stored is not None else ():
                    assert stored is not None
                    if stored.owed.get(destination) == neighbour:
                        stored.owed[destination] = None
            self._forget_backlog(neighbour)
            self._ways_version = (-1, -1)

    def _forget_backlog(self, source: str) -> None:
        if source in self._backlog_from:
            self._backlog_from.discard(source)
            self._backlog = deque(each for each in self._backlog if each[0] != source)

    def forget(self, agent: str) -> None:
        """Drop what is kept for an agent that was given up."""
        for stored in list(self._rows.stored.values()):
            if agent in stored.owed:
                self._parts.drop("forgotten")
                self._rows.settle(stored, agent)

    def tick(self, now: float) -> None:
        """Take what waited for room, find ways anew, send, and say what is kept."""
        if self._backlog and (not self._rows.is_full() or now >= self._backlog_at):
            self._backlog_at = now + FULL_HOLD_S
            self._take_backlog(now)
        version = (self._overlay.version, self._meshes.version)
        if version != self._ways_version:
            is_overlay = version[0] != self._ways_version[0]
            self._ways_version = version
            self.ways.forget()
            if is_overlay:
                self._reroute(now)
        while self._doubtful and self._doubtful[0][0] <= now:
            doubtful = self._rows.stored.get(self._doubtful.popleft()[1])
            if doubtful is not None:
                self._route(now, doubtful, is_sure=True)
        if now >= self._sweep_at:
            self._sweep(now)
        self._passing_on.tick(now)
        for name, line in self._lines.items():
            self._pump(now, name, line)
        for name, line in self._lines.items():
            if line.kept > line.told and self._parts.neighbours[name].is_linked:  # nothing goes by a link that ended
                line.told = line.kept
                self._parts.send(name, CustodyAck(line.kept))

    def _take_backlog(self, now: float) -> None:
        backlog, self._backlog = self._backlog, deque()
        self._backlog_from.clear()
        for source, item, stamp, number in backlog:
            if isinstance(item, Captured):
                _, is_taken = self.originate(now, item, stamp, number)
                if is_taken:
                    self._found_room(item)
                    self._parts.ready.effects.append(AckHost(item.ref))
            elif self._rows.is_full(len(item.path)) or source in self._backlog_from:
                self._backlog_from.add(source)
                self._backlog.append((source, item, 0, 0))
            else:
                self._take(now, self._parts.neighbours[source], self._line(source), item)

    def _pump(self, now: float, name: str, line: _Line) -> None:
        at = self._parts.neighbours.get(name)
        if at is None or not at.is_up or not at.is_linked or at.distrusted_until:
            return
        queue, flying, all_stored = line.queue, line.flying, self._rows.stored
        unkept_max, wall_ms = self._parts.settings.unkept_max, self._parts.wall_ms(now)
        free_at = at.outgoing.free_at()
        while queue and len(flying) < unkept_max and free_at <= now:
            key, wanted = queue.popleft()
            stored = all_stored.get(key)
            if stored is None:
                continue
            owed, message, age_ms = stored.owed, stored.message, wall_ms - stored.born_ms
            to = tuple([each for each in wanted if owed.get(each, HOST) is None])
            if not to:
                continue
            reason = self._over(message, age_ms)
            if not reason and len(message.path) >= HOPS_MAX:
                reason = "hops"
            if reason:
                self._end(stored, to, reason)
                continue
            line.sent += 1
            if not flying:
                line.progress_at = now
            flying[line.sent] = (key, to)
            for each in to:
                owed[each] = name
            if not message.expiry_ms:
                self._passing_on.handed(now, name, message, to)
            free_at = self._send(now, at, message, to, age_ms, line.sent)

    def _end(self, stored: StoredMessage, destinations: Iterable[str], reason: str) -> None:
        for destination in destinations:
            self._parts.drop(reason)
            if destination == HOST:
                self._delivery.ended(stored)
            self._rows.settle(stored, destination)

    def _sweep(self, now: float) -> None:
        self._sweep_at = now + SWEEP_S
        wall_ms = self._parts.wall_ms(now)
        for stored in list(self._rows.stored.values()):
            reason = self._over(stored.message, wall_ms - stored.born_ms)
            if reason:
                self._end(stored, list(stored.owed), reason)
        if self._rows.forget_seen(now):
            self._sweep_at = now
        timeout = self._parts.settings.kept_timeout_s
        for name, line in self._lines.items():
            at = self._parts.neighbours.get(name)
            is_used = line.flying and at is not None and at.is_up and not at.distrusted_until
            if is_used and now - line.progress_at > timeout:
                line.progress_at = now
                self._parts.drop(NOT_KEPT)
                self._parts.log("federation.held_too_long", neighbour=name, seconds=timeout)
                self._overlay.distrust(now, name, now + DISTRUST_S, NOT_KEPT)

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        due = min(self._sweep_at, self._passing_on.deadline(), self._doubtful[0][0] if self._doubtful else math.inf)
        if self._backlog:
            due = min(due, self._backlog_at)
        if (self._overlay.version, self._meshes.version) != self._ways_version:
            return -math.inf
        for name, line in self._lines.items():
            at = self._parts.neighbours.get(name)
            if line.queue and at is not None and at.is_up and len(line.flying) < self._parts.settings.unkept_max:
                due = min(due, at.outgoing.free_at())
        return due
