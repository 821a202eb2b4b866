"""``python -m bench.bridges``: messages a second of processor time of a bridge, between a Mosquitto and its other side.

Messages wait in the bridge's session before it starts, so that nobody but the bridge sets the pace. Processor time is
that of the bridge's process alone; the rate on the clock is shown beside it, and is bounded by the brokers' own windows
(Mosquitto has 20 messages in flight).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import trio

from mqtt.packets import Publish
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess, settings
from tests.gateways.bridges.publishing import publish_all
from tests.stratamq.history.mosquitto import running_mosquitto

PAYLOAD = bytes(256)
TIMEOUT_S = 120.0


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
window_messages = 2000
[[bridge.under.map]]
filter = "f/#"
topic = "upload"
key = "{{level.2}}"
"""


async def measure(kind: str, count: int) -> str:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "near").mkdir()
        (folder / "far").mkdir()
        async with running_mosquitto(folder / "near") as near, running_mosquitto(folder / "far") as far:
            mock = kafka_mock.KafkaMock(1, {"upload": 4}) if kind == "kafka-sink" else None
            lines = settings(near.port, far.port, "").replace("window_messages = 64", "window_messages = 2000")
            text = kafka_settings(near.port, mock.bootstraps) if mock else lines.replace("out 2", "out 1")
            bridge = BridgeProcess(folder, text)
            bridge.start()
            await bridge.ready()
            bridge.kill()
            await publish_all(near.port, [Publish(f"f/{number % 50}", PAYLOAD, 1) for number in range(count)])
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
            if mock is not None:
                mock.close()
    moved = delivered - first
    return f"| {kind} | {moved} | {moved / used:,.0f} | {moved / took:,.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=30_000)
    options = parser.parse_args()
    print("| kind | messages of 256 B | a second of processor time | a second on the clock |\n|---|---|---|---|")
    for kind in ("mqtt", "kafka-sink"):
        print(trio.run(measure, kind, options.messages), flush=True)


if __name__ == "__main__":
    main()
