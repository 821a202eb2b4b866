"""One federation agent: handles events of its broker, its neighbours and the clock, and returns effects.

Combines overlay, cores and distribution trees, custody, capture and retained registers. Sans-IO:
``handle(now, events) -> FederationReady``. Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from struct import error as StructError
from typing import Any

from gateways.federation.agent_context import AgentContext, Neighbour
from gateways.federation.capture import Capture
from gateways.federation.delivery import FederatedDelivery
from gateways.federation.distribution_trees import DistributionTrees
from gateways.federation.echoes import ExpectedEchoes
from gateways.federation.election import Election
from gateways.federation.events import (
    MARKER_PREFIX,
    AckHost,
    AgentSettings,
    Captured,
    DropNeighbour,
    Event,
    FederationLinkDown,
    FederationLinkUp,
    FederationReady,
    HoldLink,
    HostAcked,
    HostDown,
    HostUp,
    InterestChanged,
    MarkerSeen,
    NeighbourFrame,
    SpoolMismatch,
)
from gateways.federation.forwarder import Forwarder
from gateways.federation.loops import parse_mark, remove_marks
from gateways.federation.messages import (
    CoreAnnouncement,
    CustodyAck,
    Federate,
    HelloBack,
    MalformedFederationMessage,
    NeighbourHello,
    Reconsider,
    ReconsiderTopicCore,
    TopicCores,
    TopicMessage,
    TopicSubscribe,
    TopologyUpdate,
    decode,
)
from gateways.federation.overlay import Overlay
from gateways.federation.retained import Registers
from gateways.federation.retained_sync import RetainedSync
from gateways.federation.rows import HOST, Rows, message_key
from gateways.federation.topics import TopicState
from mqtt.topics import matches

__all__ = ["Agent"]

ROWS_FORM = b"2"  # format of spool rows; docs/adr/0167-one-row-a-message.md
FEW_TOPICS = 256
CAPTURE_GAP_S = 0.05  # minimum interval of capture updates with many filters
SpoolRows = Mapping[str, Iterable[tuple[bytes, bytes]]]


class Agent:
    """The core of one agent, for one incarnation.

    Attributes:
      incarnation: For the HELLO of its links; greater than all earlier ones.
      is_new: The spool was empty; the shell connects with Clean Start, since a former session may have unknown
        subscriptions.
    """

    def __init__(self, settings: AgentSettings, rows: SpoolRows, now: float, wall_ms: int, random: Random) -> None:
        """Start an incarnation; the first ``handle`` returns its first writes.

        Args:
          settings: Bounds.
          rows: All rows of ``SPOOL_KINDS``.
          now: Time of the clock of ``handle``, which runs during system sleep.
          wall_ms: UTC in milliseconds at ``now``.
          random: For the id.

        Raises:
          SpoolMismatch: The rows are of another federation or agent, or unreadable.
        """
        self._parts = parts = AgentContext(settings, now, wall_ms, random)
        self._restore_identity(dict(rows.get("agent", ())), wall_ms)
        self.overlay = Overlay(parts)
        self.trees = DistributionTrees(parts, self.overlay)
        self.election = Election(parts, self.overlay, self.trees)
        self.capture = Capture(parts)
        self.registers = Registers(parts)
        self.rows = Rows(parts)
        self._echoes = ExpectedEchoes(parts)
        self._retained_sync = RetainedSync(parts, self.registers, self.rows, self.election, self.trees, self.capture)
        self._delivery = FederatedDelivery(
            parts, self.rows, self._echoes, self.capture, self._retained_sync.assert_retained
        )
        self.forwarder = Forwarder(
            parts, self.overlay, self.trees, self.election, self.rows, self._delivery, self._retained_sync.record_stored
        )
        self._retained_sync.forwarder, self._retained_sync.delivery = self.forwarder, self._delivery
        self._captured_version = -1
        self._capture_update_at = 0.0
        self._loops: set[str] = set()
        try:
            self.rows.restore(rows)
            self.election.restore(now, rows.get("topic", ()))
            self.capture.restore(rows.get("capture", ()))
            self.registers.restore(rows.get("register", ()))
            self._echoes.restore(rows.get("echo", ()))
        except (ValueError, KeyError, IndexError, StructError) as error:
            raise SpoolMismatch(f"a row of the spool cannot be read: {error}") from error
        self._delivery.begin()

    def _restore_identity(self, facts: dict[bytes, bytes], wall_ms: int) -> None:
        parts, settings = self._parts, self._parts.settings
        for key, value in ((b"federation", settings.federation), (b"agent", settings.agent)):
            if facts.get(key, value.encode()) != value.encode():
                name = facts[key].decode(errors="replace")
                raise SpoolMismatch(f"the spool belongs to {key.decode()} {name}, not to {value}")
            parts.put("agent", key, value.encode())
        if facts and facts.get(b"rows") != ROWS_FORM:
            raise SpoolMismatch(
                "the spool was written by another release: let that release deliver it, then move the spool"
            )
        parts.put("agent", b"rows", ROWS_FORM)
        self.is_new = not facts
        parts.incarnation = max(int.from_bytes(facts.get(b"incarnation", b""), "big") + 1, wall_ms, 1)
        parts.id = int.from_bytes(facts.get(b"id", b""), "big") or parts.random.getrandbits(63) + 1
        parts.put("agent", b"incarnation", parts.incarnation.to_bytes(8, "big"))
        parts.put("agent", b"id", parts.id.to_bytes(8, "big"))

    @property
    def incarnation(self) -> int:
        """Return this incarnation's number."""
        return self._parts.incarnation

    @property
    def id(self) -> int:
        """Return this agent's id, which changes if an agent with a lower name has the same id."""
        return self._parts.id

    @property
    def name(self) -> str:
        """Return the name of this agent."""
        return self._parts.name

    @property
    def counts(self) -> Counter[str]:
        """Return counts of events, by name; drops are counted by reason."""
        return self._parts.counts

    @property
    def neighbours(self) -> Mapping[str, Neighbour]:
        """Return the agents that had a link, by name."""
        return self._parts.neighbours

    @property
    def marker_topic(self) -> str:
        """Return the topic of this agent's marker."""
        return self.capture.marker_topic

    def handle(self, now: float, events: Iterable[Event] = ()) -> FederationReady:
        """Handle events and the time; return the effects."""
        for event in events:
            self._take(now, event)
        if now >= self.overlay.deadline():
            self.overlay.tick(now)
        self._remove_forgotten(now)
        self.election.tick(now)
        if self._captured_version != self.election.version and now >= self._capture_update_at:
            self._captured_version = self.election.version
            self._capture_update_at = now + CAPTURE_GAP_S if len(self.election.topics) > FEW_TOPICS else now
            self.capture.set_wanted(now, self.election.wanted_elsewhere())
        if self.capture.tick(now):
            self._delivery.expect_echoes(now)
        self._retained_sync.tick(now)
        self._delivery.tick(now)
        self.forwarder.tick(now)
        if self.capture.is_deferred and not self.forwarder.holds_copies and self.capture.complete_change():
            self._retained_sync.settled(now)
        self.election.tick(now)
        self.rows.write()
        ready, self._parts.ready = self._parts.ready, FederationReady()
        ready.deadline = min(
            self.overlay.deadline(),
            self.election.deadline(),
            self.capture.deadline(),
            self._delivery.deadline(),
            self.forwarder.deadline(),
            now + 1.0 if self._captured_version == self.election.version else max(now, self._capture_update_at),
        )
        return ready

    def _take(self, now: float, event: Event) -> None:
        match event:
            case NeighbourFrame():
                self._received(now, event)
            case Captured():
                self._captured(now, event)
            case HostAcked(ref, is_refused):
                stored = self._delivery.acked(ref, is_refused)
                if stored is not None and stored.message.is_retained and not is_refused:
                    self._retained_sync.acked(now, stored)
            case MarkerSeen(ref, number, connection):
                if self.capture.marker_seen(ref, number, connection, may_end=not self.forwarder.holds_copies):
                    self._retained_sync.settled(now)
            case InterestChanged():
                self._interest(now, event)
            case HostUp(is_present):
                self._echoes.host_up(now, is_present)
                self._delivery.host_up(is_present)
                self._retained_sync.host_up(now, is_present)
                self.capture.host_up(is_present)
            case HostDown():
                self._delivery.is_up = False
                self.capture.host_down()
            case FederationLinkUp(neighbour=neighbour, is_resumed=is_resumed):
                self.overlay.link_up(now, event)
                self.election.link_up(neighbour)
                self.forwarder.link_up(neighbour, is_resumed)
            case FederationLinkDown(neighbour):
                self.overlay.link_down(now, neighbour)
            case DropNeighbour(agent):
                self.overlay.forget(agent)

    def _remove_forgotten(self, now: float) -> None:
        removed, self._parts.forgotten = self._parts.forgotten, []
        for agent in removed:
            self.trees.forget(agent)
            self.election.forget(now, agent)
            self.forwarder.forget(agent)

    def _interest(self, now: float, event: InterestChanged) -> None:
        added = [(each, qos) for each, qos in sorted(event.added.items()) if not self._is_wanted(each)]
        self.election.interest(now, event.added.items(), event.removed)
        for topic_filter, _ in added:
            if self._is_wanted(topic_filter):
                self._retained_sync.wanted(now, topic_filter)

    def _is_wanted(self, topic_filter: str) -> bool:
        state = self.election.topics.get(topic_filter)
        return state is not None and state.wanted is not None

    # --- from the broker

    def _captured(self, now: float, event: Captured) -> None:
        if not self._capture_message(now, event) or not event.ref:
            return
        self._parts.ready.effects.append(AckHost(event.ref))

    def _capture_message(self, now: float, event: Captured) -> bool:
        """Handle a client's message; return whether it may be acknowledged."""
        parts = self._parts
        if not self.capture.is_counted(event.topic, event.identifiers, event.connection):
            parts.drop("copy_not_counted")
            return True
        if event.topic.startswith(("$", MARKER_PREFIX)):
            parts.drop("reserved_topic")
            return True
        if self._delivery.is_echo(now, event):
            parts.drop("echo")
            return True
        stamp = 0
        if event.is_retained:
            stamp = self._retained_sync.stamp(now, event)
            if not stamp:
                return True
        if self._detect_loop(now, event):
            return True
        event = event._replace(properties=remove_marks(event.properties))
        number, is_taken = self.forwarder.originate(now, event, stamp)
        if stamp:
            self._retained_sync.captured(now, event, stamp, number, is_taken)
        parts.counts["captured"] += 1
        return is_taken

    def _detect_loop(self, now: float, event: Captured) -> bool:
        """Return whether another bridge returned a message of the federation."""
        mark = parse_mark(self._parts.settings.federation, event.topic, event.properties)
        if mark is None:
            return False
        key = message_key(mark.agent, mark.incarnation, mark.number)
        if not self.rows.is_seen(key):
            self.rows.mark_seen(now, key, True)
        self._parts.drop("foreign_loop")
        other = mark.path.rpartition(">")[2] or mark.agent
        if other not in self._loops and len(self._loops) < len(self.overlay.agents) + 1:
            self._loops.add(other)
            self._parts.log("federation.bridged_beside", other=other, agent=self.name)
        return True

    # --- from neighbours

    def _received(self, now: float, event: NeighbourFrame) -> None:
        parts = self._parts
        at = parts.neighbours.get(event.neighbour)
        if at is None or not at.is_linked:
            return parts.drop("no_link")
        free_at = at.incoming.take(now, len(event.data))
        if free_at > now:
            parts.counts["held_links"] += 1
            parts.ready.effects.append(HoldLink(at.name, free_at))
        try:
            message = decode(event.data)
        except MalformedFederationMessage as malformed:
            return parts.refuse(at.name, malformed.reason)
        parts.counts[_RECEIVED[type(message)]] += 1
        if isinstance(message, TopicMessage):
            if message.is_register:
                self._retained_sync.received(now, at.name, message)
            elif self.forwarder.received(now, at, message, event.data):
                self._retained_sync.delivered(now, message)
            return None
        self._dispatch(now, at, message)
        return None

    def _dispatch(self, now: float, at: Neighbour, message: object) -> None:
        overlay, election = self.overlay, self.election
        match message:
            case CustodyAck():
                self.forwarder.kept(now, at, message)
            case NeighbourHello():
                overlay.hello(at.name, message)
            case HelloBack():
                overlay.hello_back(now, at.name, message)
            case Federate():
                overlay.federate(now, at.name, message)
            case Reconsider():
                overlay.reconsider(now, message)
            case CoreAnnouncement():
                overlay.announcement(at.name, message)
            case TopologyUpdate():
                overlay.update(now, at.name, message)
            case TopicCores():
                election.cores(now, at.name, message)
            case ReconsiderTopicCore():
                election.reconsider(now, message)
            case TopicSubscribe():
                mine = election.subscribe(now, at.name, message)
                if mine is not None:
                    self._retained_sync.compared(now, mine)

    # --- command line

    def status(self) -> dict[str, Any]:
        """Return this agent's status for operators."""
        parts, overlay = self._parts, self.overlay
        return {
            "agent": parts.name,
            "federation": parts.settings.federation,
            "id": parts.id,
            "incarnation": parts.incarnation,
            "management_core": overlay.core(),
            "host": self._delivery.is_up,
            "neighbours": [
                {
                    "name": name,
                    "up": at.is_up,
                    "round_trip_ms": round(at.round_trip_ms, 1),
                    "passed_by": at.distrusted_for,
                    "not_passed_on": at.not_passed_on,
                }
                for name, at in sorted(parts.neighbours.items())
            ],
            "agents": [
                {"name": name, "distance": overlay.distance(name), "next_hops": list(overlay.next_hops(name))}
                for name in sorted(overlay.agents)
            ],
            "capture": self.capture.filters(),
            "capture_asked": self.capture.pending_filters(),
            "messages_kept": len(self.rows.stored),
            "bytes_kept": self.rows.length,
            "registers": len(self.registers),
            "counts": dict(sorted(parts.counts.items())),
        }

    def topics(self) -> list[dict[str, Any]]:
        """Return the federated filters, their cores and members."""
        return [self._filter(state) for _, state in sorted(self.election.topics.items())]

    def _filter(self, state: TopicState) -> dict[str, Any]:
        return {
            "filter": state.filter,
            "core": state.core,
            "members": sorted(state.members),
            "wanted": state.wanted,
            "parents": list(self.trees.parents(state.core)) if state.core else [],
            "children": self.trees.children(state.filter),
        }

    def explain_topic(self, topic: str) -> dict[str, Any]:
        """Return the filters, cores, trees and paths of a topic's messages from this agent."""
        ways = {each: self.forwarder.next_hops.get_hops(each) for each in self.election.destinations(topic)}
        return {
            "topic": topic,
            "filters": [self._filter(state) for state in self.election.matching(topic)],
            "to": [
                {
                    "agent": each,
                    "distance": self.overlay.distance(each),
                    "through": list(through),
                    "path": self.overlay.path(each, through[0]) if through else [],
                }
                for each, through in ways.items()
            ],
            "captured_by": [each for each in self.capture.filters() if matches(each, topic)],
            "asked_for": [each for each in self.capture.pending_filters() if matches(each, topic)],
        }

    def get_forget_problem(self, name: str) -> str:
        """Return why an agent cannot be removed, "" if it can."""
        if name == HOST:
            return "the name of an agent is not empty"
        if name == self.name:
            return f"{name} is the agent that was asked"
        if self.overlay.distance(name) is not None:
            return f"{name} can be reached: stop it first"
        is_member = any(state.names(name) for state in self.election.topics.values())
        is_known = name in self.overlay.agents or name in self.neighbours
        if not is_known and not is_member and not self.rows.count_pending(name):
            return f"no agent {name} is known here: nothing is kept for it, and it is a member of no filter"
        return ""

    def graph(self) -> dict[str, Any]:
        """Return the agents and the links between them."""
        return {"agents": sorted([self.name, *self.overlay.agents]), "links": sorted(set(self.overlay.edges()))}


_RECEIVED = {
    kind: f"received_{kind.__struct_config__.tag}"
    for kind in (
        NeighbourHello,
        HelloBack,
        Federate,
        Reconsider,
        CoreAnnouncement,
        TopicCores,
        ReconsiderTopicCore,
        TopicSubscribe,
        TopicMessage,
        TopologyUpdate,
        CustodyAck,
    )
}
