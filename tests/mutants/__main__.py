"""``python -m tests.mutants [--raft]``: print every seeded bug, its place, the test that caught it, and the time.

Exit code 1 when one was not caught, or not within its budget. The bugs of Raft take up to a minute of seeds and run
with ``--raft``; those of gossip and replication are ordinary tests under pytest.
"""

import argparse
import subprocess
import sys
import time

from tests.mutants.access_rules import ACCESS_RULES
from tests.mutants.bridges import BRIDGES
from tests.mutants.datagrams import DATAGRAMS
from tests.mutants.edge_rights import EDGE_RIGHTS
from tests.mutants.federation import FEDERATION
from tests.mutants.hostile_seeds import HOSTILE_SEEDS
from tests.mutants.operators import OPERATORS
from tests.mutants.policy_rules import POLICY_RULES
from tests.mutants.policy_schedules import POLICY_SCHEDULES
from tests.mutants.raft import MUTANTS
from tests.mutants.router_roles import ROUTER_ROLES
from tests.mutants.rules import RULES
from tests.mutants.seeded import BUGS, caught_by
from tests.mutants.storage_rights import STORAGE_RIGHTS

TIER_CHECKS = ("tests.wire.allowed_matrix", "--tier-checks")  # a bug for each message
OTHER_TABLES = {
    "gossip (11 bugs)": "tests/membership/test_mutants.py",
    "replication (3 bugs)": "tests/storage/test_replication_mutants.py",
}

TABLES = (
    *(*BUGS, *RULES, *ACCESS_RULES, *STORAGE_RIGHTS, *EDGE_RIGHTS, *POLICY_RULES, *POLICY_SCHEDULES),
    *(*BRIDGES, *DATAGRAMS, *FEDERATION, *OPERATORS, *HOSTILE_SEEDS, *ROUTER_ROLES),
)

__all__ = ["main"]


def _line(name: str, where: str, result: str, seconds: float, limit: str) -> None:
    print(f"| {name} | {where} | {result} | {seconds:.2f} s of {limit} |", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raft", action="store_true", help="also the bugs of Raft, by seeds of its simulation")
    parser.add_argument("--all", action="store_true", help="also the tables of gossip and replication, by pytest")
    options = parser.parse_args()
    missed: list[str] = []
    print("| bug | where | caught by | processor time |\n|---|---|---|---|")
    for bug in TABLES:
        began = time.process_time()
        caught = caught_by(bug)
        took = time.process_time() - began
        if caught is None or took > bug.budget_s:
            missed.append(bug.name)
        _line(bug.name, bug.where, bug.said if caught else "NOT CAUGHT", took, f"{bug.budget_s:g} s")
    began = time.monotonic()
    checks = subprocess.run([sys.executable, "-m", *TIER_CHECKS], capture_output=True, text=True, check=False)
    lines = checks.stdout.splitlines() or ["nothing"]
    missed += lines if checks.returncode else []
    result = "NOT CAUGHT" if checks.returncode else f"{lines[-1]}, each refused and counted"
    name = "the check of a sender's tier, left out for a message"
    _line(name, "wire/links/allowed.py", result, time.monotonic() - began, "60 s")
    for mutant in MUTANTS if options.raft or options.all else ():
        began = time.process_time()
        caught = mutant.first_catch()
        if caught is None:
            missed.append(mutant.name)
        limit = "a script" if mutant.caught_by == "script" else f"{mutant.seeds} seeds"
        result = f"{mutant.caught_by}: {caught}"[:90] if caught else "NOT CAUGHT"
        _line(mutant.name, "router/raft/core.py", result, time.process_time() - began, limit)
    for name, path in OTHER_TABLES.items() if options.all else ():
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", path], capture_output=True, check=False)
        if done.returncode:
            missed.append(name)
        _line(name, path, "NOT CAUGHT" if done.returncode else "pytest", time.monotonic() - began, "60 s")
    print(f"\n{len(missed)} not caught{': ' if missed else ''}{', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
