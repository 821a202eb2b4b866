"""``python -m tests.gateways.bridges.fault_run``: a bridge between two Mosquittos, killed and cut off under load.

Publishers at one broker and a subscriber at the other record one history, which the history checker verifies: each
acknowledged message is delivered, in order; with exactly-once, once.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from stratamq.history.check import judge
from stratamq.history.client import RecordingClient
from stratamq.history.client_options import ClientOptions
from stratamq.history.history import read_history
from stratamq.history.operations import Header, Kind
from stratamq.history.verdict import HistoryVerdict
from stratamq.history.writer import HistoryWriter
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import Mosquitto, running_mosquitto

__all__ = ["BridgeProcess", "Clock", "Outcome", "fault_run"]

READY_S = PATIENCE_S
DRAIN_S = 20.0  # without a new message
MOVED_S_MAX = 10.0  # for the bridge to deliver a message between two kills
TOPICS = 4


class BridgeProcess:
    """``stratamq bridge`` with a configuration file, killed and started by the test."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder, self.file = folder, folder / "bridge.toml"
        head = f'[gateway]\ndata_dir = "{folder}/data"\n[metrics]\nenabled = false\n'
        self.file.write_text(head + text)
        self.log = folder / "bridge.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "stratamq", "bridge", "--config", str(self.file)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `bridge status`; empty while the process does not answer."""
        received = b""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE_S)
                connection.connect(str(self.folder / "data" / "status.sock"))
                while data := connection.recv(65_536):
                    received += data
        except OSError:
            return []
        found: list[dict[str, Any]] = json.loads(received or b"[]")
        return found

    async def ready(self) -> None:
        """Wait until every bridge is active and both sides are up."""
        deadline = time.monotonic() + READY_S
        while True:
            rows = await trio.to_thread.run_sync(self.rows)
            if rows and all(row["state"] == "active" and not row["waits_for"] for row in rows):
                return
            assert self.process is not None and self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, (rows, self.log.read_text()[-2000:])
            await trio.sleep(0.05)


@dataclass
class Outcome:
    """Size and verdict of a run.

    Attributes:
      unexplained: Repeated messages not explained by a fault.
    """

    verdict: HistoryVerdict
    published: int
    received: int
    repeats: int
    unexplained: int = 0


class Clock:
    """ns since the start of the run."""

    def __init__(self) -> None:
        self._began = time.monotonic_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._began


def settings(near: int | Iterable[int], far: int, lines: str, topics: str = '"f/# out 2"') -> str:
    """Return the settings of a bridge from a broker, or the edges of a cluster, by their ports, to another broker."""
    ports = (near,) if isinstance(near, int) else near
    addresses = ", ".join(f'"mqtt://127.0.0.1:{port}"' for port in ports)
    return f"""
[bridge.under]
kind = "mqtt"
cluster = [{addresses}]
client_id = "under-test"
topics = [{topics}]
window_messages = 64
keep_alive_s = 5
{lines}
[bridge.under.remote]
addresses = ["mqtt://127.0.0.1:{far}"]
keep_alive_s = 5
"""


async def fault_run(
    folder: Path, *, kills: int, stops: int = 0, each: int = 100, qos: int = 1, lines: str = "", seed: int = 1
) -> Outcome:
    """Run until every fault has happened and all messages have arrived.

    Args:
      folder: Of the files.
      kills: kill -9 of the bridge.
      stops: Pauses of the other broker for one second.
      each: Messages published between two faults.
      lines: Further settings of the bridge.
    """
    (folder / "near").mkdir()
    (folder / "far").mkdir()
    sink, rng = io.BytesIO(), random.Random(seed)
    async with (
        running_mosquitto(folder / "near") as near,
        running_mosquitto(folder / "far") as far,
        trio.open_nursery() as nursery,
    ):
        writer = HistoryWriter(sink, Header(workload="bridge", seed=seed, broker=("near", "far")))
        clock, received = Clock(), list[str]()

        def client(name: str, broker: Mosquitto) -> RecordingClient:
            options = ClientOptions(silence_s=10.0)
            addresses = (("127.0.0.1", broker.port),)
            take = lambda _client, _topic, payload, _retain: received.append(payload)  # noqa: E731
            return RecordingClient(nursery, writer, clock, name, name, addresses, random.Random(seed), options, take)

        subscriber, publisher = client("subscriber", far), client("publisher", near)
        assert await subscriber.connect() and await publisher.connect()
        granted = subscriber.subscribe("f/#", 2)
        assert granted is not None
        await subscriber.outcome(granted)
        bridge = BridgeProcess(folder, settings(near.port, far.port, lines))
        bridge.start()
        try:
            await bridge.ready()
            faults = ["kill"] * kills + ["stop"] * stops
            rng.shuffle(faults)
            count = 0
            for fault in [*faults, ""]:
                for _ in range(each):
                    count += 1
                    await publisher.publish(f"f/{count % TOPICS}", f"m-{count}", qos)
                if fault == "kill":
                    before = len(received)
                    with trio.move_on_after(MOVED_S_MAX):
                        while len(received) == before:  # a kill before any delivery would test little
                            await trio.sleep(0.01)
                await _fault(fault, bridge, far, rng)
            seen, since = len(received), time.monotonic()
            while (len(set(received)) < count or publisher.session.outbound) and time.monotonic() - since < DRAIN_S:
                await trio.sleep(0.05)
                if len(received) != seen:
                    seen, since = len(received), time.monotonic()
            await trio.sleep(0.3)  # for repeats
            writer.event(clock.now_ns(), Kind.DRAINED)
        finally:
            bridge.kill()
        publisher.give_up()
        subscriber.drop()
        nursery.cancel_scope.cancel()
    path = folder / "history.jsonl"
    path.write_bytes(sink.getvalue())
    return Outcome(judge(read_history(path)), count, len(set(received)), len(received) - len(set(received)))


async def _fault(fault: str, bridge: BridgeProcess, far: Mosquitto, rng: random.Random) -> None:
    if fault == "kill":
        await trio.sleep(rng.uniform(0.0, 0.05))
        bridge.kill()
        bridge.start()
    elif fault == "stop":
        far.pause(signal.SIGSTOP)
        await trio.sleep(1.0)
        far.pause(signal.SIGCONT)


def main() -> int:
    """Run with the counts of the command line; exit code 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines, qos = ("exactly_once = true", 2) if options.exactly_once else ("", 1)
    with tempfile.TemporaryDirectory() as folder:

        async def run() -> Outcome:
            return await fault_run(
                Path(folder),
                kills=options.kills,
                stops=options.stops,
                each=options.each,
                qos=qos,
                lines=lines,
                seed=options.seed,
            )

        outcome = trio.run(run)
    print(f"published {outcome.published}, received {outcome.received}, repeats {outcome.repeats}")
    for finding in outcome.verdict.findings[:20]:
        print(finding.message)
    return 0 if outcome.verdict.clean and outcome.received == outcome.published else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    sys.exit(main())
