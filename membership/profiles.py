"""The constants of gossip: ``LAN`` for a cluster in one site, ``LOCAL`` for one machine, ``WAN`` between sites.

Defines probe intervals, suspicion times and the repetition of news. An operator picks a profile by name; the constants
are not configurable one by one. Sources: SWIM (Das, Gupta, Motivala, 2002) sections 3 and 4; Lifeguard (Dadgar,
Phillips, Currey, 2018), whose defaults are the starting point. Where ours differ, the field gives the reason.
"""

from dataclasses import dataclass
from math import ceil, log10

__all__ = ["LAN", "LOCAL", "PROFILES", "WAN", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One set of constants. Seconds unless the name has another unit; N counts the live members with the local one."""

    name: str
    protocol_period_s: float
    """Time from one direct probe to the next, times (local health score + 1). Lower finds a death sooner; packets per
    member and second grow as 1 / period and do not depend on N. 1 s on one machine too, as memberlist has it: leases
    decide whether a node may serve, and probes are a large part of the work of an idle cluster."""
    probe_timeout_s: float
    """Wait for a direct ack before relays are asked, times (score + 1). Lower asks relays for slow links too."""
    indirect_probes: int
    """Relays asked after a missed direct ack. More costs packets, fewer costs false suspicion: with packet loss p,
    about p ** (2 * indirect_probes) of the missed probes of a live member stay unanswered."""
    nack_fraction: float
    """A relay sends a nack after this part of the probe timeout (Lifeguard: 0.8), so that the nack
    arrives before the round ends."""
    suspicion_multiplier: float
    """Suspicion lasts at least multiplier * max(1, log10 N) * protocol_period_s. 6 on the LAN, not 4: a member stopped
    for 5 s must wake, receive the suspicion and refute it before that time expires."""
    suspicion_max_multiplier: float
    """An unconfirmed suspicion lasts this many times the minimum (Lifeguard: beta = 6)."""
    suspicion_confirmations: int
    """Independent suspicions that bring the time down to the minimum (Lifeguard: k = 3)."""
    gossip_interval_s: float
    """Time between two sends of dedicated gossip; none is sent without news."""
    gossip_fanout: int
    """Members each dedicated gossip goes to. News reaches all in about log N / log(fanout + 1) intervals."""
    retransmit_multiplier: int
    """lambda: each piece of news is sent ceil(lambda * log10(N + 1)) times by each member (SWIM section 4.1). A member
    misses all of it with probability of about exp(-lambda) among 9: 4, a usual value, leaves 2 %, so ours is 8."""
    push_pull_interval_s: float
    """Time between two full exchanges over TCP; doubled each time N doubles beyond 32. After joining it starts at the
    protocol period and doubles up to this value, because members that join together miss some of each other's news."""
    reconnect_interval_s: float
    """Time between two attempts to reach one dead member or one unknown seed: this heals partitions."""
    dead_retention_s: float
    """Retention of a dead or left member, during which it can return by one refutation."""
    local_health_max: int
    """Ceiling of the local health score S: periods and timeouts grow up to (S + 1)-fold (Lifeguard: S = 8)."""
    pause_threshold_s: float
    """A timer that fires later than this was a pause of our own process: deadlines move by the pause."""
    metadata_interval_s: float
    """At most one change of the local metadata is sent per interval; the newest wins. Load changes constantly, and N
    members that send it cost each member N * lambda * log10(N + 1) messages per interval."""
    leave_timeout_s: float
    """A graceful leave waits this long for its own news to be sent."""
    exchange_timeout_s: float
    """Bound of each step of a TCP exchange (connect, frame)."""
    aligned: bool = False
    """Rounds start at multiples of the period on the clock, ``phase`` of a period later, and rarer tasks wait for one:
    they share the process's wake-ups. On many machines all members would probe at once."""
    phase: float = 0.0
    """Of an aligned member, below 1: members of one machine have different ones and do not delay each other."""
    lifeguard: bool = True
    """False is plain SWIM: fixed suspicion, no nacks, no local health. Only to measure the difference."""

    def suspicion_min_s(self, members: int) -> float:
        """Return the shortest suspicion among ``members`` live members."""
        return self.suspicion_multiplier * max(1.0, log10(max(1, members))) * self.protocol_period_s

    def rare_at(self, when: float) -> float:
        """Return the aligned time of an event that is rarer than rounds, given its due time."""
        if not self.aligned:
            return when
        shift_s = self.phase * self.protocol_period_s
        return ceil((when - shift_s) / self.protocol_period_s) * self.protocol_period_s + shift_s

    def retransmit_limit(self, members: int) -> int:
        """Return the number of transmissions of one news item: ceil(lambda * log10(N + 1)), at least 1."""
        return max(1, ceil(self.retransmit_multiplier * log10(members + 1)))

    def push_pull_s(self, members: int) -> float:
        """Return the time between full exchanges, which grows with N so that the cluster's total traffic does not."""
        scale = 1
        while members > 32 * scale:
            scale *= 2
        return self.push_pull_interval_s * scale


LAN = Profile(
    name="lan",
    protocol_period_s=1.0,
    probe_timeout_s=0.5,
    indirect_probes=3,
    nack_fraction=0.8,
    suspicion_multiplier=6.0,
    suspicion_max_multiplier=6.0,
    suspicion_confirmations=3,
    gossip_interval_s=0.2,
    gossip_fanout=3,
    retransmit_multiplier=8,
    push_pull_interval_s=30.0,
    reconnect_interval_s=10.0,
    dead_retention_s=600.0,
    local_health_max=8,
    pause_threshold_s=0.4,
    metadata_interval_s=1.0,
    leave_timeout_s=3.0,
    exchange_timeout_s=5.0,
)

LOCAL = Profile(
    name="local",
    protocol_period_s=1.0,
    probe_timeout_s=0.2,
    indirect_probes=3,
    nack_fraction=0.8,
    suspicion_multiplier=2.0,
    suspicion_max_multiplier=6.0,
    suspicion_confirmations=3,
    gossip_interval_s=0.1,
    gossip_fanout=3,
    retransmit_multiplier=8,
    push_pull_interval_s=10.0,
    reconnect_interval_s=3.0,
    dead_retention_s=120.0,
    local_health_max=8,
    pause_threshold_s=0.3,
    metadata_interval_s=1.0,
    leave_timeout_s=1.0,
    exchange_timeout_s=3.0,
    aligned=True,
)

# A nack travels twice 0.3 s, waits the relay's 0.96 s and must come before the round ends: so 3 s, and 5 of them for
# a suspicion, 15 s. With rounds of 2 s a loss of 2 % made live members suspect each other repeatedly.
WAN = Profile(
    name="wan",
    protocol_period_s=3.0,
    probe_timeout_s=1.2,
    indirect_probes=3,
    nack_fraction=0.8,
    suspicion_multiplier=5.0,
    suspicion_max_multiplier=6.0,
    suspicion_confirmations=3,
    gossip_interval_s=0.5,
    gossip_fanout=4,
    retransmit_multiplier=8,
    push_pull_interval_s=60.0,
    reconnect_interval_s=20.0,
    dead_retention_s=1800.0,
    local_health_max=8,
    pause_threshold_s=0.6,
    metadata_interval_s=10.0,
    leave_timeout_s=6.0,
    exchange_timeout_s=15.0,
)

PROFILES = {profile.name: profile for profile in (LAN, LOCAL, WAN)}
