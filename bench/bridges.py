"""``python -m bench.bridges``: the cost of bridges and their behaviour under faults, beside Mosquitto's own bridge.

    python -m bench.bridges                  all but the ten minutes, with limits; exit code 1 if one is missed
    python -m bench.bridges --only rates     rates | latency | faults | frozen | away (ten minutes; --seconds)

*rates*: messages wait behind a stopped side, so that only the bridge limits the rate; CPU time is
that of the bridging process alone (Mosquitto's own bridge is a part of its broker, which counts completely).
*latency*: from PUBACK at the near broker to the record at a consumer, which is another process. *faults*,
*frozen* and *away* are in ``bench/bridge_faults.py``. Brokers on both sides are Mosquittos, Kafka is librdkafka's mock
cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from bench.bridge_faults import away, beside_mosquitto, frozen, mosquitto_bridge
from mqtt.packets import Publish
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess, settings
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.stratamq.history.mosquitto import Mosquitto, running_mosquitto

PAYLOAD = bytes(256)
TIMEOUT_S = 120.0
WINDOW = "window_messages = 2000"
RATE, LATENCY_S, LAST_S = 5_000, 20.0, 20.0
BARS = {"mqtt": 10_000, "mqtt, exactly once": 3_000, "kafka-sink": 15_000}
LATENCY_BAR_MS = 100.0
FAST = ("max_inflight_messages 1000",)
missed: list[str] = []


def check(what: str, holds: bool) -> str:
    """Return a word for the table."""
    if not holds:
        missed.append(what)
    return "holds" if holds else "MISSED"


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kafka_settings(port: int, bootstraps: str) -> str:
    """Return a sink with a key for each topic."""
    return f"""
[bridge.under]
kind = "kafka-sink"
cluster = ["mqtt://127.0.0.1:{port}"]
client_id = "under-test"
brokers = ["{bootstraps}"]
{WINDOW}
[[bridge.under.map]]
filter = "f/#"
topic = "upload"
key = "{{level.2}}"
"""


def messages(count: int, qos: int) -> list[Publish]:
    """Return the messages to publish, over 50 topics."""
    return [Publish(f"f/{number % 50}", PAYLOAD, qos) for number in range(count)]


def read(broker: Mosquitto, count: int, qos: int) -> subprocess.Popen[bytes]:
    """Start a subscriber that ends when so many messages have come."""
    words = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", "f/#", "-q", str(qos), "-C", str(count)]
    return subprocess.Popen([*words, "-V", "311"], stdout=subprocess.DEVNULL)


def row(kind: str, count: int, used: float, took: float) -> str:
    """Return a row of the table of rates."""
    bar = BARS.get(kind)
    word = "" if bar is None else f"{bar:,} {check(f'rate of {kind}', count / used >= bar)}"
    return f"| {kind} | {count} | {count / used:,.0f} | {count / took:,.0f} | {word} |"


async def rate_between_brokers(kind: str, count: int) -> str:
    """Stop the far broker until all messages wait, then resume it."""
    qos = 2 if "exactly" in kind else 1
    lines = "exactly_once = true" if "exactly" in kind else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side in ("near", "far"):
            (folder / side).mkdir()
        async with running_mosquitto(folder / "far", further=FAST) as far:
            own = mosquitto_bridge(far.port, qos) if "Mosquitto" in kind else ()
            async with running_mosquitto(folder / "near", further=(*FAST, *own)) as near:
                text = settings(near.port, far.port, lines).replace("window_messages = 64", WINDOW)
                bridge = BridgeProcess(folder, text.replace("out 2", f"out {qos}"))
                if not own:
                    bridge.start()
                    await bridge.ready()
                reader = read(far, count, qos)
                await trio.sleep(2.0)  # for its subscription, and Mosquitto's own bridge
                far.pause(signal.SIGSTOP)
                await publish_all(near.port, messages(count, qos))
                pid = near.pid if own or bridge.process is None else bridge.process.pid
                began, used = time.monotonic(), processor_s(pid)
                far.pause(signal.SIGCONT)
                if await trio.to_thread.run_sync(partial(reader.wait, TIMEOUT_S)):
                    raise RuntimeError("the subscriber failed")
                took, used = time.monotonic() - began, processor_s(pid) - used
                if not own:
                    bridge.kill()
    return row(kind, count, used, took)


async def rate_to_kafka(count: int) -> str:
    """Let messages wait in the bridge's session, and start it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with running_mosquitto(folder, further=FAST) as near:
            mock = kafka_mock.KafkaMock(1, {"upload": 4})
            bridge = BridgeProcess(folder, kafka_settings(near.port, mock.bootstraps))
            bridge.start()
            await bridge.ready()
            bridge.kill()
            await publish_all(near.port, messages(count, 1))
            bridge.start()
            await bridge.ready()
            assert bridge.process is not None
            pid, began, used = bridge.process.pid, time.monotonic(), processor_s(bridge.process.pid)
            first = delivered = int(bridge.rows()[0]["delivered"])
            while delivered < count - 10 and time.monotonic() - began < TIMEOUT_S:
                await trio.sleep(0.05)
                delivered = int((await trio.to_thread.run_sync(bridge.rows))[0]["delivered"])
            took, used = time.monotonic() - began, processor_s(pid) - used
            bridge.kill()
            mock.close()
    return row("kafka-sink", delivered - first, used, took)


async def rates(count: int, only: str) -> None:
    """Print the table of rates, or the rows whose kind has this prefix."""
    print(
        "| kind | messages of 256 B | a second of processor time | a second on the clock | bar |\n|---|---|---|---|---|"
    )
    for kind in ("mqtt", "Mosquitto's own bridge, QoS 1", "mqtt, exactly once", "Mosquitto's own bridge, QoS 2"):
        if kind.startswith(only):
            print(await rate_between_brokers(kind, count), flush=True)
    if "kafka-sink".startswith(only):
        print(await rate_to_kafka(count), flush=True)


async def latency(seconds: float) -> None:
    """Print P50 and P99 of PUBACK to record at a steady rate."""
    count = int(RATE * seconds)
    acknowledged: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        async with running_mosquitto(Path(name), further=FAST) as near, gathering(near.port, "publisher") as user:
            mock = kafka_mock.KafkaMock(1, {"upload": 4})
            bridge = BridgeProcess(Path(name), kafka_settings(near.port, mock.bootstraps))
            bridge.start()
            await bridge.ready()
            found = Path(name) / "arrivals.json"
            words = [sys.executable, "-m", "bench.arrivals", mock.bootstraps, str(count), str(found)]
            consumer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert consumer.stdout is not None
            await trio.to_thread.run_sync(consumer.stdout.readline)  # it reads

            class Noting(dict[int, int]):
                def __setitem__(self, token: int, code: int) -> None:
                    acknowledged[token] = time.monotonic()

            user.codes = Noting()
            assert user.client is not None
            began, sent = trio.current_time(), 0
            while sent < count:
                due = int((trio.current_time() - began) * RATE)
                while sent < min(due, count) and user.client.has_capacity:
                    body = sent.to_bytes(8, "big") + PAYLOAD[8:]
                    user.client.publish(Publish(f"f/{sent % 50}", body, 1), sent)
                    sent += 1
                await trio.sleep(0.002)
            took = trio.current_time() - began
            with trio.move_on_after(LAST_S):
                while consumer.poll() is None:
                    await trio.sleep(0.05)
            await trio.to_thread.run_sync(partial(consumer.communicate, timeout=TIMEOUT_S))
            bridge.kill()
            mock.close()
            arrived = {int(number): float(at) for number, at in json.loads(found.read_text()).items()}
    settled = int(RATE * 2)  # of the first 2 s: the mock's and the consumer's start
    waits = [1e3 * (at - acknowledged[n]) for n, at in arrived.items() if n >= settled and n in acknowledged]
    p50, p99 = statistics.median(waits), statistics.quantiles(waits, n=100)[98]
    print(
        f"PUBACK to record: {len(arrived)} of {count} records at {count / took:,.0f} msg/s: P50 {p50:.1f} ms, "
        f"P99 {p99:.1f} ms (bar {LATENCY_BAR_MS:g} ms: {check('PUBACK to record', p99 <= LATENCY_BAR_MS)})"
    )


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("rates", "latency", "faults", "frozen", "away"))
    parser.add_argument("--kind", default="", help="of rates: rows whose kind begins so")
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="that the other side is away")
    options = parser.parse_args()
    parts: dict[str, Callable[[], Awaitable[None]]] = {
        "rates": partial(rates, options.messages, options.kind),
        "latency": partial(latency, LATENCY_S),
        "faults": partial(beside_mosquitto, check),
        "frozen": partial(frozen, check),
        "away": partial(away, check, options.seconds),
    }
    for part, run in parts.items():
        if part == options.only or (options.only is None and part != "away"):
            print(f"{part}:", flush=True)
            trio.run(run)
    print(f"missed: {', '.join(missed)}" if missed else "every bar held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
