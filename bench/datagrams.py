"""Sealed messages through one datagram node: how many a second, and what each costs.

    python -m bench.datagrams                      10 s of QoS 1 from eight devices, one subscriber and none
    python -m bench.datagrams --loss 0 0.01 0.05   the same behind a relay that loses datagrams, both ways

A real node in a process of its own, over loopback; the devices are our own cores in one process beside it, which has
work as well: where the node waits for them, its rate is not its most, and ``1 / processor time`` says what it could.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import trio

from bench.datagram_relay import running_relay
from gateways.datagrams.device import Device
from gateways.datagrams.messages import Code, Endpoint, Packet
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sealed import SealedPort
from gateways.datagrams.sockets import DatagramSocket, bind_udp, endpoint_of
from gateways.datagrams.subscribers import Peer

DEVICES = 8
OPEN = 64  # of each device
PAYLOAD = bytes(100)
TICKS_S = os.sysconf("SC_CLK_TCK")


class Generator:
    """One device that keeps messages open, and what became of them."""

    def __init__(self, node: Endpoint, name: str, key: bytes) -> None:
        self.device = Device((node,), time.time_ns() // 1000 << 8)
        self.port = DatagramSocket(bind_udp("127.0.0.1", 0), SealedPort({}, name, key))
        self.done = self.failed = self.delivered = 0
        self.latencies: list[float] = []
        self._began: dict[int, float] = {}
        self._arrived: list[tuple[Endpoint, Packet]] = []
        self._next = 0

    def step(self, now: float, topic: str) -> None:
        """Read what came, publish as many as were answered, and send."""
        self.port.read(now, self._received)
        arrived, self._arrived = self._arrived, []
        while topic and len(self._began) < OPEN:
            self._next += 1
            self._began[self._next] = now
            self.device.publish(now, self._next, topic, PAYLOAD, 1)
        ready = self.device.handle(now, arrived)
        for outcome in ready.outcomes:
            began = self._began.pop(outcome.ref, None)
            if outcome.code == Code.DISTRIBUTED and began is not None:
                self.done += 1
                self.latencies.append(now - began)
            elif outcome.code != Code.SUBSCRIBED:
                self.failed += 1
        self.delivered += len(ready.delivered)
        for endpoint, packet in ready.send:
            self.port.send(now, Sent(Peer(endpoint), packet))

    def _received(self, peer: Peer, name: str, is_proved: bool, packet: Packet, length: int) -> None:
        del name, is_proved, length
        self._arrived.append((peer.endpoint, packet))


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_S


async def measure(node: Endpoint, pid: int, keys: list[bytes], seconds: float, subscribers: int, what: str) -> str:
    """Return the row of one setting."""
    publishers = [Generator(node, f"d{number}", keys[number]) for number in range(DEVICES)]
    others = [Generator(node, f"d{number}", keys[number]) for number in range(DEVICES, DEVICES + subscribers)]
    topic = f"bench/{subscribers}/{node.port}"
    for each in others:
        each.device.subscribe(trio.current_time(), -1, topic, 1)
    await run(others + publishers, "", 2.0)
    before, began = processor_s(pid), time.monotonic()
    await run(publishers + others, topic, seconds, len(publishers))
    spent, lasted = processor_s(pid) - before, time.monotonic() - began
    done = sum(each.done for each in publishers)
    latencies = sorted(latency for each in publishers for latency in each.latencies)
    p50, p99 = (latencies[int(len(latencies) * share)] * 1e3 for share in (0.5, 0.99))
    failed = sum(each.failed for each in publishers)
    cost = spent / done
    return (
        f"{subscribers} subscribers, {what}: {done / lasted:,.0f} msg/s answered, {failed} not; node"
        f" {cost * 1e6:.1f} us a message ({1 / cost:,.0f} a second of processor); PUBACK P50 {p50:.1f} P99 {p99:.1f}"
        f" ms; delivered {sum(each.delivered for each in others):,}"
    )


async def run(generators: list[Generator], topic: str, seconds: float, publishing: int = 0) -> None:
    """Let devices go on; the first ``publishing`` of them publish."""
    end = trio.current_time() + seconds
    while (now := trio.current_time()) < end:
        for number, each in enumerate(generators):
            each.step(now, topic if number < publishing else "")
        await trio.lowlevel.checkpoint()


def main() -> int:
    """Print a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--subscribers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--loss", type=float, nargs="+", default=[0.0])
    options = parser.parse_args()
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
            for loss in options.loss:
                for subscribers in options.subscribers:
                    with ExitStack() as stack:
                        at = node
                        if loss:
                            at = endpoint_of(f"127.0.0.1:{stack.enter_context(running_relay(str(node), loss))}")
                        what = f"loss {loss:.0%} each way"
                        print(trio.run(measure, at, process.pid, keys, options.seconds, subscribers, what), flush=True)
            process.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
