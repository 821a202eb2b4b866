"""``python -m tests.fuzz --minutes N [--targets decoder,...] [--seed n]``: feed damaged input to everything that reads.

With ``--atheris``, and atheris installed in the interpreter that runs this, each target is guided by coverage;
otherwise good inputs are mutated at random from a printed seed. Prints executions per target; a failure prints the
input in hexadecimal, which then belongs into ``tests/fuzz/test_targets.py``, and the exit code is 1.
"""

import argparse
import importlib
import random
import sys
import time
import traceback
from typing import Any

from tests.fuzz.targets import TARGETS, Target, mutate

ROUND = 50  # cases between two looks at the clock

__all__ = ["main", "run_target"]


def run_target(target: Target, seed: int, seconds: float) -> tuple[int, bytes | None]:
    """Mutate for a while; return the number of cases, and the input that failed."""
    rng = random.Random(f"{target.name}/{seed}")
    end = time.monotonic() + seconds
    cases = 0
    while time.monotonic() < end:
        for _ in range(ROUND):
            data = mutate(target.corpus, rng)
            cases += 1
            try:
                target.check(data)
            except Exception:
                traceback.print_exc(limit=-4)
                return cases, data
    return cases, None


def _guided(target: Target, seconds: float) -> None:
    """Run one target under atheris; does not return."""
    atheris: Any = importlib.import_module("atheris")
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", "-max_len=4096"], target.check)
    atheris.Fuzz()


def main() -> int:
    """Fuzz; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--targets", default="", help=f"of {', '.join(target.name for target in TARGETS)}")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; one target only")
    options = parser.parse_args()
    wanted = options.targets.split(",") if options.targets else [target.name for target in TARGETS]
    chosen = [target for target in TARGETS if target.name in wanted]
    if len(chosen) != len(wanted):
        parser.error(f"targets are {', '.join(target.name for target in TARGETS)}")
    if options.atheris:
        if len(chosen) != 1:
            parser.error("--atheris takes one target: the library ends the process")
        _guided(chosen[0], options.minutes * 60)
    print(f"seed {options.seed}")
    share = options.minutes * 60 / sum(target.weight for target in chosen)
    total, failed = 0, 0
    for target in chosen:
        began = time.monotonic()
        cases, culprit = run_target(target, options.seed, share * target.weight)
        total += cases
        rate = cases / max(0.001, time.monotonic() - began)
        print(
            f"{target.name:14} {cases:>10} executions, {rate:.0f}/s{'' if culprit is None else ' FAILED'}", flush=True
        )
        if culprit is not None:
            failed += 1
            print(f"  {culprit.hex()}", flush=True)
    print(f"{total} executions, {failed} targets failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
