"""Scenarios for tests and benchmarks; each is one seed of the simulation and returns plain numbers."""

from dataclasses import dataclass, replace
from math import inf

from membership.events import LeaveRequested, MetadataChanged, NodeLeave, RecordsReceived
from membership.metadata import NodeMetadata
from membership.profiles import LAN, WAN, Profile
from tests.membership.network import Network, Simulation

__all__ = [
    "LIFEGUARD_WITHOUT_PAUSE",
    "SWIM",
    "WAN_DELAY_S",
    "WAN_LOSS",
    "FalsePositives",
    "acquainted",
    "chaos",
    "detection_s",
    "dissemination_s",
    "join_s",
    "quiet_rate",
    "settled",
    "short_pauses",
    "slow_members",
    "wide_hour",
    "wide_network",
]

WAN_DELAY_S = (0.15, 0.3)  # one way: intercontinental, with a busy line
WAN_LOSS = 0.02
SWIM = replace(LAN, name="swim", lifeguard=False)
LIFEGUARD_WITHOUT_PAUSE = replace(LAN, name="lifeguard only", pause_threshold_s=inf)  # Lifeguard as published


def wide_network(loss: float = WAN_LOSS) -> Network:
    """Return the network between sites for the ``wan`` profile."""
    return Network(loss=loss, delay_s=WAN_DELAY_S)


def settled(seed: int, members: int, profile: Profile = LAN, network: Network | None = None) -> Simulation:
    """Return a simulation whose members have known each other for some seconds."""
    simulation = Simulation(seed, members, profile, network, stagger_s=min(0.05, 2 / members))
    simulation.run(2.5)
    assert simulation.run_until_converged(60) < inf, f"seed={seed}: {members} members do not find each other"
    simulation.run(simulation.now + 5 + simulation.rng.random() * 5)
    return simulation


def acquainted(seed: int, members: int, profile: Profile = LAN) -> Simulation:
    """Return a simulation whose members know each other from the start, without pending news and exchanges.

    Discovery needs N times N news items, each sent several times, and full exchanges of N records: minutes of CPU time
    for N = 1 000.
    """
    simulation = Simulation(seed, members, profile, Network(tcp=False), stagger_s=min(0.05, 2 / members))
    simulation.run(2.0)
    everybody = [member.swim.records()[0] for member in simulation.members]
    for member in simulation.members:
        simulation.command(member.number, RecordsReceived(everybody, initiated=True))
        for record in everybody:
            member.swim.news.discard(record.alive.name)
    simulation.run(simulation.now + 5)
    assert simulation.converged, f"seed={seed}: {members} members lost each other"
    return simulation


def quiet_rate(
    seed: int, members: int, seconds: float = 30.0, profile: Profile = LAN, network: Network | None = None
) -> tuple[float, float]:
    """Return the mean and the largest packet rate of a member, per second, in a cluster without changes."""
    simulation = settled(seed, members, profile, network)
    simulation.run(simulation.now + 5)
    before = [member.sent for member in simulation.members]
    simulation.run(simulation.now + seconds)
    rates = [(member.sent - sent) / seconds for member, sent in zip(simulation.members, before, strict=True)]
    return sum(rates) / members, max(rates)


def detection_s(
    seed: int, members: int, loss: float = 0.0, profile: Profile = LAN, network: Network | None = None
) -> tuple[float, float]:
    """Kill a member; return the seconds until the first and until all members know it."""
    simulation = settled(seed, members, profile, network or Network(loss=loss))
    killed_at, victim = simulation.now, seed % members
    simulation.kill(victim)
    first = inf
    while simulation.now < killed_at + 120:
        simulation.run(simulation.now + 0.05)
        states = set(simulation.states_of(victim).values())
        if "dead" in states:
            first = min(first, simulation.now - killed_at)
        if states == {"dead"}:
            return first, simulation.now - killed_at
    return first, inf


def dissemination_s(seed: int, members: int, profile: Profile = LAN, network: Network | None = None) -> float:
    """Change one member's metadata; return the seconds until all know it."""
    simulation = settled(seed, members, profile, network)
    started, number = simulation.now, simulation.rng.randrange(members)
    ours = simulation.members[number].swim.local.metadata
    simulation.command(number, MetadataChanged(NodeMetadata(ours.name, ours.tier, 1, ours.addresses, "zone-b")))
    while simulation.now < started + 60:
        simulation.run(simulation.now + 0.02)
        known = [member.swim.members.get(ours.name) for member in simulation.members if member.number != number]
        if all(each is not None and each.alive.metadata.zone == "zone-b" for each in known):
            return simulation.now - started
    return inf


def join_s(seed: int, members: int, profile: Profile = LAN, network: Network | None = None) -> float:
    """Start one more member; return the seconds until all see all."""
    simulation = settled(seed, members, profile, network)
    started = simulation.now
    simulation.start(members)
    return simulation.run_until_converged(started + 60, step=0.02) - started


def short_pauses(
    seed: int,
    members: int = 9,
    pauses: int = 6,
    seconds: float = 5.0,
    loss: float = 0.01,
    profile: Profile = LAN,
    network: Network | None = None,
) -> int:
    """Stop one member after the other for a while; return the number of false deaths."""
    simulation = settled(seed, members, profile, network or Network(loss=loss))
    for _ in range(pauses):
        simulation.run(simulation.now + simulation.rng.uniform(8, 12))
        simulation.block(simulation.rng.randrange(members), seconds)
    simulation.run(simulation.now + 15)
    return sum(isinstance(event, NodeLeave) for _, _, event in simulation.events)


def wide_hour(members: int, seconds: float = 3600.0) -> int:
    """Run members of distant sites; return the number of false deaths."""
    simulation = settled(1, members, WAN, wide_network())
    simulation.run(simulation.now + seconds)
    return sum(isinstance(event, NodeLeave) for _, _, event in simulation.events)


@dataclass(frozen=True)
class FalsePositives:
    """False deaths of healthy members: observers, and declarations."""

    seen: int  # (observer, healthy member) pairs
    seen_by_healthy: int
    member_seconds: float

    @property
    def per_member_hour(self) -> float:
        """Rate at which some observer sees a healthy member dead."""
        return 3600 * self.seen / self.member_seconds


def slow_members(
    seed: int,
    profile: Profile,
    members: int = 32,
    slow: int = 4,
    stall_s: float = 8.0,
    free_s: float = 0.05,
    seconds: float = 90.0,
) -> FalsePositives:
    """The Lifeguard case: some members' packets are held for seconds, repeatedly, while their timers run.

    Source: Lifeguard (2018) section V, the interval experiment.
    """
    simulation = settled(seed, members, profile)
    started, rng = simulation.now, simulation.rng
    chosen = set(rng.sample(range(members), slow))

    def stall(number: int) -> None:
        held_s = stall_s * rng.uniform(0.5, 1.5)
        simulation.stall(number, held_s)
        simulation.at(simulation.now + held_s + free_s * rng.uniform(0.5, 1.5), stall, number)

    for number in sorted(chosen):
        simulation.at(started + rng.random() * stall_s, stall, number)
    simulation.run(started + seconds)
    deaths = [
        (observer, int(event.member.name[1:]))
        for when, observer, event in simulation.events
        if isinstance(event, NodeLeave) and when > started
    ]
    healthy = [(observer, subject) for observer, subject in deaths if subject not in chosen]
    by_healthy = sum(observer not in chosen for observer, _ in healthy)
    return FalsePositives(len(healthy), by_healthy, seconds * (members - slow))


def chaos(seed: int, *, sealed: bool = False) -> Simulation:
    """Draw a cluster, a network and faults from the seed; heal; check agreement and the invariants.

    Raises:
        AssertionError: An invariant is violated; the text has the seed.
    """
    simulation = Simulation(seed, 3, network=Network(), sealed=sealed)
    rng = simulation.rng
    members = rng.choice((3, 4, 5, 7, 9, 16, 24))
    starts = sorted(rng.uniform(0.2, 3) for _ in range(3, members))
    for number, when in enumerate(starts, 3):
        simulation.at(when, simulation.start, number)
    network = simulation.network
    network.loss = rng.choice((0.0, 0.01, 0.1, 0.3))
    network.duplicate = rng.choice((0.0, 0.1))
    network.reorder = rng.choice((0.0, 0.2))
    network.delay_s = rng.choice(((0.0002, 0.002), (0.01, 0.1), (0.05, 0.3)))
    simulation.run(3)
    incarnations = dict.fromkeys(range(members), 1)
    left: set[int] = set()
    for _ in range(rng.randint(3, 10)):
        _fault(simulation, members, incarnations, left)
        simulation.run(simulation.now + rng.uniform(0.1, 15))
        _check_always(simulation)
    _heal(simulation, incarnations, left)
    limit_s = simulation.now + 240
    while simulation.now < limit_s and not _agree(simulation):
        simulation.run(simulation.now + 0.5)
    assert _agree(simulation), f"seed={seed} sealed={sealed}: members do not agree {_disagreement(simulation)}"
    _check_always(simulation)
    return simulation


def _fault(simulation: Simulation, members: int, incarnations: dict[int, int], left: set[int]) -> None:
    rng = simulation.rng
    number = rng.randrange(members)
    some = set(rng.sample(range(members), rng.randint(1, members - 1)))
    others = set(range(members)) - some
    match rng.randrange(8):
        case 0:
            simulation.kill(number)
        case 1:
            incarnations[number] += 1 << 16
            simulation.start(number, incarnations[number])
        case 2:
            simulation.block(number, rng.uniform(0.1, 40))
        case 3:
            simulation.stall(number, rng.uniform(0.1, 10))
        case 4:
            simulation.cut(some, others, both_ways=rng.random() < 0.5)
        case 5:  # a partial partition: some pairs are cut, no member is isolated
            simulation.cut({number}, {(number + 1) % members, (number + 2) % members} - {number})
        case 6:
            simulation.heal()
        case 7 if simulation.members[number].running and len(left) < members - 2:
            left.add(number)
            simulation.command(number, LeaveRequested())


def _heal(simulation: Simulation, incarnations: dict[int, int], left: set[int]) -> None:
    simulation.heal()
    simulation.network.loss = min(simulation.network.loss, 0.01)
    for member in list(simulation.members):
        if member.swim.local.silent or member.number in left:
            simulation.kill(member.number)
    if not any(simulation.members[number].running for number in range(3)):
        incarnations[0] += 1 << 16
        simulation.start(0, incarnations[0])  # a seed, so that the halves can find each other
    simulation.run(simulation.now + 45)  # blocked members wake


def _agree(simulation: Simulation) -> bool:
    if not simulation.converged:
        return False
    own = {member.name: member.swim.local for member in simulation.members if member.running}
    for member in simulation.members:
        if member.running:
            for view in member.swim.views():
                if view.name in own and view.metadata != own[view.name].metadata:
                    return False
    return True


def _disagreement(simulation: Simulation) -> dict[str, dict[str, str]]:
    running = [member for member in simulation.members if member.running]
    return {member.name: {view.name: view.state for view in member.swim.views()} for member in running}


def _check_always(simulation: Simulation) -> None:
    """Check that no incarnation exceeds its member's own, and that all tables keep their bounds."""
    own = {member.swim.local.session: member.swim.local for member in simulation.members}
    for member in simulation.members:
        swim = member.swim
        for view in swim.views():
            known = swim.members.get(view.name)
            local = own.get(known.session) if known else None
            if known is not None and local is not None:
                assert known.incarnation <= local.incarnation, f"seed={simulation.seed}: {view} above its own"
        assert len(swim.news) <= len(swim.members) + 1, f"seed={simulation.seed}"
