"""SUBACK means subscribed everywhere: histories of subscribers and publishers at different edges while routers fail.

Clients subscribe at one edge while others publish at others, with recorded times. Meanwhile routers are killed, lose
power, stop, are cut from each other and from edges, and restart. Every accepted PUBLISH that was sent after a received
SUBACK must arrive. Clusters and checks are those of ``simulation.py``; only routers fail here, so that no other fault
hides their effects.
"""

import random

import pytest

from tests.simulation.faults import Fault
from tests.simulation.simulation import Options, Result, run_seed

ROUTERS = ("r1", "r2", "r3")
KINDS = ("kill", "kill", "power", "pause", "isolate", "cut", "one_way", "stop_stream", "reset")
EVERY_S = 1.5  # between faults, on average
SECONDS = 8.0


def router_faults(rng: random.Random, seconds: float) -> tuple[Fault, ...]:
    """Draw faults of routers; cuts also from edges and storage nodes."""
    faults = []
    at = rng.expovariate(1 / EVERY_S)
    while at < seconds:
        kind, target = rng.choice(KINDS), rng.choice(ROUTERS)
        other = ""
        if kind in ("cut", "one_way", "reset"):
            other = rng.choice([name for name in (*ROUTERS, "e1", "e2", "s1") if name != target])
        lasts = rng.choice((rng.uniform(0.01, 0.3), rng.uniform(0.3, 2.0), rng.uniform(2.0, 5.0)))
        faults.append(Fault(at, at + lasts, kind, target, other))
        at += rng.expovariate(1 / EVERY_S)
    return tuple(faults)


def run(seed: int, seconds: float = SECONDS) -> Result:
    faults = router_faults(random.Random(f"routers/{seed}"), seconds - 1.0)
    result = run_seed(seed, Options(seconds=seconds, faults=faults, works=("routes",), routers=3))
    assert not result.failures, (seed, result.failures, [str(fault) for fault in faults])
    return result


def test_every_publish_after_a_suback_arrives_while_routers_fail() -> None:
    """Three clusters; together they must have checked enough messages."""
    checked = sum(run(seed).checked["subscribe_barrier"] for seed in range(5_000, 5_003))
    assert checked >= 150


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5_003, 5_106))
def test_every_publish_after_a_suback_arrives_while_routers_fail_for_longer(seed: int) -> None:
    """A hundred more."""
    run(seed, 20.0)
