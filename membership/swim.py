"""The SWIM core: one member's membership protocol, without sockets, clocks or random sources.

``Swim.handle(now, event) -> SwimReady`` is the only entry point. This module schedules rounds, dedicated gossip, full
exchanges, reconnection, removal and leaving. ``probing.py`` has the probe, ``member_states.py`` the rules for a
member's state, ``outbox.py`` the piggybacked news. Gossip decides neither placement nor leadership
(``docs/membership.md``). Sources: SWIM (Das, Gupta, Motivala, 2002); Lifeguard (Dadgar, Phillips, Currey, 2018).
"""

from collections import Counter
from random import Random

from membership.dissemination import Dissemination
from membership.events import (
    ExchangeFailed,
    Input,
    LeaveCompleted,
    LeaveRequested,
    MessagesReceived,
    MetadataChanged,
    RecordsReceived,
    SeedsResolved,
    SwimReady,
    SwimTick,
)
from membership.local_health import LocalHealth
from membership.member_states import LocalMember, MemberStates, view
from membership.members import Member, Members, MemberView
from membership.metadata import NodeMetadata, encode_metadata
from membership.outbox import GossipOutbox
from membership.packets import (
    Ack,
    Address,
    Alive,
    Dead,
    MemberRecord,
    Message,
    Nack,
    Ping,
    PingReq,
    Suspect,
    encode_message,
)
from membership.probing import Probing
from membership.profiles import Profile
from membership.timers import Timers

__all__ = ["Swim"]

JOIN_FANOUT = 3  # seeds contacted at a time
JOIN_RETRY_S = 0.5  # first pause between attempts to join; doubled up to JOIN_RETRY_MAX_S
JOIN_RETRY_MAX_S = 2.0


class Swim:
    """One member's view of the cluster."""

    def __init__(
        self,
        metadata: NodeMetadata,
        address: Address,
        session: int,
        incarnation: int,
        profile: Profile,
        rng: Random,
        now: float,
    ) -> None:
        """Start without other members.

        Args:
            metadata: The local metadata; its name is the local name.
            address: Address of the local gossip for other members.
            session: Unpredictable and new for each start of the process, 63 bits.
            incarnation: First SWIM incarnation; exceeding that of the former process saves one refutation.
            profile: The constants.
            rng: Source of all random choices.
            now: Seconds on the clock of every later ``now``.
        """
        encode_metadata(metadata)
        self._profile = profile
        self._rng = rng
        self._local = LocalMember(metadata, address, session, incarnation, now)
        self.members = Members(rng)
        self.news = Dissemination()
        self.health = LocalHealth(profile.local_health_max, enabled=profile.lifeguard)
        self._timers = Timers()
        self._outbox = GossipOutbox(profile, self.members, self.news, metadata.name)
        parts = (self.health, self._timers, self._outbox)
        self._states = MemberStates(profile, self._local, self.members, self.news, *parts)
        self._probing = Probing(profile, self._local, self.members, *parts, self._states)
        self._seeds: tuple[Address, ...] = ()
        self._join_retry_s = JOIN_RETRY_S
        self._pending_metadata: NodeMetadata | None = None
        self._leave_by = 0.0
        self._push_pull_s = profile.push_pull_interval_s
        self._timers.set(("reconnect", 0), profile.rare_at(now + self._jitter(profile.reconnect_interval_s)))
        self._timers.set(("push_pull", 0), profile.rare_at(now + self._jitter(profile.push_pull_interval_s)))
        self._timers.set(("forget", 0), profile.rare_at(now + profile.dead_retention_s / 10))

    @property
    def local(self) -> LocalMember:
        """The local member."""
        return self._local

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events so far, by name."""
        return dict(self._outbox.counters)

    def views(self) -> list[MemberView]:
        """All members including the local one, sorted by name."""
        views = [view(member) for member in self.members.all()]
        return sorted([*views, self._local.view()], key=lambda each: each.name)

    def states(self) -> Counter[str]:
        """Number of members in each state, including the local one."""
        return Counter([member.state for member in self.members.all()] + [self._local.view().state])

    def records(self) -> list[MemberRecord]:
        """The local half of a full exchange, the local member first."""
        rows = [MemberRecord("left" if self._local.leaving else "alive", self._local.alive)]
        for member in self.members.all():
            said = member.alive
            if said.incarnation != member.incarnation:  # suspected with a higher incarnation than its last message
                said = Alive(member.incarnation, said.session, said.host, said.port, said.metadata)
            rows.append(MemberRecord(member.state, said))
        return rows

    def handle(self, now: float, event: Input) -> SwimReady:
        """Process one event and return the effects.

        Timers fire only on ``SwimTick``, so that packets in a socket buffer are processed before timeouts.
        """
        if self._local.silent:
            return SwimReady()
        self._notice_pause(now)
        match event:
            case MessagesReceived():
                self._messages_received(now, event)
            case SwimTick():
                self._fire_timers(now)
            case RecordsReceived():
                self._records_received(now, event)
            case SeedsResolved():
                self._seeds = event.addresses
                if not self._local.joined and ("join", 0) not in self._timers:
                    self._join(now)
            case ExchangeFailed():
                self._outbox.counters["exchanges_failed"] += 1
            case MetadataChanged():
                self._metadata_changed(now, event.metadata)
            case LeaveRequested():
                self._leave(now)
        return self._ready(now)

    def _ready(self, now: float) -> SwimReady:
        if self.news and not self._local.silent and ("gossip", 0) not in self._timers:
            self._timers.set(("gossip", 0), now + self._jitter(self._profile.gossip_interval_s))
        return self._outbox.flush(self._timers.next_deadline)

    def _notice_pause(self, now: float) -> None:
        """Detect a pause of this process (stopped, swapped, starved of CPU time) by a far overdue timer.

        No messages were received in that time, so all deadlines move.
        """
        late_s = now - self._timers.next_deadline
        if not self._profile.lifeguard or late_s <= self._profile.pause_threshold_s:
            return
        self._outbox.counters["pauses"] += 1
        self.health.paused()
        self._timers.shift(late_s)
        self._states.shift(late_s)
        self._probing.abandon()

    def _messages_received(self, now: float, event: MessagesReceived) -> None:
        for message in event.messages:
            # Looked up each time: an earlier message may have replaced or removed the sender's process.
            sender = self.members.by_session(event.sender_session)
            if sender is None or self._local.silent:
                return
            self._message(now, sender, message)

    def _message(self, now: float, sender: Member, message: Message) -> None:
        match message:
            case Ping():
                self._probing.ping(sender, message)
            case Ack():
                self._probing.ack(sender, message)
            case Nack():
                self._probing.nack(sender, message)
            case PingReq():
                self._probing.ping_req(now, sender, message)
            case Alive():
                self._states.alive(now, message)
            case Suspect():
                self._answer_stale(sender, message)
                self._states.suspect(now, message)
            case Dead():
                self._answer_stale(sender, message)
                self._states.dead(now, message)

    def _answer_stale(self, sender: Member, accusation: Suspect | Dead) -> None:
        """Send the refutation directly to an accuser that missed it, because its dissemination has ended."""
        local = self._local
        ours = accusation.name == local.name and accusation.incarnation < local.incarnation
        if ours and accusation.accuser in (sender.name, local.name) and not local.leaving:
            self._outbox.send(sender, local.alive)

    def _fire_timers(self, now: float) -> None:
        while not self._local.silent and (key := self._timers.pop_due(now)) is not None:
            self._fire(now, *key)

    def _fire(self, now: float, kind: str, which: str | int) -> None:
        match kind, which:
            case "round", _:
                self._probing.round_ended(now)
            case "direct", _:
                self._probing.direct_timeout()
            case "nack", int(sequence):
                self._probing.relay_nack(sequence)
            case "relay", int(sequence):
                self._probing.relay_ended(sequence)
            case "suspicion", str(name):
                self._states.suspicion_expired(now, name)
            case "gossip", _:
                self._gossip(now)
            case "join", _:
                self._join(now)
            case "push_pull", _:
                self._push_pull(now)
            case "reconnect", _:
                self._reconnect(now)
            case "metadata", _:
                self._publish_metadata()
            case "forget", _:
                self._forget(now)
            case _:
                raise AssertionError(f"unknown timer {kind} {which}")

    def _gossip(self, now: float) -> None:
        for member in self.members.next_to_gossip(self._profile.gossip_fanout):
            self._outbox.gossip(member)
        if not self.members.live:
            self.news.discard(self._local.name)  # no receiver; later members learn it by a full exchange
        announced = self._local.name not in self.news
        if self._local.leaving and (announced or now >= self._leave_by):
            self._local.silent = True
            self._timers.clear()
            self._outbox.tell(LeaveCompleted())
        elif self.news and self.members.live:
            self._timers.set(("gossip", 0), now + self._profile.gossip_interval_s)

    def _join(self, now: float) -> None:
        """Request the cluster's state from some seeds, repeatedly until one answers."""
        if self._local.joined:
            return
        seeds = self._unknown_seeds()
        for address in self._rng.sample(seeds, min(JOIN_FANOUT, len(seeds))):
            self._outbox.exchange(address)
        if seeds:
            self._timers.set(("join", 0), now + self._join_retry_s * (0.75 + self._rng.random() / 2))
            self._join_retry_s = min(JOIN_RETRY_MAX_S, 2 * self._join_retry_s)

    def _push_pull(self, now: float) -> None:
        for member in self.members.sample(1):
            self._outbox.exchange(member.address)
        settled_s = self._profile.push_pull_s(self.members.live_count)
        period_s = self._push_pull_s = min(settled_s, 2 * self._push_pull_s)
        self._timers.set(("push_pull", 0), self._profile.rare_at(now + self._jitter(period_s) + period_s / 2))

    def _reconnect(self, now: float) -> None:
        """Try one address of a dead or unknown member: it may be the other half of a healed partition."""
        dead = [member.address for member in self.members.all() if member.state == "dead"]
        candidates = sorted({*dead, *self._unknown_seeds()})
        if candidates and self._local.joined:
            self._outbox.exchange(self._rng.choice(candidates))
        period_s = self._profile.reconnect_interval_s
        self._timers.set(("reconnect", 0), self._profile.rare_at(now + self._jitter(period_s) + period_s / 2))

    def _unknown_seeds(self) -> list[Address]:
        """Return seeds whose address is not that of a live member, nor the local one."""
        known = {member.address for member in self.members.live} | {self._local.address}
        return [address for address in self._seeds if address not in known]

    def _records_received(self, now: float, event: RecordsReceived) -> None:
        for record in event.records:
            self._states.merge(now, record)
        others = any(record.alive.name != self._local.name for record in event.records)
        if others and not self._local.silent:
            if not self._local.joined:
                self._timers.cancel(("join", 0))
                self._local.joined = True
                self._push_pull_s = self._profile.protocol_period_s
                self._timers.set(("push_pull", 0), now + self._push_pull_s * (0.5 + self._rng.random()))
            # Delayed: the others must first learn the local session, otherwise they drop the first pings.
            self._probing.start(now, self._profile.protocol_period_s * (1 + self._rng.random()))

    def _metadata_changed(self, now: float, metadata: NodeMetadata) -> None:
        if metadata.name != self._local.name:
            raise ValueError("a member cannot change its name")
        encode_metadata(metadata)
        self._pending_metadata = metadata
        if ("metadata", 0) not in self._timers:
            self._publish_metadata()
            self._timers.set(("metadata", 0), now + self._profile.metadata_interval_s)

    def _publish_metadata(self) -> None:
        metadata, self._pending_metadata = self._pending_metadata, None
        if metadata is None or metadata == self._local.metadata or self._local.leaving:
            return
        if not self._local.raise_incarnation(0):
            return
        self._local.metadata = metadata
        self.news.add(self._local.name, encode_message(self._local.alive))

    def _leave(self, now: float) -> None:
        if self._local.leaving:
            return
        self._local.leaving = True
        self._leave_by = now + self._profile.leave_timeout_s
        goodbye = Dead(self._local.name, self._local.incarnation, self._local.name)
        self.news.add(self._local.name, encode_message(goodbye))
        self._timers.set(("gossip", 0), now)

    def _forget(self, now: float) -> None:
        for member in self.members.all():
            if not member.live and now - member.since >= self._profile.dead_retention_s:
                self.members.remove(member)
                self.news.discard(member.name)
        self._timers.set(("forget", 0), self._profile.rare_at(now + self._profile.dead_retention_s / 10))

    def _jitter(self, period_s: float) -> float:
        return period_s * self._rng.random()
