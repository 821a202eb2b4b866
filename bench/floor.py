"""What a message by itself costs at least: a relay in C that only waits, receives and sends, beside Mosquitto and ours.

    python -m bench.floor --runs 5
    python -m bench.floor --only connects      the row "connects, plain", and a relay that asks another thread for each

At a paced rate every message wakes the broker, and waking, TCP and waking the receiver are the kernel's. The relay
(``relay.c``) does nothing else, so its cost is what no broker with a socket per client gets below; the ratio of
Mosquitto to it is what the row "10 000 msg/s" of ``python -m bench`` could be at best. A CONNECT costs at least what
the relay takes to accept, answer and close; where another process decides who owns a client ID, also the question.
"""

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.cluster import ours, theirs
from bench.hot import HERE, ROWS, Broker, Row, build_mqload, figure, make_certificate, measure

MESSAGES, CONNECTS = "10 000 msg/s over 100 pairs", "connects, plain"


def relay(mqload: Path, program: list[str], folder: Path, row: Row) -> tuple[float, str]:
    """One run on the relay, on CPU 0 as the brokers are."""
    broker = Broker(program, None, 1)
    try:
        return figure(measure(mqload, broker, row, folder))
    finally:
        broker.stop()


def main() -> None:
    """Run the row in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("messages", "connects"), default="messages")
    arguments = parser.parse_args()
    wanted = MESSAGES if arguments.only == "messages" else CONNECTS
    row = next(row for row in ROWS if row.name == wanted)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mqload, program = build_mqload(folder), folder / "relay"
        subprocess.run(["cc", "-O2", "-std=c11", "-pthread", str(HERE / "relay.c"), "-o", str(program)], check=True)
        make_certificate(folder)
        costs: dict[str, list[float]] = {}
        for _ in range(arguments.runs):
            turn = {"relay": relay(mqload, [str(program)], folder, row)}
            if wanted == CONNECTS:
                turn["claims"] = relay(mqload, [str(program), "claims"], folder, row)
            turn |= {"mosquitto": figure(theirs(mqload, folder, row)), "ours": figure(ours(mqload, folder, row))}
            for who, (cost, said) in turn.items():
                costs.setdefault(who, []).append(cost)
                print(f"    {who:10} {said}", flush=True)
    medians = {who: statistics.median(found) for who, found in costs.items()}
    for who, cost in medians.items():
        print(f"{who:10} {cost:7.2f} us, Mosquitto costs {medians['mosquitto'] / cost:.2f} times as much")


if __name__ == "__main__":
    main()
