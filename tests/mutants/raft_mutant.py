"""A seeded Raft bug, and whether a script or a number of seeds catches it."""

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from router.raft.core import RaftCore
from tests.router.raft.script_runner import run_script
from tests.router.raft.simulate import run_seeds

__all__ = ["Mutant"]

SCRIPTS = Path(__file__).parent.parent / "router" / "raft" / "scripts"


@dataclass(frozen=True)
class Mutant:
    """A core without one rule, the script or seeds that catch it, and the maximum number of seeds."""

    name: str
    core_class: type[RaftCore]
    caught_by: Literal["safety", "liveness", "script"]
    seeds: int
    script: str = ""

    def first_catch(self) -> str | None:
        """Return how it was caught, or None."""
        if self.caught_by == "script":
            return self.script if run_script(SCRIPTS / self.script, self.core_class) else None
        try:
            totals = run_seeds(range(self.seeds), self.caught_by, self.core_class, stop_at_first=True)
        except Exception:  # a mutant may also break our own assertions
            return traceback.format_exc(limit=-1).splitlines()[-1]
        return next((f"seed {seed}: {why}" for seed, why in totals.failed.items()), None)

    def rate(self, seeds: int) -> str:
        """Return how many of the seeds of each mode catch it."""
        found = []
        for mode in ("safety", "liveness"):
            totals = run_seeds(range(seeds), mode, self.core_class)
            found.append(f"{mode} {len(totals.failed)}/{seeds}")
        return ", ".join(found)
