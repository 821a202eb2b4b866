"""``python -m tests.mutants.raft [--rate N]``: print the seeded Raft bugs and the tests that catch them."""

import argparse
import importlib
import sys
from pathlib import Path

from tests.mutants.raft_mutant import Mutant

__all__ = ["MUTANTS", "main"]

MUTANTS: tuple[Mutant, ...] = tuple(
    importlib.import_module(f"tests.mutants.{path.stem}").MUTANT
    for path in sorted(Path(__file__).parent.glob("raft_*.py"))
    if path.stem != "raft_mutant"
)


def main() -> int:
    """Print the table; exit code 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, help="also count catches over so many seeds of each mode")
    options = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        caught = mutant.first_catch()
        missed += caught is None
        limit = "" if mutant.caught_by == "script" else f" (limit {mutant.seeds} seeds)"
        print(f"{mutant.name:32} {mutant.caught_by:9} {caught or 'NOT CAUGHT'}{limit}", flush=True)
        if options.rate:
            print(f"{'':32} {mutant.rate(options.rate)}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
