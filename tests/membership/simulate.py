"""Many seeds of the membership simulation, and measurements against N.

    python -m tests.membership.simulate --seeds 200 [--first 0] [--figures]

Every seed runs the chaos scenario and the short pauses. A violated invariant ends the run with status 1 and the seed,
which then becomes a test. ``--figures`` prints only the tables (``bench/swim.py`` does the same).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from math import ceil, log10

from membership.profiles import LAN, WAN
from tests.membership.scenarios import (
    LIFEGUARD_WITHOUT_PAUSE,
    SWIM,
    WAN_DELAY_S,
    WAN_LOSS,
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

SIZES = (3, 5, 9, 16, 32, 64, 100)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, ceil(share * len(values)) - 1)]


def print_figures(seeds: int) -> None:
    """Print load, dissemination, joining and detection against N, and false positives with and without Lifeguard."""
    print("LAN profile, virtual clock, no loss; times in seconds; log = log10(N + 1)")
    print("    N   log  packets/member/s  known by all  joined  dead everywhere P50    P99  kills  plain SWIM P50")
    for members in SIZES:
        runs = range(max(3, min(seeds, 600 // members)))
        mean_rate, _ = quiet_rate(1, members)
        told = [dissemination_s(seed, members) for seed in runs[:4]]
        joined = [join_s(seed, members) for seed in runs[:4]]
        found = [detection_s(seed, members)[1] for seed in runs]
        plain = [detection_s(seed, members, profile=SWIM)[1] for seed in runs[:10]]
        print(
            f"{members:5d}  {log10(members + 1):4.2f}  {mean_rate:16.2f}  {sum(told) / len(told):12.2f}"
            f"  {max(joined):6.2f}  {_quantile(found, 0.5):19.2f}  {_quantile(found, 0.99):5.2f}  {len(found):5d}"
            f"  {_quantile(plain, 0.5):14.2f}",
            flush=True,
        )
    runs = range(max(20, min(seeds, 400)))
    lossy = [detection_s(seed, 9, 0.05)[1] for seed in runs]
    print(
        f"9 members, 5 % loss, {len(runs)} kills: dead everywhere P50 {_quantile(lossy, 0.5):.2f}, "
        f"P99 {_quantile(lossy, 0.99):.2f}"
    )
    _print_wide(seeds)
    _print_false_positives(max(2, min(seeds // 10, 10)))


def _print_wide(seeds: int) -> None:
    """Print the same measurements for the profile of distant sites, over its network."""
    print(f"\nWAN profile, {WAN_DELAY_S[0]} to {WAN_DELAY_S[1]} s one way, {WAN_LOSS:.0%} loss")
    print(
        "    N  packets/member/s  known by all  joined  dead everywhere P50    P99  kills  deaths of live ones in 1 h"
    )
    for members in (3, 9, 32):
        runs = range(max(3, min(seeds, 300 // members)))
        rate, _ = quiet_rate(1, members, profile=WAN, network=wide_network())
        told = [dissemination_s(seed, members, WAN, wide_network()) for seed in runs[:4]]
        joined = [join_s(seed, members, WAN, wide_network()) for seed in runs[:4]]
        found = [detection_s(seed, members, profile=WAN, network=wide_network())[1] for seed in runs]
        alive = wide_hour(members)
        print(
            f"{members:5d}  {rate:16.2f}  {max(told):12.2f}  {max(joined):6.2f}  {_quantile(found, 0.5):19.2f}"
            f"  {_quantile(found, 0.99):5.2f}  {len(found):5d}  {alive:27d}",
            flush=True,
        )


def _print_false_positives(seeds: int) -> None:
    print("\nHealthy members seen dead, per healthy member and hour, while packets of some are held again and again")
    print("    N  slow  held s      SWIM  Lifeguard  Lifeguard and pause notice")
    rows = ((16, 2, 8.0), (32, 4, 8.0), (64, 8, 8.0), (100, 12, 8.0), (32, 4, 4.0), (32, 4, 16.0), (32, 8, 16.0))
    for members, slow, stall_s in rows:
        rates = []
        for profile in (SWIM, LIFEGUARD_WITHOUT_PAUSE, LAN):
            found = [slow_members(seed, profile, members, slow, stall_s) for seed in range(seeds)]
            rates.append(sum(each.per_member_hour for each in found) / seeds)
        print(f"{members:5d}  {slow:4d}  {stall_s:6.1f}  {rates[0]:8.2f}  {rates[1]:9.2f}  {rates[2]:9.2f}", flush=True)


def run_seeds(first: int, seeds: int) -> bool:
    """Check the invariants on many seeds; return whether all held."""
    started, failed, false_deaths = time.monotonic(), 0, 0
    for seed in range(first, first + seeds):
        try:
            chaos(seed, sealed=seed % 10 == 0)
        except AssertionError as error:
            failed += 1
            print(f"FAILED seed {seed} (python {sys.version.split()[0]}): {error}", flush=True)
        false_deaths += (dead := short_pauses(seed)) > 0
        if dead:
            print(f"FAILED seed {seed}: a member paused for 5 s was declared dead")
    print(
        f"membership: {seeds} seeds, {failed} broken invariants, {false_deaths} seeds with a false death in "
        f"{6 * seeds} pauses of 5 s, {time.monotonic() - started:.0f} s"
    )
    return not failed and not false_deaths


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    if options.figures:
        print_figures(options.seeds)
        return 0
    return 0 if run_seeds(options.first, options.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
