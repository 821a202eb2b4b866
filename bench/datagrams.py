"""Sealed messages through one datagram node: the rate, and the cost of each.

    python -m bench.datagrams                      10 s of QoS 1 from eight devices, one subscriber and none
    python -m bench.datagrams --loss 0 0.01 0.05 --rate 1000   at a rate, behind a relay that loses datagrams, both ways

Each message has a number, and exit code 1 means that an answered one is missing at a subscriber.

A real node in its own process, over loopback; the devices are our own cores in one other process, which is
loaded as well: where the node waits for them, its rate is below its maximum, ``1 / CPU time``.
"""

import argparse
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio
from msgspec import Struct

from bench.datagram_relay import running_relay
from gateways.datagrams.device import Device
from gateways.datagrams.messages import Code, Datagram, Endpoint
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sealed import SealedPort
from gateways.datagrams.sockets import DatagramSocket, bind_udp, endpoint_of
from gateways.datagrams.subscribers import DatagramPeer

DEVICES = 8
OPEN = 32  # of each device: fits into a subscriber's in-flight and pending limits (64 and 256)
BYTES = 100
DRAIN_S = 70.0  # longer than a device tries one message
IDLE_S = 0.0005  # without input: a busy generator takes the node's CPU time
TICKS_S = os.sysconf("SC_CLK_TCK")


class Row(Struct):
    """The result of one setting; ``lost`` is of the answered messages, summed over subscribers."""

    subscribers: int
    rate: float
    cost_us: float
    p50_ms: float
    p99_ms: float
    answered: int
    unanswered: int
    lost: int
    twice: int

    def line(self, loss: float) -> str:
        """Return it as a row of a table."""
        return (
            f"| {loss:.0%} | {self.subscribers} | {self.rate:,.0f} | {self.cost_us:.1f} | {1e6 / self.cost_us:,.0f}"
            f" | {self.p50_ms:.1f} | {self.p99_ms:.1f} | {self.answered:,} | {self.unanswered} | {self.lost}"
            f" | {self.twice} |"
        )


HEAD = (
    "| loss each way | subscribers | answered/s | node us/message | 1 / that | P50 ms | P99 ms | answered | not |"
    " lost | twice |"
)


class Generator:
    """One device that keeps messages in flight, and their outcomes.

    Attributes:
        answered: Numbers of its messages that a node has answered as distributed.
        received: Number of arrivals of each foreign message, by number.
    """

    def __init__(self, node: Endpoint, name: str, key: bytes, first: int) -> None:
        self.device = Device((node,), time.time_ns() // 1000 << 8)
        self.port = DatagramSocket(bind_udp("127.0.0.1", 0), SealedPort({}, name, key))
        self.failed = 0
        self.answered: list[int] = []
        self.received: Counter[int] = Counter()
        self.latencies: list[float] = []
        self._began: dict[int, float] = {}
        self._arrived: list[tuple[Endpoint, Datagram]] = []
        self._next = first

    @property
    def open(self) -> int:
        """Messages that are not answered."""
        return len(self._began)

    def publish(self, now: float, topic: str) -> None:
        """Send one message, which has its number in front."""
        self._next += 1
        self._began[self._next] = now
        self.device.publish(now, self._next, topic, self._next.to_bytes(8, "big").ljust(BYTES, b"\0"), 1)

    def step(self, now: float, topic: str) -> bool:
        """Read input, publish as many messages as were answered, and send; return whether input arrived."""
        self.port.read(now, self._received)
        arrived, self._arrived = self._arrived, []
        while topic and len(self._began) < OPEN:
            self.publish(now, topic)
        ready = self.device.handle(now, arrived)
        for outcome in ready.outcomes:
            began = self._began.pop(outcome.ref, None)
            if outcome.code == Code.DISTRIBUTED and began is not None:
                self.answered.append(outcome.ref)
                self.latencies.append(now - began)
            elif outcome.code != Code.SUBSCRIBED:
                self.failed += 1
        for message in ready.delivered:
            self.received[int.from_bytes(message.payload[:8], "big")] += 1
        for endpoint, packet in ready.send:
            self.port.send(now, Sent(DatagramPeer(endpoint), packet))
        return bool(arrived)

    def _received(self, peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None:
        del name, is_proved, length
        self._arrived.append((peer.endpoint, packet))


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_S


async def measure(node: Endpoint, pid: int, keys: list[bytes], options: argparse.Namespace, subscribers: int) -> Row:
    """Return the row of one setting."""
    count = DEVICES + subscribers
    devices = [Generator(node, f"d{number}", keys[number], number << 40) for number in range(count)]
    publishers, others = devices[:DEVICES], devices[DEVICES:]
    topic = f"bench/{subscribers}/{node.port}"
    for each in others:
        each.device.subscribe(trio.current_time(), -1, topic, 1)
    await run(devices, lambda: False, 2.0)
    for each in publishers:
        each.publish(trio.current_time(), topic)  # 32 concurrent resolve requests of a device are unrealistic
    await run(devices, lambda: not any(each.open for each in publishers), DRAIN_S)
    warm = [len(each.answered) for each in publishers]
    before, began = processor_s(pid), time.monotonic()
    if options.rate:
        await pace(devices, publishers, topic, options.rate, options.seconds)
    else:
        await run(devices, lambda: False, options.seconds, topic)
    spent, lasted = processor_s(pid) - before, time.monotonic() - began
    done = sum(len(each.answered) for each in publishers) - sum(warm)
    await run(devices, lambda: not any(each.open for each in publishers), DRAIN_S)
    await run(devices, lambda: False, 1.0)
    answered = {number for each in publishers for number in each.answered}
    latencies = sorted(value for each, first in zip(publishers, warm, strict=True) for value in each.latencies[first:])
    return Row(
        subscribers=subscribers,
        rate=done / lasted,
        cost_us=spent / done * 1e6,
        p50_ms=latencies[len(latencies) // 2] * 1e3,
        p99_ms=latencies[int(len(latencies) * 0.99)] * 1e3,
        answered=len(answered),
        unanswered=sum(each.failed + each.open for each in publishers),
        lost=sum(len(answered - each.received.keys()) for each in others),
        twice=sum(many > 1 for each in others for many in each.received.values()),
    )


async def run(devices: list[Generator], is_over: Callable[[], bool], seconds: float, topic: str = "") -> None:
    """Let devices go on; the first of them publish, if there is a topic."""
    end = trio.current_time() + seconds
    while (now := trio.current_time()) < end and not is_over():
        came = [each.step(now, topic if number < DEVICES else "") for number, each in enumerate(devices)]
        await (trio.lowlevel.checkpoint() if any(came) else trio.sleep(IDLE_S))


async def pace(devices: list[Generator], publishers: list[Generator], topic: str, rate: float, seconds: float) -> None:
    """Publish at a rate, regardless of answers."""
    began, sent, turn = trio.current_time(), 0, itertools.cycle(publishers)
    while (now := trio.current_time()) < began + seconds:
        while sent < (now - began) * rate:
            next(turn).publish(now, topic)
            sent += 1
        came = [each.step(now, "") for each in devices]
        await (trio.lowlevel.checkpoint() if any(came) else trio.sleep(IDLE_S))


def main() -> int:
    """Print a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--subscribers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--loss", type=float, nargs="+", default=[0.0])
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second; 0: as many as are answered")
    options = parser.parse_args()
    rows: list[Row] = []
    names = [f"d{number}" for number in range(DEVICES + max(options.subscribers))]
    keys = [secrets.token_bytes(32) for _ in names]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "keys").write_text("".join(f"{name} {key.hex()}\n" for name, key in zip(names, keys, strict=True)))
        (folder / "roles.toml").write_text('[roles.device]\npublish = ["#"]\nsubscribe = ["#"]\n')
        (folder / "node.toml").touch()
        for path in folder.iterdir():
            path.chmod(0o600)
        settings = [f"gateway.data_dir={folder / 'data'}", f"udp.keys_file={folder / 'keys'}", "udp.port=0"]
        settings += [f"udp.roles_file={folder / 'roles.toml'}", "metrics.enabled=false"]
        reader, writer = os.pipe()
        line = [sys.executable, "-m", "stratamq", "gateway", "udp", "--config", str(folder / "node.toml")]
        line += ["--ready-fd", str(writer), *(word for text in settings for word in ("--set", text))]
        with subprocess.Popen(line, pass_fds=(writer,)) as process:
            os.close(writer)
            with os.fdopen(reader) as pipe:
                node = endpoint_of(json.loads(pipe.readline())["addresses"]["udp"])
            print(HEAD, "|---" * (HEAD.count("|") - 1) + "|", sep="\n", flush=True)
            for loss in options.loss:
                for subscribers in options.subscribers:
                    with ExitStack() as stack:
                        at = node
                        if loss:
                            at = endpoint_of(f"127.0.0.1:{stack.enter_context(running_relay(str(node), loss))}")
                        rows.append(trio.run(measure, at, process.pid, keys, options, subscribers))
                        print(rows[-1].line(loss), flush=True)
            process.terminate()
    return 1 if any(each.lost or not each.answered for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
