"""Schedules of faults, drawn from a seed, as data that can be printed, kept and shortened.

A schedule gives place, time and duration of each fault; ``chaos_run.py`` applies it. It uses names: the
same seed on the same names is the same schedule. Each row of the fault catalogue is one way to draw. A row has
one fault at a time unless its name says otherwise, and the next fault follows the reported recovery.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["ROWS", "Fault", "Schedule", "Verb", "draw", "tier_of"]


class Verb(enum.StrEnum):
    """An action on the nodes of a fault, and its undo."""

    KILL = "kill"  # -9; restart
    KILL_TWICE = "kill twice"  # again while it recovers (F03); restart
    STOP = "stop"  # SIGSTOP; SIGCONT
    ISOLATE = "isolate"  # the nodes exchange traffic only with each other
    MUTE = "mute"  # the nodes receive only
    DEAFEN = "deafen"  # the nodes send only
    PART = "part"  # the first two nodes do not reach each other; both reach the rest
    FLAP = "flap"  # isolated and back, every amount seconds
    SLOW = "slow"  # all links of the nodes are delayed by amount seconds
    HALF_OPEN = "half open"  # connections of the nodes die without a word to the other side
    SLOW_SYNC = "slow sync"  # every sync takes amount seconds more
    FAIL_SYNC = "fail sync"  # the next sync returns EIO
    FILL_DISK = "fill disk"  # amount is the share of the disk that is left
    FLIP_BITS = "flip bits"  # amount bits of files at rest, while the node is down
    WIPE_DISK = "wipe disk"  # the node returns with an empty disk and the same name
    CRASH_POINT = "crash point"  # ends itself at a kind of system call: amount is 1000 * point + how many of them
    LOSE_POWER = "lose power"  # -9, and the loss of all or part of the unsynced data; restart
    SHIFT_CLOCK = "shift clock"  # the wall clock jumps by amount seconds


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        after_s: Seconds of calm before it.
        hold_s: Until it is undone.
        amount: Parameter of the verb.
    """

    verb: Verb
    nodes: tuple[str, ...]
    after_s: float
    hold_s: float
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"+{self.after_s:.3f} s {self.verb}{amount} {', '.join(self.nodes)} for {self.hold_s:.3f} s"


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of one run."""

    row: str
    seed: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        lines = [f"{self.row} seed {self.seed}, {len(self.faults)} faults"]
        return "\n".join([*lines, *(f"  {number}. {fault}" for number, fault in enumerate(self.faults, 1))])

    def without(self, number: int) -> Schedule:
        """Return the schedule less one fault (from 1): how a failing one is shortened."""
        return Schedule(self.row, self.seed, self.faults[: number - 1] + self.faults[number:])


Draw = Callable[[random.Random, Sequence[str]], Fault]


def tier_of(node: str) -> str:
    """Return edge, router or storage: node names are ``tier-number``."""
    return node.partition("-")[0]


def draw(row: str, seed: int, nodes: Sequence[str], seconds: float) -> Schedule:
    """Draw a schedule of about so many seconds for one row of the catalogue.

    Args:
        nodes: Names of all nodes; sorted here, so their order does not matter.

    Raises:
        ValueError: There is no such row, or it needs a tier that is not there.
    """
    if row not in ROWS:
        raise ValueError(f"no row {row!r}; there are {', '.join(ROWS)}")
    rng = random.Random(f"{row}/{seed}")
    faults: list[Fault] = []
    spent_s = 0.0
    while spent_s < seconds:
        fault = ROWS[row](rng, sorted(nodes))
        spent_s += fault.after_s + fault.hold_s
        faults.append(fault)
    return Schedule(row, seed, tuple(faults))


def _one(rng: random.Random, nodes: Sequence[str], *tiers: str) -> tuple[str, ...]:
    return (rng.choice(_of(nodes, *tiers)),)


def _of(nodes: Sequence[str], *tiers: str) -> list[str]:
    found = [node for node in nodes if tier_of(node) in tiers]
    if not found:
        raise ValueError(f"no node of {', '.join(tiers)}")
    return found


def _minority(rng: random.Random, nodes: Sequence[str], *tiers: str) -> tuple[str, ...]:
    """Return fewer than half of the nodes of one tier, at least one."""
    members = _of(nodes, rng.choice(tiers))
    count = rng.randint(1, max(1, (len(members) - 1) // 2))
    return tuple(sorted(rng.sample(members, count)))


def _two(rng: random.Random, nodes: Sequence[str], *tiers: str) -> tuple[str, ...]:
    members = _of(nodes, rng.choice(tiers))
    if len(members) < 2:
        raise ValueError(f"a link needs two nodes of {tier_of(members[0])}")
    return tuple(sorted(rng.sample(members, 2)))


ALL: Final = ("edge", "router", "storage")
KEEPERS: Final = ("router", "storage")  # tiers with a disk


def _calm(rng: random.Random) -> float:
    return rng.uniform(1.0, 4.0)


def _crash_point(rng: random.Random) -> int:
    """Return 1000 * point + how many calls; files are renamed (points 5 and 6) too seldom to wait for the second."""
    point, after = rng.randint(1, 8), int(10 ** rng.uniform(0, 2))
    return 1000 * point + (1 if point in (5, 6) else after)


ROWS: Final[dict[str, Draw]] = {
    "F01": lambda r, n: Fault(Verb.KILL, _one(r, n, *ALL), _calm(r), r.uniform(0, 10)),
    "F02": lambda r, n: Fault(Verb.CRASH_POINT, _one(r, n, *KEEPERS), _calm(r), 6.0, _crash_point(r)),
    "F03": lambda r, n: Fault(Verb.KILL_TWICE, _one(r, n, *KEEPERS), _calm(r), r.uniform(0, 2), r.uniform(0, 2)),
    "F04": lambda r, n: Fault(Verb.KILL, tuple(_of(n, r.choice(ALL))), _calm(r), r.uniform(0, 3)),
    "F05": lambda r, n: Fault(Verb.LOSE_POWER, _one(r, n, *KEEPERS), _calm(r), r.uniform(0, 5)),
    "F06": lambda r, n: Fault(Verb.LOSE_POWER, tuple(sorted(n)), _calm(r), r.uniform(0, 2)),
    "F07": lambda r, n: Fault(Verb.STOP, _one(r, n, *ALL), _calm(r), 10 ** r.uniform(-1, 1.2)),
    "F08": lambda r, n: Fault(Verb.ISOLATE, _minority(r, n, *KEEPERS), _calm(r), r.uniform(1, 15)),
    "F09": lambda r, n: Fault(r.choice((Verb.MUTE, Verb.DEAFEN)), _one(r, n, *KEEPERS), _calm(r), r.uniform(1, 15)),
    "F10": lambda r, n: Fault(Verb.PART, _two(r, n, *KEEPERS), _calm(r), r.uniform(5, 15)),
    "F11": lambda r, n: Fault(Verb.PART, (*_one(r, n, "edge"), *_of(n, r.choice(KEEPERS))), _calm(r), r.uniform(1, 10)),
    "F12": lambda r, n: Fault(Verb.FLAP, _one(r, n, *ALL), _calm(r), r.uniform(5, 15), 0.1),
    "F13": lambda r, n: Fault(Verb.SLOW, _one(r, n, *ALL), _calm(r), r.uniform(5, 15), 10 ** r.uniform(-2.3, -0.3)),
    "F14": lambda r, n: Fault(Verb.HALF_OPEN, _one(r, n, "edge", "storage"), _calm(r), r.uniform(5, 10)),
    "F16": lambda r, n: Fault(
        Verb.SLOW_SYNC, _one(r, n, *KEEPERS), _calm(r), r.uniform(5, 10), r.choice((0.02, 0.2, 2.0))
    ),
    "F17": lambda r, n: Fault(Verb.FAIL_SYNC, _one(r, n, *KEEPERS), _calm(r), r.uniform(1, 3)),
    "F19": lambda r, n: Fault(Verb.FILL_DISK, _one(r, n, *KEEPERS), _calm(r), r.uniform(3, 10), r.choice((0.0, 0.05))),
    "F20": lambda r, n: Fault(Verb.FLIP_BITS, _one(r, n, "storage"), _calm(r), r.uniform(0, 3), r.choice((1, 8))),
    "F21": lambda r, n: Fault(Verb.FLIP_BITS, _one(r, n, "router"), _calm(r), r.uniform(0, 3), r.choice((1, 8))),
    "F22": lambda r, n: Fault(Verb.WIPE_DISK, _one(r, n, *KEEPERS), _calm(r), r.uniform(0, 3)),
    # Rows of one fault and their own workload: the clients' actions during the fault are new.
    "F34": lambda r, n: Fault(Verb.STOP, _one(r, n, "edge"), _calm(r), r.uniform(0.5, 12)),
    "F35": lambda r, n: Fault(Verb.KILL, _one(r, n, "edge"), _calm(r), r.uniform(0, 3)),
    # Of tests/chaos/fleet.py: in every other run both are killed behind the clients.
    "fleet": lambda r, n: Fault(Verb.KILL, (*_one(r, n, "edge"), *_one(r, n, "storage")), 0.0, 60.0),
    "F24": lambda r, n: Fault(
        Verb.SHIFT_CLOCK, _one(r, n, *ALL), _calm(r), r.uniform(3, 10), r.choice((-3600, 3600, -31_536_000, 31_536_000))
    ),
}
