"""The protocol under faults, by seeds, and its scaling. More seeds: SIM_SEEDS=200, or simulate.py."""

import os
from math import log
from statistics import mean

import pytest

from membership.profiles import LAN, WAN
from tests.membership.scenarios import (
    SWIM,
    chaos,
    detection_s,
    dissemination_s,
    join_s,
    quiet_rate,
    short_pauses,
    slow_members,
    wide_hour,
    wide_network,
)

SEEDS = range(int(os.environ.get("SIM_SEEDS", "6")))


@pytest.mark.parametrize("seed", SEEDS)
def test_swim_members_agree_after_chaos(seed: int) -> None:
    """Kills, restarts, pauses, all kinds of partitions, loss and reordering; then all agree on the live members."""
    chaos(seed)


def test_swim_chaos_with_the_real_cipher() -> None:
    """The same through AES-GCM: only the CPU time differs, and no member's packet is dropped as hostile."""
    simulation = chaos(3, sealed=True)
    for member in simulation.members:
        assert not set(member.envelope.dropped) - {"unknown_sender", "stale_recipient", "replayed"}


def test_swim_run_depends_only_on_its_seed() -> None:
    runs = [[(when, by, type(event)) for when, by, event in chaos(5).events] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_swim_member_paused_for_five_seconds_is_not_dead(seed: int) -> None:
    """LAN profile, 9 members, 1 % loss, SIGSTOP of 5 s."""
    assert short_pauses(seed) == 0


def test_swim_death_is_known_everywhere_within_12_s() -> None:
    """LAN profile, 9 members, also with 5 % loss."""
    found = [detection_s(seed, 9, loss) for seed in SEEDS for loss in (0.0, 0.05)]
    assert max(everywhere for _, everywhere in found) <= 12.0


def test_swim_load_per_member_is_constant() -> None:
    """SWIM section 5: one ping and one ack in each direction per period, whatever N."""
    rates = {members: quiet_rate(1, members, 10)[0] for members in (3, 10, 100)}
    assert all(1.8 <= rate <= 2.3 for rate in rates.values()), rates


def test_swim_dissemination_is_logarithmic() -> None:
    """SWIM section 5: news needs about log N gossip rounds: a hundred members need a few times as long as five."""
    times = {members: mean(dissemination_s(seed, members) for seed in range(2)) for members in (5, 25, 100)}
    per_log = {members: seconds / log(members + 1) for members, seconds in times.items()}
    assert times[100] < 2.5, times
    assert max(per_log.values()) < 3 * min(per_log.values()), times


def test_swim_detection_time_is_independent_of_the_members() -> None:
    """SWIM section 3: the first suspicion comes within some periods for any N; its length grows with log N."""
    assert mean(detection_s(seed, 64)[0] for seed in range(2)) < 20


def test_swim_new_member_is_known_within_two_seconds() -> None:
    """One exchange with a seed, then gossip."""
    assert max(join_s(seed, members) for seed in range(3) for members in (8, 30)) < 2.0


def test_lifeguard_has_several_times_fewer_false_positives() -> None:
    """Lifeguard section V: slow members accuse healthy ones; local health and confirmations prevent most of it."""
    without = sum(slow_members(seed, SWIM, seconds=60).seen for seed in range(2))
    with_lifeguard = sum(slow_members(seed, LAN, seconds=60).seen for seed in range(2))
    assert without >= 20, "the scenario is too mild to show anything"
    assert with_lifeguard * 5 <= without, (with_lifeguard, without)


def test_swim_wan_profile_has_no_false_deaths() -> None:
    """WAN profile, 0.15 to 0.3 s one way, 2 % loss, for a quarter of an hour, with stops of 5 s."""
    assert wide_hour(9, 900.0) == 0
    assert sum(short_pauses(seed, profile=WAN, network=wide_network()) for seed in range(2)) == 0


def test_swim_wan_profile_death_is_known_everywhere_within_30_s() -> None:
    """9 members; with the constants of a LAN each would send more than twice the packets."""
    found = [detection_s(seed, 9, profile=WAN, network=wide_network())[1] for seed in range(4)]
    assert max(found) <= 30.0, found
    lan, wan = (quiet_rate(1, 9, 120, profile, wide_network())[0] for profile in (LAN, WAN))
    assert wan * 2 < lan, (wan, lan)
