"""The protocol under faults, from seeds, and the shape of its figures. More seeds: SIM_SEEDS=200, or simulate.py."""

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
def test_members_agree_after_chaos(seed: int) -> None:
    """Kills, restarts, pauses, partitions of every kind, loss and reordering; then all agree on who is alive."""
    chaos(seed)


def test_chaos_with_the_real_cipher() -> None:
    """The same through AES-GCM: sealing changes nothing but time, and no packet of a member is dropped as hostile."""
    simulation = chaos(3, sealed=True)
    for member in simulation.members:
        assert not set(member.envelope.dropped) - {"unknown_sender", "stale_recipient", "replayed"}


def test_same_seed_same_run() -> None:
    """A run depends on its seed alone."""
    runs = [[(when, by, type(event)) for when, by, event in chaos(5).events] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_paused_five_seconds_is_not_dead(seed: int) -> None:
    """LAN profile, 9 members, 1 % loss: a member stopped for 5 s is never declared dead."""
    assert short_pauses(seed) == 0


def test_death_is_known_everywhere_within_12_s() -> None:
    """LAN profile, 9 members: also with 5 % loss."""
    found = [detection_s(seed, 9, loss) for seed in SEEDS for loss in (0.0, 0.05)]
    assert max(everywhere for _, everywhere in found) <= 12.0


def test_load_per_member_is_constant() -> None:
    """SWIM section 5: packets per member and second do not grow with N: one ping and one ack each way per period."""
    rates = {members: quiet_rate(1, members, 10)[0] for members in (3, 10, 100)}
    assert all(1.8 <= rate <= 2.3 for rate in rates.values()), rates


def test_dissemination_grows_as_the_logarithm() -> None:
    """SWIM section 5: news needs about log N gossip rounds: a hundred members need a few times what five need."""
    times = {members: mean(dissemination_s(seed, members) for seed in range(2)) for members in (5, 25, 100)}
    per_log = {members: seconds / log(members + 1) for members, seconds in times.items()}
    assert times[100] < 2.5, times
    assert max(per_log.values()) < 3 * min(per_log.values()), times


def test_detection_does_not_wait_for_the_members_to_take_turns() -> None:
    """SWIM section 3: the first suspicion comes within some periods whatever N; only its length grows, with log N."""
    assert mean(detection_s(seed, 64)[0] for seed in range(2)) < 20


def test_newcomer_is_known_within_two_seconds() -> None:
    """One exchange with a seed, then gossip."""
    assert max(join_s(seed, members) for seed in range(3) for members in (8, 30)) < 2.0


def test_lifeguard_has_several_times_fewer_false_positives() -> None:
    """Lifeguard section V: slow members accuse healthy ones; local health and confirmations stop most of it."""
    without = sum(slow_members(seed, SWIM, seconds=60).seen for seed in range(2))
    with_lifeguard = sum(slow_members(seed, LAN, seconds=60).seen for seed in range(2))
    assert without >= 20, "the scenario is too mild to show anything"
    assert with_lifeguard * 5 <= without, (with_lifeguard, without)


def test_far_sites_do_not_take_each_other_for_dead() -> None:
    """WAN profile, 0.15 to 0.3 s one way, 2 % loss: a quarter of an hour, and stops of 5 s, without a false death."""
    assert wide_hour(9, 900.0) == 0
    assert sum(short_pauses(seed, profile=WAN, network=wide_network()) for seed in range(2)) == 0


def test_a_death_between_far_sites_is_known_everywhere_within_30_s() -> None:
    """WAN profile, 9 members; with the constants of a LAN each sends more than twice the packets there."""
    found = [detection_s(seed, 9, profile=WAN, network=wide_network())[1] for seed in range(4)]
    assert max(found) <= 30.0, found
    lan, wan = (quiet_rate(1, 9, 120, profile, wide_network())[0] for profile in (LAN, WAN))
    assert wan * 2 < lan, (wan, lan)
