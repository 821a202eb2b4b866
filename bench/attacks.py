"""Attacks on our edge, on Mosquitto and on a minimal program, alternately, beside the same honest clients.

    python -m bench.attacks wrong_passwords                 500 a second from 50 addresses for 30 s
    python -m bench.attacks websockets slow_readers absent  rows D16, D18 and D10 of docs/security_checks.md
    python -m bench.attacks wrong_passwords --runs 3 --only ours floor

The floor (``bare_broker.c``) is a loop in C that accepts, answers and copies. For wrong passwords it computes the same
hashes as ours, in a process of the lowest priority, and blocks addresses likewise. It omits all other work of a
broker, so its latency during an attack is the cost of the attackers and the hashes on two cores. Mosquitto
computes 101 rounds of PBKDF2 for each wrong password, within its loop; of our limits it has the queue's.
All numbers depend on other load of the machine: compare within a run.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.hot import HERE
from tests.clients.mosquitto_process import mosquitto
from tests.e2e.attacked_place import Attackers, Honest, Outcome
from tests.e2e.flooded_logins import flooded_edge, mosquitto_of_ann, under_attack
from tests.e2e.test_denial import BOUNDS, QUEUE_MAX, SHIPPED, attacked
from tests.free_ports import free_port

Ports = dict[str, int]
CALM_S = 3.0


@dataclass(frozen=True)
class Row:
    """An attack: the number of attackers, its duration, and the floor's parameters."""

    count: int
    seconds: float
    has_floor: bool = True


ROWS = {
    "websockets": Row(1000, 30.0),
    "slow_readers": Row(500, 20.0),
    "absent": Row(1000, 60.0, has_floor=False),  # it keeps no session
}


# -- targets


@contextlib.contextmanager
def bare(folder: Path, *hasher: str) -> Iterator[Ports]:
    """Run the floor."""
    program = folder / "bare_broker"
    if not program.exists():
        subprocess.run(["cc", "-O2", "-std=c11", str(HERE / "bare_broker.c"), "-o", str(program)], check=True)
    process = subprocess.Popen([str(program), *hasher], stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    assert process.stdout is not None
    try:
        yield {name: int(process.stdout.readline()) for name in ("plain", "ws")}
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def theirs() -> Iterator[Ports]:
    """Run Mosquitto with the queue's bound of our edge."""
    ws = free_port()
    words = (
        "allow_anonymous true",
        f"max_queued_messages {QUEUE_MAX}",
        f"listener {ws} 127.0.0.1",
        "protocol websockets",
    )
    with tempfile.TemporaryDirectory() as name, mosquitto(Path(name), *words) as plain:
        yield {"plain": plain, "ws": ws}


@contextlib.contextmanager
def ours() -> Iterator[Ports]:
    """Run a cluster with the bounds of the rows in ``test_denial.py``, and the times of conf/edge.toml."""
    with attacked(BOUNDS | SHIPPED) as place:
        place.dripping.kill()
        yield place.ports


# -- attacks


@dataclass
class Figures:
    """P99 of honest clients in ms without and during an attack, the slowest connect; the attackers' outcomes."""

    calm_ms: float
    attacked_ms: float
    slowest_ms: float
    said: str

    def __str__(self) -> str:
        slowest = f", slowest connect {self.slowest_ms:.0f} ms" if self.slowest_ms else ""
        times = self.attacked_ms / self.calm_ms
        return f"P99 {self.calm_ms:.2f} -> {self.attacked_ms:.2f} ms ({times:.2f} times){slowest}; {self.said}"


def beside(kind: str, ports: Ports) -> Figures:
    """Let honest clients go on beside an attack."""
    row, outcome = ROWS[kind], Outcome()
    with Attackers(kind, ports, row.count, row.seconds) as attackers, Honest(ports["plain"], outcome) as honest:
        honest.serve(CALM_S)
        calm_ms = outcome.p99_ms
        outcome.trips_s.clear()
        outcome.connects_s.clear()
        attackers.go()
        honest.serve(row.seconds)
        seen = attackers.seen()
        attackers.leave()
    most = dict(seen.most_common(6))
    said = f"{most}, refused {len(outcome.refused)} of {len(outcome.connects_s)} connects"
    return Figures(calm_ms, outcome.p99_ms, max(outcome.connects_s) * 1e3, said)


def flooded(port: int) -> Figures:
    """Let honest clients log in and exchange messages beside wrong passwords."""
    found = under_attack(port)
    said = f"{found.honest_in} of {found.honest_tried} logins; {found.tried} wrong ones, {found.codes}"
    return Figures(found.calm_ms, found.attacked_ms, 0.0, said)


def turn(kind: str, who: str, folder: Path) -> Figures:
    """Attack one target once."""
    if kind != "wrong_passwords":
        targets: dict[str, Callable[[], contextlib.AbstractContextManager[Ports]]]
        targets = {"ours": ours, "floor": lambda: bare(folder), "mosquitto": theirs}
        with targets[who]() as ports:
            return beside(kind, ports)
    if who == "ours":
        with flooded_edge() as (_, edge):
            return flooded(edge.port("word"))
    if who == "floor":
        with bare(folder, sys.executable, "-m", "tests.e2e.hash_burner", "--asked") as ports:
            return flooded(ports["plain"])
    with tempfile.TemporaryDirectory() as name, mosquitto_of_ann(Path(name)) as port:
        return flooded(port)


def main() -> None:
    """Attack the targets alternately and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=("wrong_passwords", *ROWS), metavar="KIND", help=f"of {[*ROWS]}")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=("ours", "floor", "mosquitto"), help="of ours, floor, mosquitto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            found: dict[str, list[Figures]] = {}
            for _ in range(arguments.runs):
                for who in arguments.only:
                    if who == "floor" and kind in ROWS and not ROWS[kind].has_floor:
                        continue
                    figures = turn(kind, who, Path(name))
                    found.setdefault(who, []).append(figures)
                    print(f"    {who:9} load {os.getloadavg()[0]:4.1f}: {figures}", flush=True)
            for who, each in found.items():
                calm, beside_it = (
                    statistics.median(getattr(one, name) for one in each) for name in ("calm_ms", "attacked_ms")
                )
                print(f"{kind}, {who}: P99 {calm:.2f} -> {beside_it:.2f} ms, {beside_it / calm:.2f} times", flush=True)


if __name__ == "__main__":
    main()
