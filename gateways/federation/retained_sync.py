"""Synchronization of retained messages: captured ones, values that the broker lacks, and comparison with cores.

Registers are in ``retained.py``. Pure logic. Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gateways.federation.agent_context import AgentContext
from gateways.federation.capture import Capture
from gateways.federation.delivery import FederatedDelivery
from gateways.federation.distribution_trees import DistributionTrees
from gateways.federation.election import Election
from gateways.federation.events import Captured
from gateways.federation.forwarder import Forwarder
from gateways.federation.messages import SubscriptionRequest, TopicMessage, TopicSubscribe, pack_properties
from gateways.federation.retained import INITIAL_STAMP, Registers, RetainedRegister, payload_digest
from gateways.federation.rows import HOST, Rows, StoredMessage, message_key

__all__ = ["RetainedSync"]

COMPARE_S = 1.0
COMPARED_MAX = 16  # filters compared by one request
SENT_MAX = 256  # registers of one answer; the next comparison finds the rest
UNSURE_S = 10.0  # for a QoS 0 retained message, which the broker does not acknowledge
UNSURE_MAX = 4096  # topics of the newest such messages


class RetainedSync:
    """See the module."""

    def __init__(
        self,
        parts: AgentContext,
        registers: Registers,
        rows: Rows,
        election: Election,
        trees: DistributionTrees,
        capture: Capture,
    ) -> None:
        self._parts, self._registers, self._rows = parts, registers, rows
        self._election, self._trees, self._capture = election, trees, capture
        self._asserted: set[tuple[str, int, str]] = set()  # retained messages in flight to the broker
        self._unsure: dict[str, float] = {}  # topics of QoS 0 ones: until when the broker may lack them
        self._is_host_new = False
        self._compare_at = 0.0
        self._differed: dict[str, tuple[int, int]] = {}  # filter: both digests of the last comparison
        self.forwarder: Forwarder
        self.delivery: FederatedDelivery

    # --- captured

    def stamp(self, now: float, captured: Captured) -> int:
        """Return the stamp of a captured retained message; 0 for a known or replaced one."""
        topic, registers = captured.topic, self._registers
        known = registers.get(topic)
        if not self._capture.is_changing or registers.is_redelivered(topic, captured.payload):
            return registers.next_stamp(now, topic)
        if known is None:
            return INITIAL_STAMP if self._is_host_new else registers.next_stamp(now, topic)
        if known.payload == captured.payload:
            self._parts.drop("retained_known")
            registers.at_host(topic)
            return 0
        if known.at_host == payload_digest(captured.payload):
            self._parts.drop("retained_known")  # the broker's former value: it is replaced when clients want it
            return 0
        if not self._is_host_new:
            return registers.next_stamp(now, topic)
        self._parts.drop("retained_replaced")
        self._inject(now, topic, known)
        return 0

    def captured(self, now: float, captured: Captured, stamp: int, number: int, is_taken: bool) -> None:
        """Write the register of a captured message, which may wait for the full spool."""
        properties = pack_properties({})
        register = RetainedRegister(
            stamp,
            self._parts.name,
            self._parts.incarnation,
            number,
            captured.payload,
            captured.qos,
            properties,
            payload_digest(captured.payload),
        )
        if self._registers.write(now, captured.topic, register) and self._unsure.get(captured.topic, now) > now:
            self._parts.counts["retained_again"] += 1  # an older one may reach the broker after it
            self._inject(now, captured.topic, register)
        if is_taken:
            self._registers.record_stored(captured.topic, captured.payload)
        else:
            self._registers.record_queued(captured.topic, captured.payload)

    def record_stored(self, captured: Captured) -> None:
        """Record that the spool has a backlogged message."""
        if captured.is_retained:
            self._registers.record_stored(captured.topic, captured.payload)

    # --- from other agents

    def delivered(self, now: float, message: TopicMessage) -> None:
        """Write the register of a message delivered to this broker."""
        if message.is_retained and message.stamp:
            self._registers.write(now, message.topic, _register(message, not message.qos and self.delivery.is_up))

    def assert_retained(self, now: float, message: TopicMessage) -> bool:
        """Record a delivery; return whether to publish it as retained, as the newest of its topic."""
        is_newest = self._registers.is_newest(message.topic, message.stamp, message.agent)
        if is_newest and message.qos:
            self._asserted.add((message.topic, message.stamp, message.agent))
        elif is_newest:
            self._unsure.pop(message.topic, None)
            self._unsure[message.topic] = now + UNSURE_S
            if len(self._unsure) > UNSURE_MAX:
                del self._unsure[next(iter(self._unsure))]
        return is_newest

    def acked(self, now: float, stored: StoredMessage) -> None:
        """Record that the broker has a retained message; if it overwrote a client's newer one, publish that again."""
        message = stored.message
        key = (message.topic, message.stamp, message.agent)
        if key not in self._asserted:
            return
        self._asserted.discard(key)
        known = self._registers.get(message.topic)
        if known is None or known.age() == (message.stamp, message.agent):
            self._registers.at_host(message.topic)
        elif known.is_at_host():
            self._parts.counts["retained_again"] += 1
            self._inject(now, message.topic, known)

    def received(self, now: float, source: str, message: TopicMessage) -> None:
        """Apply a register of another agent, or forward it."""
        if self._parts.name not in message.to:
            return self.forwarder.pass_register(now, message, source)
        register = _register(message, False)
        known = self._registers.get(message.topic)
        is_news = known is None or known.age() < register.age()
        if is_news and self._registers.write(now, message.topic, register) and self._election.wants(message.topic):
            self._inject(now, message.topic, register)
        return None

    def _inject(self, now: float, topic: str, register: RetainedRegister) -> None:
        """Publish a register at the broker once, and mark the id of its message as seen."""
        key = message_key(register.agent, register.incarnation, register.number)
        stored_key = b"\1" + key
        owed = self._rows.stored.get(key)
        if stored_key in self._rows.stored or (owed is not None and HOST in owed.owed):
            return
        if not self._rows.is_seen(key):
            self._rows.mark_seen(now, key, True)
        message = _message(topic, register, (self._parts.name,), self._parts.name)
        stored = StoredMessage(stored_key, message, self._parts.wall_ms(now), "")
        self.delivery.take(now, stored)

    # --- the broker

    def host_up(self, now: float, is_present: bool) -> None:
        """Assume that a broker without session lost its retained messages."""
        if not is_present:
            self._is_host_new = True
            self._registers.reset_host()
        elif not self._capture.is_changing:
            self.settled(now)

    def settled(self, now: float) -> None:
        """Publish the registers that the broker lacks, after its own retained messages were received."""
        self._is_host_new = False
        for topic, register in list(self._registers.missing()):
            if self._election.wants(topic):
                self._inject(now, topic, register)

    def wanted(self, now: float, topic_filter: str) -> None:
        """Publish the registers of a newly wanted filter."""
        for topic, register in list(self._registers.missing(topic_filter)):
            self._inject(now, topic, register)

    # --- comparison

    def tick(self, now: float) -> None:
        """Announce changed digests, and send requests to cores whose digests have differed for a while."""
        self._registers.tick(now)
        if now < self._compare_at:
            return
        self._compare_at = now + COMPARE_S
        self._registers.compare(self._election.topics)
        for topic_filter in self._registers.changed:
            self._election.digests[topic_filter] = self._registers.digest(topic_filter)
            self._election.announce(topic_filter)
        self._registers.changed.clear()
        pending: dict[str, list[SubscriptionRequest]] = {}
        differed: dict[str, tuple[int, int]] = {}
        for topic_filter, core, theirs in self._cores():
            mine = self._registers.digest(topic_filter)
            if mine != theirs and len(pending.get(core, ())) < COMPARED_MAX:
                if self._differed.get(topic_filter) == (mine, theirs):
                    digests = self._registers.digests(topic_filter)
                    pending.setdefault(core, []).append(SubscriptionRequest(topic_filter, 0, False, digests=digests))
                else:
                    differed[topic_filter] = (mine, theirs)
        self._differed = differed
        for core, requests in pending.items():
            self._trees.send_requests(core, requests)

    def _cores(self) -> Iterator[tuple[str, str, int]]:
        for topic_filter, state in self._election.topics.items():
            record = state.records.get(state.core)
            if record is not None and not state.is_core:
                yield topic_filter, state.core, record.digest

    def compared(self, now: float, message: TopicSubscribe) -> None:
        """Send registers that another agent lacks; a core requests a comparison in return."""
        back: list[SubscriptionRequest] = []
        for request in message.requests:
            if not request.digests:
                continue
            for topic, register in islice(self._registers.differing(request.filter, request.digests), SENT_MAX):
                packed = _message(topic, register, (message.member,), self._parts.name)
                self.forwarder.pass_register(now, packed)
            state = self._election.topics.get(request.filter)
            if state is not None and state.is_core:
                back.append(
                    SubscriptionRequest(request.filter, 0, False, digests=self._registers.digests(request.filter))
                )
        if back:
            self._trees.send_requests(message.member, back)


def _register(message: TopicMessage, is_at_host: bool) -> RetainedRegister:
    return RetainedRegister(
        message.stamp,
        message.agent,
        message.incarnation,
        message.number,
        message.payload,
        message.qos,
        message.properties,
        payload_digest(message.payload) if is_at_host else b"",
    )


def _message(topic: str, register: RetainedRegister, to: tuple[str, ...], source: str) -> TopicMessage:
    return TopicMessage(
        register.agent,
        register.incarnation,
        register.number,
        0,
        0,
        topic,
        register.payload,
        register.qos,
        True,
        True,
        register.stamp,
        0,
        0,
        register.properties,
        to,
        (source,),
    )
