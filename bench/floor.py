"""The minimum cost of a message: a relay in C that only waits, receives and sends, beside Mosquitto and ours.

    python -m bench.floor --runs 5
    python -m bench.floor --only connects      the row "connects, plain", and a relay that asks another thread for each
    python -m bench.floor --only connections   15 000 connections, the first 5 s, and a relay that asks for each topic

At a paced rate every message wakes the broker, and waking, TCP and waking the receiver are the kernel's. The relay
(``relay.c``) has no other work, so no broker with a socket per client costs less; the ratio of
Mosquitto to it is the best possible value of the row "10 000 msg/s" of ``python -m bench``. A CONNECT costs at least
the relay's accept, answer and close; where another process decides the owner of a client ID, also the query.
"""

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.cluster import IDLE_ROWS, ours, theirs
from bench.hot import HERE, ROWS, Broker, Row, build_mqload, figure, make_certificate, measure

WHAT = {  # row, and the word for the relay that asks another thread
    "messages": ("10 000 msg/s over 100 pairs", ""),
    "connects": ("connects, plain", "claims"),
    "connections": ("15 000 connections, the first 5 s", "routes"),
}


def relay(mqload: Path, program: list[str], folder: Path, row: Row) -> dict[str, Any]:
    """One run on the relay, on CPU 0 as the brokers are."""
    broker = Broker(program, None, 1)
    try:
        return measure(mqload, broker, row, folder)
    finally:
        broker.stop()


def main() -> None:
    """Run the row alternately and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=WHAT, default="messages")
    arguments = parser.parse_args()
    wanted, asks = WHAT[arguments.only]
    row = next(row for row in (*ROWS, *IDLE_ROWS) if row.name == wanted)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mqload, program = build_mqload(folder), folder / "relay"
        subprocess.run(["cc", "-O2", "-std=c11", "-pthread", str(HERE / "relay.c"), "-o", str(program)], check=True)
        make_certificate(folder)
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(arguments.runs):
            turn = {"relay": relay(mqload, [str(program)], folder, row)}
            if asks:
                turn[asks] = relay(mqload, [str(program), asks], folder, row)
            turn |= {"mosquitto": theirs(mqload, folder, row), "ours": ours(mqload, folder, row)}
            for who, report in turn.items():
                found.setdefault(who, []).append(report)
                print(f"    {who:10} {figure(report)[1]}", flush=True)
    costs = {who: statistics.median(figure(report)[0] for report in reports) for who, reports in found.items()}
    for who, reports in found.items():
        line = f"{who:10} {costs[who]:7.2f} us, Mosquitto costs {costs['mosquitto'] / costs[who]:.2f} times as much"
        if "latency_us" in reports[0]:
            p99_us = [report["latency_us"]["p99"] for report in reports]
            line += f"; P99 {statistics.median(p99_us):.0f} us ({min(p99_us)} to {max(p99_us)})"
        print(line)


if __name__ == "__main__":
    main()
