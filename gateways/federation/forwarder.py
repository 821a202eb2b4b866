"""Custody of messages between agents: the next hop of each destination, and when a row is deleted.

A row is deleted when the next hop has acknowledged custody, the broker has accepted it, or it expired; the last is
counted. When a route is lost, rows take another. Pure logic. Source: docs/protocol.md, custody.
Decision: docs/adr/0086-federation.md.
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
RETURN_DELAY_S = 0.3  # delay before a message returns to an agent that had it
FULL_HOLD_S = 0.5  # pause of reading a neighbour while the spool is full
NOT_CARRIED = (
    PropertyId.MESSAGE_EXPIRY_INTERVAL,
    PropertyId.TOPIC_ALIAS,
    PropertyId.SUBSCRIPTION_IDENTIFIER,
)


class _CustodyChannel:
    """Both directions of custody with one neighbour, for one link.

    Attributes:
      queue: Messages to send, with their destinations.
      in_flight: By custody number, contiguous up to ``sent``: message and destinations.
      acked_below: The number before the first of them.
      taken, kept, announced: Highest number received, highest number that may be acknowledged, and last number
        acknowledged.
    """

    def __init__(self) -> None:
        self.queue: deque[tuple[bytes, tuple[str, ...]]] = deque()
        self.in_flight: dict[int, tuple[bytes, tuple[str, ...]]] = {}
        self.sent = self.acked_below = self.taken = self.kept = self.announced = 0
        self.progress_at = -math.inf


class Forwarder:
    """See the module.

    Attributes:
      next_hops: Next hops of messages from here.
    """

    def __init__(
        self,
        parts: AgentContext,
        overlay: Overlay,
        trees: DistributionTrees,
        election: Election,
        rows: Rows,
        delivery: FederatedDelivery,
        on_stored: Callable[[Captured], None],
    ) -> None:
        self._parts, self._overlay, self._trees, self._election = parts, overlay, trees, election
        self._rows, self._delivery, self._on_stored = rows, delivery, on_stored
        self._transit = TransitMonitor(parts, overlay)
        self._channels: dict[str, _CustodyChannel] = {}
        self._number = 0
        self._last: dict[str, tuple[int, frozenset[str]]] = {}  # topic: number, destinations
        self._backlog: deque[tuple[str, Captured | TopicMessage, int, int]] = deque()  # until the spool has space
        self._backlog_from: set[str] = set()
        self._backlog_at = 0.0
        self.next_hops = NextHops(parts, overlay, trees)
        self._routes_version = (-1, -1)
        self._delayed: deque[tuple[float, bytes]] = deque()
        self._sweep_at = 0.0

    # --- routes

    def _route(self, now: float, stored: StoredMessage, is_sure: bool = False) -> None:
        """Queue a message for the next hops of its destinations.

        A neighbour on the message's path may return it until all agents know of a lost link: the message waits for that
        once.
        """
        message = stored.message
        waiting = tuple([each for each, at in stored.owed.items() if at is None and each != HOST])
        if len(waiting) == 1:
            found: Iterable[tuple[str, str, tuple[str, ...]]] = (
                (*self.next_hops.choose(message.topic, waiting[0]), waiting),
            )
        else:
            found = self.next_hops.group(message.topic, waiting)
        for name, reason, destinations in found:
            if name and name in message.path and not is_sure:
                self._delayed.append((now + RETURN_DELAY_S, stored.key))
            elif name:
                self._get_channel(name).queue.append((stored.key, destinations))
            elif reason:
                self._end(stored, destinations, reason)

    def _reroute(self, now: float) -> None:
        """Route all waiting messages again; messages in flight to a neighbour that is down are routed again too."""
        up = set(self._overlay.up())
        for name, channel in self._channels.items():
            channel.queue.clear()
            for key, destinations in channel.in_flight.values():
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

    def _get_channel(self, neighbour: str) -> _CustodyChannel:
        channel = self._channels.get(neighbour)
        if channel is None:
            channel = self._channels[neighbour] = _CustodyChannel()
        return channel

    # --- from the broker

    @property
    def holds_copies(self) -> bool:
        """Whether messages of the broker are backlogged and thus unacknowledged."""
        return HOST in self._backlog_from

    def originate(self, now: float, captured: Captured, stamp: int, number: int = 0) -> tuple[int, bool]:
        """Forward a captured message to all interested agents; ``number`` is set for a backlogged one.

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
                self._rows.add_destination(stored, destination)
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
        """Forward a retained register; a lost one is requested again."""
        if len(message.path) < HOPS_MAX:
            self._send_now(now, message, (each for each in message.to if each != self._parts.name), source)

    # --- from neighbours

    def received(self, now: float, at: Neighbour, message: TopicMessage, data: bytes) -> bool:
        """Handle a neighbour's message with its encoded bytes; return whether it is new for this broker."""
        channel = self._get_channel(at.name)
        if message.path[-1] != at.name:
            self._parts.refuse(at.name, "path")
            return False
        if message.custody:
            if message.custody != channel.taken + 1:
                self._parts.refuse(at.name, "custody")
                return False
            channel.taken = message.custody
            if not message.expiry_ms and self._parts.name in message.to:
                self._transit.record_arrival(message)
            if self._rows.is_full(len(message.path)) or at.name in self._backlog_from:
                self._backlog_from.add(at.name)
                self._backlog.append((at.name, message, 0, 0))
                self._parts.counts["spool_full"] += 1
                self._parts.ready.effects.append(HoldLink(at.name, now + FULL_HOLD_S))
                return False
        return self._take(now, at, channel, message, data)

    def _take(
        self, now: float, at: Neighbour, channel: _CustodyChannel, message: TopicMessage, data: bytes = b""
    ) -> bool:
        parts = self._parts
        if message.custody > channel.kept:
            channel.kept = message.custody
        born_ms = parts.wall_ms(now) - message.age_ms
        if not at.may_send(message.topic):
            parts.drop("import")
            return False
        reason = self._expiry_reason(message, message.age_ms)
        if reason:
            parts.drop(reason)
            return False
        key = message_key(message.agent, message.incarnation, message.number)
        is_here = parts.name in message.to
        is_new = is_here and message.agent != parts.name and not self._rows.is_seen(key)
        if is_here and not is_new:
            parts.drop("repeat")
        if is_new:
            self._rows.mark_seen(now, key, message.qos > 0)
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
                self._rows.add_destination(stored, destination)
            elif at_hop is not None:
                self._recall(stored, destination, at_hop)
                has_come_back = True
        if is_new:
            self._delivery.take(now, stored)
        if has_come_back:  # routes differ until all agents know of a lost link
            self._delayed.append((now + RETURN_DELAY_S, stored.key))
        elif others:
            self._route(now, stored)
        return is_new

    def _recall(self, stored: StoredMessage, destination: str, neighbour: str) -> None:
        """Take back a row that a neighbour returned while it is in flight there: its acknowledgement may mean this
        copy.
        """
        in_flight = self._get_channel(neighbour).in_flight
        for number, (key, destinations) in in_flight.items():
            if key == stored.key and destination in destinations:
                in_flight[number] = (key, tuple(each for each in destinations if each != destination))
        stored.owed[destination] = None
        self._parts.counts["came_back"] += 1

    def _expiry_reason(self, message: TopicMessage, age_ms: int) -> str:
        if message.expiry_ms and age_ms >= message.expiry_ms:
            return "expired"
        return "held_too_long" if age_ms > self._parts.hold_s * 1000 else ""

    def _deliver_now(self, now: float, message: TopicMessage, born_ms: int) -> None:
        if self._delivery.is_up:
            self._delivery.inject(now, message, born_ms, 0)
        else:
            self._parts.drop("host_down")

    def _send_now(self, now: float, message: TopicMessage, destinations: Iterable[str], source: str) -> None:
        """Send a QoS 0 message, without custody."""
        for name, reason, those in self.next_hops.group(message.topic, destinations):
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
        """Send a copy; return when the neighbour may be sent the next one."""
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
        """Delete rows of which a neighbour has acknowledged custody."""
        channel = self._get_channel(at.name)
        if message.custody > channel.sent:
            return self._parts.refuse(at.name, "kept")
        if message.custody <= channel.acked_below:
            return None
        channel.progress_at = now
        self._overlay.trust(now, at.name)
        all_stored = self._rows.stored
        for number in range(channel.acked_below + 1, message.custody + 1):
            key, destinations = channel.in_flight.pop(number)
            stored = all_stored.get(key)
            if stored is not None:
                for destination in destinations:
                    self._rows.settle(stored, destination)
        channel.acked_below = message.custody
        return None

    # --- links and time

    def link_up(self, neighbour: str, is_resumed: bool) -> None:
        """Reset the custody state of a neighbour, unless its link resumes."""
        if not is_resumed:
            old = self._channels.get(neighbour)
            self._channels[neighbour] = _CustodyChannel()
            for key, destinations in old.in_flight.values() if old is not None else ():
                stored = self._rows.stored.get(key)
                for destination in destinations if stored is not None else ():
                    assert stored is not None
                    if stored.owed.get(destination) == neighbour:
                        stored.owed[destination] = None
            self._remove_backlog(neighbour)
            self._routes_version = (-1, -1)

    def _remove_backlog(self, source: str) -> None:
        if source in self._backlog_from:
            self._backlog_from.discard(source)
            self._backlog = deque(each for each in self._backlog if each[0] != source)

    def forget(self, agent: str) -> None:
        """Drop all messages for a removed agent."""
        for stored in list(self._rows.stored.values()):
            if agent in stored.owed:
                self._parts.drop("forgotten")
                self._rows.settle(stored, agent)

    def tick(self, now: float) -> None:
        """Handle the backlog, route again, send, and acknowledge custody."""
        if self._backlog and (not self._rows.is_full() or now >= self._backlog_at):
            self._backlog_at = now + FULL_HOLD_S
            self._take_backlog(now)
        version = (self._overlay.version, self._trees.version)
        if version != self._routes_version:
            is_overlay = version[0] != self._routes_version[0]
            self._routes_version = version
            self.next_hops.clear()
            if is_overlay:
                self._reroute(now)
        while self._delayed and self._delayed[0][0] <= now:
            delayed = self._rows.stored.get(self._delayed.popleft()[1])
            if delayed is not None:
                self._route(now, delayed, is_sure=True)
        if now >= self._sweep_at:
            self._sweep(now)
        self._transit.tick(now)
        for name, channel in self._channels.items():
            self._pump(now, name, channel)
        for name, channel in self._channels.items():
            # no acknowledgement is sent on a former link
            if channel.kept > channel.announced and self._parts.neighbours[name].is_linked:
                channel.announced = channel.kept
                self._parts.send(name, CustodyAck(channel.kept))

    def _take_backlog(self, now: float) -> None:
        backlog, self._backlog = self._backlog, deque()
        self._backlog_from.clear()
        for source, item, stamp, number in backlog:
            if isinstance(item, Captured):
                _, is_taken = self.originate(now, item, stamp, number)
                if is_taken:
                    self._on_stored(item)
                    self._parts.ready.effects.append(AckHost(item.ref))
            elif self._rows.is_full(len(item.path)) or source in self._backlog_from:
                self._backlog_from.add(source)
                self._backlog.append((source, item, 0, 0))
            else:
                self._take(now, self._parts.neighbours[source], self._get_channel(source), item)

    def _pump(self, now: float, name: str, channel: _CustodyChannel) -> None:
        at = self._parts.neighbours.get(name)
        if at is None or not at.is_up or not at.is_linked or at.distrusted_until:
            return
        queue, in_flight, all_stored = channel.queue, channel.in_flight, self._rows.stored
        unkept_max, wall_ms = self._parts.settings.unkept_max, self._parts.wall_ms(now)
        free_at = at.outgoing.free_at()
        while queue and len(in_flight) < unkept_max and free_at <= now:
            key, wanted = queue.popleft()
            stored = all_stored.get(key)
            if stored is None:
                continue
            owed, message, age_ms = stored.owed, stored.message, wall_ms - stored.born_ms
            to = tuple([each for each in wanted if owed.get(each, HOST) is None])
            if not to:
                continue
            reason = self._expiry_reason(message, age_ms)
            if not reason and len(message.path) >= HOPS_MAX:
                reason = "hops"
            if reason:
                self._end(stored, to, reason)
                continue
            channel.sent += 1
            if not in_flight:
                channel.progress_at = now
            in_flight[channel.sent] = (key, to)
            for each in to:
                owed[each] = name
            if not message.expiry_ms:
                self._transit.record_handoff(now, name, message, to)
            free_at = self._send(now, at, message, to, age_ms, channel.sent)

    def _end(self, stored: StoredMessage, destinations: Iterable[str], reason: str) -> None:
        for destination in destinations:
            self._parts.drop(reason)
            if destination == HOST:
                self._delivery.discard(stored)
            self._rows.settle(stored, destination)

    def _sweep(self, now: float) -> None:
        self._sweep_at = now + SWEEP_S
        wall_ms = self._parts.wall_ms(now)
        for stored in list(self._rows.stored.values()):
            reason = self._expiry_reason(stored.message, wall_ms - stored.born_ms)
            if reason:
                self._end(stored, list(stored.owed), reason)
        if self._rows.expire_seen(now):
            self._sweep_at = now
        timeout = self._parts.settings.kept_timeout_s
        for name, channel in self._channels.items():
            at = self._parts.neighbours.get(name)
            is_used = channel.in_flight and at is not None and at.is_up and not at.distrusted_until
            if is_used and now - channel.progress_at > timeout:
                channel.progress_at = now
                self._parts.drop(NOT_KEPT)
                self._parts.log("federation.held_too_long", neighbour=name, seconds=timeout)
                self._overlay.distrust(now, name, now + DISTRUST_S, NOT_KEPT)

    def deadline(self) -> float:
        """Return when ``tick`` is due."""
        due = min(self._sweep_at, self._transit.deadline(), self._delayed[0][0] if self._delayed else math.inf)
        if self._backlog:
            due = min(due, self._backlog_at)
        if (self._overlay.version, self._trees.version) != self._routes_version:
            return -math.inf
        for name, channel in self._channels.items():
            at = self._parts.neighbours.get(name)
            if (
                channel.queue
                and at is not None
                and at.is_up
                and len(channel.in_flight) < self._parts.settings.unkept_max
            ):
                due = min(due, at.outgoing.free_at())
        return due
