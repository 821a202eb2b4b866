"""``python -m tests.router.raft.simulate``: run many seeds and print totals."""

import argparse
import platform
import sys
import time
from collections.abc import Iterable

from router.raft.core import RaftCore
from tests.router.raft.knobs import Mode
from tests.router.raft.model_disk import ModelDisk
from tests.router.raft.simulation import Simulation, Violation

__all__ = ["main", "run_seeds"]


class Totals:
    """Sums over seeds."""

    def __init__(self) -> None:
        self.seeds = self.events = self.elections = self.acks = 0
        self.simulated_s = 0.0
        self.failed: dict[int, str] = {}


def run_seeds(
    seeds: Iterable[int],
    mode: Mode,
    core_class: type[RaftCore] = RaftCore,
    disk_class: type[ModelDisk] = ModelDisk,
    stop_at_first: bool = False,
) -> Totals:
    """Run seeds and collect violations."""
    totals = Totals()
    for seed in seeds:
        simulation = Simulation(seed, mode, core_class, disk_class)
        try:
            simulation.run()
        except Violation as violation:
            totals.failed[seed] = str(violation)
        totals.seeds += 1
        totals.events += simulation.events
        totals.elections += simulation.invariants.elections
        totals.acks += simulation.invariants.acks
        totals.simulated_s += simulation.now
        if totals.failed and stop_at_first:
            break
    return totals


def main() -> int:
    """Run the seeds of the command line; exit code 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, with its constants printed")
    parser.add_argument("--mode", choices=("safety", "liveness"), default="safety")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else (options.seed,)
    began = time.perf_counter()
    totals = run_seeds(seeds, options.mode)
    took = time.perf_counter() - began
    for seed, why in totals.failed.items():
        print(f"FAILED seed {seed}: {why}\n  {Simulation(seed, options.mode).knobs}")
    if options.seed is not None and not totals.failed:
        print(Simulation(options.seed, options.mode).knobs)
    print(
        f"raft {options.mode}: {totals.seeds} seeds, {len(totals.failed)} failed, {totals.seeds / took:.1f} seeds/s, "
        f"{totals.simulated_s / 3600:.2f} simulated hours in {took:.0f} s, {totals.events} events, "
        f"{totals.elections} elections, {totals.acks} acks (Python {platform.python_version()})"
    )
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
