"""The constants of one simulated run, drawn from its seed.

Each seed draws its own subset of faults and its own sizes: bugs that need a batch of one, a snapshot every five
entries or five peers are not found with fixed constants.
"""

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["Knobs", "Mode", "draw_knobs"]

Mode = Literal["safety", "liveness"]


@dataclass
class Knobs:
    """Times in seconds of virtual time; probabilities per occasion."""

    mode: Mode = "safety"
    peers: int = 3
    spares: int = 0  # join as learners when membership changes
    bound: bool = True  # storage ids known at bootstrap
    duration_s: float = 20.0
    election_timeout_s: float = 0.2
    heartbeat_s: float = 0.05
    max_entries_per_append: int = 32
    max_inflight_appends: int = 8
    snapshot_every: int = 500
    trailing_entries: int = 100
    chunk_bytes: int = 4096
    delay_s: float = 0.002  # mean one way
    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0  # messages that arrive up to an election timeout later
    sync_s: float = 0.001  # mean
    propose_every_s: float = 0.05
    propose_batch: int = 1
    read_every_s: float = 0.2
    crash_every_s: float = 0.0  # 0: never
    down_s: float = 0.5
    crash_all: float = 0.0  # of crashes, those of the whole group at once
    cut_every_s: float = 0.0
    cut_s: float = 1.0
    crash_on_election: float = 0.0
    crash_on_vote: float = 0.0  # after the vote was sent
    crash_in_sync: float = 0.0  # part of the write survives
    crash_after_sync: float = 0.0  # durable, not sent
    crash_on_append: float = 0.0  # after a part of a new leader's appends was sent
    change_every_s: float = 0.0
    transfer_every_s: float = 0.0
    wipe_every_s: float = 0.0


def draw_knobs(seed: int, mode: Mode) -> Knobs:
    """Return the constants of the seed."""
    rng = random.Random(f"knobs {mode} {seed}")
    some = rng.random

    def maybe(probability: float, value: float) -> float:
        return value if some() < probability else 0.0

    timeout = rng.choice((0.1, 0.2, 0.2, 0.4))
    knobs = Knobs(
        mode=mode,
        peers=rng.choice((3, 3, 3, 5)),
        bound=some() < 0.7,
        duration_s=rng.choice((10.0, 15.0)) if mode == "safety" else 5.0,
        election_timeout_s=timeout,
        heartbeat_s=timeout * rng.choice((0.2, 0.3, 0.45)),
        max_entries_per_append=rng.choice((1, 2, 32, 512)),
        max_inflight_appends=rng.choice((1, 2, 8)),
        snapshot_every=rng.choice((5, 30, 100_000)),
        trailing_entries=rng.choice((0, 3, 100)),
        chunk_bytes=rng.choice((3, 4096)),
        delay_s=timeout * rng.choice((0.005, 0.02, 0.1)),
        loss=maybe(0.6, rng.choice((0.01, 0.05, 0.2))),
        duplicate=maybe(0.4, 0.1),
        late=maybe(0.4, rng.choice((0.01, 0.1))),
        sync_s=timeout * rng.choice((0.002, 0.02, 0.2)),
        propose_every_s=timeout * rng.choice((0.2, 0.5, 2.0)),
        propose_batch=rng.choice((1, 1, 3)),
        crash_every_s=maybe(0.7, timeout * rng.choice((2, 5, 20))),
        down_s=timeout * rng.choice((0.05, 0.5, 4.0)),
        crash_all=maybe(0.5, rng.choice((0.1, 0.5))),
        cut_every_s=maybe(0.7, timeout * rng.choice((4, 15))),
        cut_s=timeout * rng.choice((1.0, 4.0, 10.0)),
        crash_on_election=maybe(0.4, rng.choice((0.1, 0.4))),
        crash_on_vote=maybe(0.5, rng.choice((0.3, 0.8))),
        crash_in_sync=maybe(0.4, rng.choice((0.003, 0.02))),
        crash_after_sync=maybe(0.3, rng.choice((0.001, 0.01))),
        crash_on_append=maybe(0.4, rng.choice((0.3, 0.7))),
        transfer_every_s=maybe(0.2, 1.0),
    )
    if mode == "safety" and some() < 0.35:
        knobs.spares = rng.choice((1, 2))
        knobs.change_every_s = rng.choice((0.3, 1.0))
        knobs.wipe_every_s = maybe(0.5, 4.0)
    return knobs
