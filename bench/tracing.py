"""Traces: the loop's cost without a trace, and the cost of a traced QoS 1 message.

    python -m bench.tracing --other ../before     the loop of this checkout against another one's, alternately
    python -m bench.tracing                       a traced message in all nodes together; no checkout is needed

The loop runs without sockets, in the harness of ``tests/edge/loop``, compiled, one process for each tree; the other
checkout has its own ``.venv`` with its modules compiled. Each round runs some of a scene on one tree and then on
the other, every second round in the other order. The minimum time of all runs is compared: 600 for each scene.
The exit code is 1 if a scene of this tree is slower by more than ``--tolerance``, or a message costs more than
``--bar`` microseconds.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.traced_message import parts

__all__ = ["main"]

HERE = Path(__file__).resolve().parents[1]
SCENES = ("pairs", "batch", "QoS 1", "fan-out")
PAIRS, TURNS, RUNS = 6, 10, 10  # of processes, of each scene, of a round: 600 runs
CHILD = """
import sys, time
sys.path.insert(0, ".")
from tests.clients.packets import ack, publish
from tests.edge.loop.conftest import load
from tests.edge.loop.harness import Broker
hot = load("compiled")
assert hot.compiled

def sessions(broker, count, topic, qos):
    return [broker.subscriber(topic(number), qos) for number in range(count)]

def pairs():
    broker = Broker(hot)
    subs = sessions(broker, 100, lambda number: b"pairs/%d" % number, 0)
    pubs = [broker.client() for _ in range(100)]
    packets = [publish(b"pairs/%d" % number, bytes(64)) for number in range(100)]
    engine = broker.hot
    def run():
        engine.begin_turn(broker.now_ns)
        for conn, data in zip(pubs, packets):
            engine.feed(conn, data)
        engine.end_turn(broker.now_ns)
        for conn in subs:
            engine.take_output(conn)
    return run, 100

def batch():
    broker = Broker(hot)
    (sub,) = sessions(broker, 1, lambda number: b"batch", 0)
    pub = broker.client()
    data = publish(b"batch", bytes(64)) * 800
    engine = broker.hot
    def run():
        engine.begin_turn(broker.now_ns)
        engine.feed(pub, data)
        engine.end_turn(broker.now_ns)
        engine.take_output(sub)
    return run, 800

def qos1():
    broker = Broker(hot)
    (sub,) = sessions(broker, 1, lambda number: b"one", 1)
    pub = broker.client()
    data = b"".join(publish(b"one", bytes(64), 1, 1 + number) for number in range(20))
    engine = broker.hot
    state = [1]
    def run():
        engine.begin_turn(broker.now_ns)
        engine.feed(pub, data)
        engine.end_turn(broker.now_ns)
        engine.take_output(sub)
        engine.take_output(pub)
        acks = b""
        for _ in range(20):
            acks += ack(0x40, state[0])
            state[0] = state[0] % 65535 + 1
        engine.begin_turn(broker.now_ns)
        engine.feed(sub, acks)
        engine.end_turn(broker.now_ns)
    return run, 20

def fanout():
    broker = Broker(hot)
    subs = sessions(broker, 500, lambda number: b"fan", 0)
    pub = broker.client()
    data = publish(b"fan", bytes(64))
    engine = broker.hot
    def run():
        engine.begin_turn(broker.now_ns)
        for _ in range(4):
            engine.feed(pub, data)
        engine.end_turn(broker.now_ns)
        for conn in subs:
            engine.take_output(conn)
    return run, 2000

scenes = {"pairs": pairs(), "batch": batch(), "QoS 1": qos1(), "fan-out": fanout()}
for run, _ in scenes.values():
    for _ in range(50):
        run()
print("ready", flush=True)
for line in sys.stdin:
    name, _, count = line.strip().rpartition(":")
    run, messages = scenes[name]
    found = []
    for _ in range(int(count)):
        began = time.perf_counter_ns()
        run()
        found.append((time.perf_counter_ns() - began) / messages)
    print(min(found), sorted(found)[len(found) // 2], flush=True)
"""


class Tree:
    """The loop of one checkout, in its own process."""

    def __init__(self, root: Path) -> None:
        command = [str(root / ".venv" / "bin" / "python"), "-c", CHILD]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def run(self, scene: str, count: int) -> tuple[float, float]:
        """Return the least and the median ns a message of so many runs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{scene}:{count}\n")
        self._process.stdin.flush()
        least, median = self._process.stdout.readline().split()
        return float(least), float(median)

    def end(self) -> None:
        """Stop the process."""
        self._process.communicate()


def compare(other: Path, tolerance: float) -> bool:
    """Print a line for each scene; return whether this tree is no slower than allowed in any."""
    found: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {name: ([], []) for name in SCENES}
    for pair in range(PAIRS):  # two processes of one program differ too, by where their memory lies
        trees = Tree(HERE), Tree(other)
        try:
            for turn in range(TURNS * len(SCENES)):
                scene = SCENES[turn % len(SCENES)]
                for index in (1, 0) if (turn // len(SCENES) + pair) % 2 else (0, 1):
                    found[scene][index].append(trees[index].run(scene, RUNS))
        finally:
            for tree in trees:
                tree.end()
    judged = [_within(scene, *found[scene], tolerance) for scene in SCENES]  # each has its line
    return all(judged)


def _within(scene: str, mine: list[tuple[float, float]], its: list[tuple[float, float]], tolerance: float) -> bool:
    here, there = (min(least for least, _ in one) for one in (mine, its))
    by_turns = statistics.median(one[1] / other[1] for one, other in zip(mine, its, strict=True))
    slower = here / there > 1 + tolerance
    print(
        f"{scene:10} {here / there:6.3f} by the least of {PAIRS * TURNS * RUNS} ({here:.1f} ns against {there:.1f}), "
        f"{by_turns:.3f} by the median of turns{'  SLOWER' * slower}",
        flush=True,
    )
    return not slower


# --- a traced message


def cost(bar_us: float) -> bool:
    """Print the extra cost of a traced message, at each node; return whether it is within the limit."""
    total = 0.0
    for name, run in parts():
        plain_us, traced_us = _of_both(run)
        total += traced_us - plain_us
        print(f"{name:36} {traced_us - plain_us:6.2f} us more ({plain_us:.2f} without a mark, {traced_us:.2f} with it)")
    print(f"{'in all nodes together':36} {total:6.2f} us, at most {bar_us:g} are allowed")
    return total <= bar_us


def _of_both(run: Callable[[bool], Any]) -> tuple[float, float]:
    """Return the minimum us of a message without and with a mark, alternately."""
    least = [float("inf"), float("inf")]
    for _ in range(200):
        for traced in (False, True):
            began = time.perf_counter_ns()
            count = run(traced)
            least[traced] = min(least[traced], (time.perf_counter_ns() - began) / count / 1000)
    return least[0], least[1]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of a scene, as a share")
    parser.add_argument("--bar", type=float, default=15.0, help="us of a traced message in all nodes")
    arguments = parser.parse_args()
    if arguments.other is not None:
        return 0 if compare(arguments.other.resolve(), arguments.tolerance) else 1
    return 0 if cost(arguments.bar) else 1


if __name__ == "__main__":
    sys.exit(main())
