"""Direct probes, indirect probes through relays, and serving as a relay.

One round per protocol period: ping the next member; without an ack in time use relays. At the end of the round, acks
decide about the member and the relays' nacks about the local health. Pure logic; ``member_states.py`` decides the
effect of a missed round. Source: SWIM (2002) section 3.1; nacks and the health multiplier from Lifeguard (2018) section
IV.A.
"""

from dataclasses import dataclass, field

from membership.local_health import LocalHealth
from membership.member_states import LocalMember, MemberStates
from membership.members import Member, Members
from membership.outbox import GossipOutbox
from membership.packets import Ack, Nack, Ping, PingReq, Suspect
from membership.profiles import Profile
from membership.timers import Timers

__all__ = ["Probing"]

RELAYS_MAX = 256  # concurrent probes for other members; beyond it requests are dropped and counted


@dataclass(slots=True)
class _Round:
    """The probe of this protocol period."""

    target: str
    session: int
    sequence: int
    relays: set[str] = field(default_factory=set)
    nacks: set[str] = field(default_factory=set)
    acked: bool = False


@dataclass(frozen=True, slots=True)
class _Relay:
    """A probe for another member."""

    prober: str
    sequence: int  # the prober's
    target: str


class Probing:
    """The probe of this period, and the probes for other members."""

    def __init__(
        self,
        profile: Profile,
        local: LocalMember,
        members: Members,
        health: LocalHealth,
        timers: Timers,
        outbox: GossipOutbox,
        states: MemberStates,
    ) -> None:
        self._profile = profile
        self._local = local
        self._members = members
        self._health = health
        self._timers = timers
        self._outbox = outbox
        self._states = states
        self._sequence = 0
        self._round: _Round | None = None
        self._relays: dict[int, _Relay] = {}

    def start(self, now: float, delay_s: float) -> None:
        """Start the first round after a delay, unless rounds are running."""
        if ("round", 0) not in self._timers:
            self._timers.set(("round", 0), self._round_at(now + delay_s))

    def _round_at(self, when: float) -> float:
        """Return the start of a round, given its approximate time."""
        period_s, shift_s = self._profile.protocol_period_s, self._profile.phase * self._profile.protocol_period_s
        return round((when - shift_s) / period_s) * period_s + shift_s if self._profile.aligned else when

    def round_ended(self, now: float) -> None:
        """Evaluate the last probe, then start the next one."""
        self._evaluate(now)
        multiplier = self._health.local_health_multiplier
        self._timers.set(("round", 0), self._round_at(now + self._profile.protocol_period_s * multiplier))
        target = self._members.next_to_probe()
        if target is None:
            return
        self._round = _Round(target.name, target.session, self._next_sequence())
        self._timers.set(("direct", 0), now + self._profile.probe_timeout_s * multiplier)
        self._outbox.send(target, Ping(self._round.sequence, target.name))

    def _evaluate(self, now: float) -> None:
        probe, self._round = self._round, None
        self._timers.cancel(("direct", 0))
        if probe is None or probe.acked:
            return
        member = self._members.get(probe.target)
        if member is None or not member.live or member.session != probe.session:
            return  # its state or process changed meanwhile
        self._outbox.counters["probes_failed"] += 1
        self._health.probe_failed(len(probe.relays), len(probe.nacks))
        self._states.suspect(now, Suspect(member.name, member.incarnation, self._local.name))

    def direct_timeout(self) -> None:
        """Send the probe to relays, because the target sent no ack."""
        probe = self._round
        if probe is None or probe.acked:
            return
        relays = self._members.sample(self._profile.indirect_probes, but=probe.target, unsuspected=True)
        for relay in relays:
            probe.relays.add(relay.name)
            self._outbox.send(relay, PingReq(probe.sequence, probe.target))

    def ping(self, sender: Member, message: Ping) -> None:
        """Answer a probe of another member."""
        if message.target == self._local.name:
            self._outbox.send(sender, Ack(message.sequence))
        else:
            self._outbox.counters["misdirected_ping"] += 1

    def ping_req(self, now: float, sender: Member, message: PingReq) -> None:
        """Probe a member on request of another one."""
        target = self._members.get(message.target)
        if target is None or len(self._relays) >= RELAYS_MAX:
            self._outbox.counters["relay_refused"] += 1
            if self._profile.lifeguard:
                self._outbox.send(sender, Nack(message.sequence))
            return
        sequence = self._next_sequence()
        self._relays[sequence] = _Relay(sender.name, message.sequence, target.name)
        timeout_s = self._profile.probe_timeout_s
        if self._profile.lifeguard:
            self._timers.set(("nack", sequence), now + timeout_s * self._profile.nack_fraction)
        # A late ack is still useful to a prober with a long round due to its own health.
        longest = self._profile.protocol_period_s * (self._profile.local_health_max + 1)
        self._timers.set(("relay", sequence), now + longest)
        self._outbox.send(target, Ping(sequence, target.name))

    def relay_nack(self, sequence: int) -> None:
        """Send a nack: the probed member sent no ack in time, but this relay is reachable."""
        relay = self._relays.get(sequence)
        prober = self._members.get(relay.prober) if relay else None
        if relay is not None and prober is not None:
            self._outbox.send(prober, Nack(relay.sequence))

    def relay_ended(self, sequence: int) -> None:
        """Stop waiting for an ack for another member."""
        self._relays.pop(sequence, None)
        self._timers.cancel(("nack", sequence))

    def ack(self, sender: Member, message: Ack) -> None:
        """Process an ack of the local round (perhaps through a relay) or of a probe for another member."""
        probe, relay = self._round, self._relays.get(message.sequence)
        if probe is not None and message.sequence == probe.sequence:
            if not probe.acked and (sender.name == probe.target or sender.name in probe.relays):
                probe.acked = True
                self._timers.cancel(("direct", 0))
                self._health.probe_succeeded()
        elif relay is not None and sender.name == relay.target:
            self.relay_ended(message.sequence)
            self._timers.cancel(("relay", message.sequence))
            prober = self._members.get(relay.prober)
            if prober is not None:
                self._outbox.send(prober, Ack(relay.sequence))

    def nack(self, sender: Member, message: Nack) -> None:
        """Process a nack: the relay is reachable, its target did not answer."""
        probe = self._round
        if probe is not None and message.sequence == probe.sequence and sender.name in probe.relays:
            probe.nacks.add(sender.name)

    def abandon(self) -> None:
        """Abandon the round after a pause of this process: it proves no fault of its target."""
        if self._round is not None:
            self._round.acked = True
            self._timers.cancel(("direct", 0))

    def _next_sequence(self) -> int:
        self._sequence = self._sequence % (2**32 - 1) + 1
        return self._sequence
