"""Bridges under faults, for ``python -m bench.bridges``: beside Mosquitto's own, with a hung bridge, with a side
down.

*faults*: the same faults for both: the link reset, the far broker stopped for a second, the link cut for 5 s,
the bridging process killed (Mosquitto's own bridge dies with its broker, which keeps a database). *frozen*: two
bridges of one process, alternately with the sink of one hung or not. *away*: the memory of one process with
three bridges while their targets are down.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from mqtt.packets import Publish
from tests.chaos.fault_proxy import TcpFaultProxy
from tests.gateways.bridges import kafka_mock
from tests.gateways.bridges.fault_run import BridgeProcess, settings
from tests.gateways.bridges.publishing import Gatherer, gathering, publish_all
from tests.stratamq.history.mosquitto import Mosquitto, running_mosquitto

__all__ = ["away", "beside_mosquitto", "frozen", "mosquitto_bridge"]

Check = Callable[[str, bool], str]
FAULTS = ("reset",) * 5 + ("stop",) * 5 + ("cut",) * 2 + ("kill",) * 5
GAP_S = 0.005  # between two messages
MOVED_S_MAX = 45.0
STOP_S, CUT_S = 1.0, 5.0
FROZEN_ROUNDS, FROZEN_MESSAGES = 5, 20_000
FROZEN_BAR = 0.95
AWAY_GAP_S = 0.02
FLAT_BAR, SETTLED_S = 1.05, 60.0


def mosquitto_bridge(port: int, qos: int) -> tuple[str, ...]:
    """Return the lines of a Mosquitto that bridges to another broker."""
    return (
        "connection own",
        f"address 127.0.0.1:{port}",
        f"topic f/# out {qos}",
        "bridge_protocol_version mqttv50",
        "cleansession false",
        "restart_timeout 1 5",
        "keepalive_interval 5",
    )


@dataclass
class Run:
    """Counts of one bridge under the faults.

    Attributes:
        goes_on: Fault -> seconds from its end to the next new message.
    """

    published: int = 0
    counts: Counter[bytes] = field(default_factory=Counter)
    goes_on: dict[str, list[float]] = field(default_factory=dict)


async def _publish(user: Gatherer, run: Run, working: trio.Event) -> None:
    assert user.client is not None
    while not working.is_set():
        if user.client.is_connected and user.client.has_capacity:
            run.published += 1
            user.client.publish(Publish(f"f/{run.published % 4}", b"%d" % run.published, 1), run.published)
        await trio.sleep(GAP_S)


async def _one(own: bool) -> Run:
    """Run one bridge through all faults."""
    run = Run()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side in ("near", "far"):
            (folder / side).mkdir()
        async with running_mosquitto(folder / "far") as far, trio.open_nursery() as nursery:
            proxy = TcpFaultProxy(("127.0.0.1", far.port), 1)
            door = await nursery.start(proxy.run)
            lines = mosquitto_bridge(door, 1) if own else ()
            async with (
                running_mosquitto(folder / "near", persistence=True, further=lines) as near,
                gathering(far.port, "reader", "f/#") as reader,
                gathering(near.port, "writer") as writer,
            ):
                bridge = BridgeProcess(folder, settings(near.port, door, "").replace("out 2", "out 1"))
                if not own:
                    bridge.start()
                    await bridge.ready()
                await trio.sleep(2.0)  # for Mosquitto's own bridge
                over = trio.Event()
                nursery.start_soon(_publish, writer, run, over)
                for fault in FAULTS:
                    await trio.sleep(0.5)
                    await _fault(fault, proxy, far, near if own else bridge)
                    seen, since = len(reader.messages), time.monotonic()
                    with trio.move_on_after(MOVED_S_MAX):
                        while len(reader.messages) == seen:
                            await trio.sleep(0.005)
                    run.goes_on.setdefault(fault, []).append(time.monotonic() - since)
                over.set()
                await reader.payloads(run.published, 20)
                await trio.sleep(1.0)  # until repeats arrived
                run.counts = Counter(packet.payload for packet in reader.messages)
                if not own:
                    bridge.kill()
            nursery.cancel_scope.cancel()
    return run


async def _fault(fault: str, proxy: TcpFaultProxy, far: Mosquitto, bridging: Mosquitto | BridgeProcess) -> None:
    """Let one fault happen, and be over."""
    if fault == "reset":
        proxy.reset()
    elif fault == "stop":
        far.pause(signal.SIGSTOP)
        await trio.sleep(STOP_S)
        far.pause(signal.SIGCONT)
    elif fault == "cut":
        proxy.cut()
        await trio.sleep(CUT_S)
        proxy.heal()
    elif isinstance(bridging, Mosquitto):
        await bridging.kill()
        await bridging.start()
    else:
        bridging.kill()
        bridging.start()


async def beside_mosquitto(check: Check) -> None:
    """Print each bridge's lost and repeated messages, and its recovery time."""
    print("| bridge | published | lost | twice | goes on after: reset | stop | cut | kill |")
    print("|---|---|---|---|---|---|---|---|")
    for own in (False, True):
        run = await _one(own)
        lost = run.published - len(run.counts)
        twice = sum(count > 1 for count in run.counts.values())
        shown = " | ".join(f"{statistics.median(each):.2f} s, at most {max(each):.2f}" for each in run.goes_on.values())
        print(f"| {'Mosquitto' if own else 'stratamq'} | {run.published} | {lost} | {twice} | {shown} |", flush=True)
        if not own:
            check("0 lost in faults", lost == 0)


# A hung sink


def _two(near: int, healthy: int, still: int) -> str:
    """Return two bridges of one process, each with its own far broker."""
    first = settings(near, healthy, "notifications = false").replace("window_messages = 64", "window_messages = 1000")
    second = first.replace("bridge.under", "bridge.still").replace('"under-test"', '"still"')
    second = second.replace("f/#", "s/#").replace(str(healthy), str(still))
    return (first + second).replace("out 2", "out 1")


async def frozen(check: Check) -> None:
    """Print the rate of one bridge while its neighbour's sink hangs, and while it is idle."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    fast = ("max_inflight_messages 1000",)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side in ("near", "healthy", "still"):
            (folder / side).mkdir()
        async with (
            running_mosquitto(folder / "near", further=fast) as near,
            running_mosquitto(folder / "healthy", further=fast) as healthy,
            running_mosquitto(folder / "still", further=fast) as still,
        ):
            bridge = BridgeProcess(folder, _two(near.port, healthy.port, still.port))
            bridge.start()
            await bridge.ready()
            for number in range(2 * FROZEN_ROUNDS):
                stands = bool((number + number // 2) % 2)
                if stands:
                    still.pause(signal.SIGSTOP)
                    await publish_all(near.port, [Publish("s/1", bytes(256), 1)] * 2000)
                rates[stands].append(await _rate(near.port, healthy))
                if stands:
                    still.pause(signal.SIGCONT)
                    await trio.sleep(1.0)  # for its own messages to leave
            bridge.kill()
    ratio = statistics.median(with_it / without for without, with_it in zip(rates[False], rates[True], strict=True))
    medians = {stands: statistics.median(each) for stands, each in rates.items()}
    print(
        f"one bridge beside a sink that stands still: {medians[True]:,.0f} msg/s, beside an idle one "
        f"{medians[False]:,.0f}; {ratio:.3f} of it by turns (bar {FROZEN_BAR}: "
        f"{check('beside a frozen sink', ratio >= FROZEN_BAR)})"
    )


async def _rate(near: int, healthy: Mosquitto) -> float:
    """Return the rate at which waiting messages pass the healthy bridge."""
    count = FROZEN_MESSAGES
    words = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(healthy.port), "-t", "f/#", "-q", "1", "-C", str(count)]
    reader = subprocess.Popen([*words, "-V", "311"], stdout=subprocess.DEVNULL)
    await trio.sleep(0.5)  # for its subscription
    healthy.pause(signal.SIGSTOP)
    await publish_all(near, [Publish(f"f/{number % 50}", bytes(256), 1) for number in range(count)])
    began = time.monotonic()
    healthy.pause(signal.SIGCONT)
    if await trio.to_thread.run_sync(partial(reader.wait, 60)):
        raise RuntimeError("the subscriber failed")
    return count / (time.monotonic() - began)


# A side that is away


def _kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@asynccontextmanager
async def _three(folder: Path) -> AsyncIterator[tuple[BridgeProcess, Mosquitto, Mosquitto, kafka_mock.KafkaMock]]:
    """Run one process: a bridge at QoS 1, one exactly once, one to Kafka."""
    for side in ("near", "far"):
        (folder / side).mkdir()
    async with running_mosquitto(folder / "near") as near, running_mosquitto(folder / "far") as far:
        mock = kafka_mock.KafkaMock(1, {"upload": 4})
        first = settings(near.port, far.port, "").replace("out 2", "out 1")
        second = settings(near.port, far.port, "exactly_once = true", '"g/# out 2"')
        second = second.replace("bridge.under", "bridge.once").replace('"under-test"', '"once"')
        third = f"""
[bridge.kafka]
kind = "kafka-sink"
cluster = ["mqtt://127.0.0.1:{near.port}"]
client_id = "kafka"
brokers = ["{mock.bootstraps}"]
[[bridge.kafka.map]]
filter = "h/#"
topic = "upload"
"""
        bridge = BridgeProcess(folder, first + second + third)
        bridge.start()
        try:
            await bridge.ready()
            yield bridge, near, far, mock
        finally:
            bridge.kill()
            mock.close()


async def away(check: Check, seconds: float) -> None:
    """Print the memory of a process with three bridges while the far broker and Kafka are away."""
    with tempfile.TemporaryDirectory() as name:
        async with _three(Path(name)) as (bridge, near, far, mock), gathering(near.port, "writer") as writer:
            assert bridge.process is not None and writer.client is not None
            await far.kill()
            mock.down(1)
            began, sent, shown, found = trio.current_time(), 0, 0.0, list[tuple[float, int]]()
            while (passed := trio.current_time() - began) < seconds:
                for letter, qos in (("f", 1), ("g", 2), ("h", 1)):
                    sent += 1
                    if writer.client.has_capacity:
                        writer.client.publish(Publish(f"{letter}/{sent % 50}", bytes(256), qos), sent)
                found.append((passed, _kib(bridge.process.pid)))
                if passed >= shown:
                    print(f"  {passed:5.0f} s: {found[-1][1] / 1024:.1f} MiB, {sent} published", flush=True)
                    shown += max(10.0, seconds / 20)
                await trio.sleep(AWAY_GAP_S)
            await far.start()
            mock.up(1)
            with trio.move_on_after(60):
                while (rows := await trio.to_thread.run_sync(bridge.rows)) and any(
                    row["waits_for"] or row["window"] for row in rows
                ):
                    await trio.sleep(0.5)
    settled = next(size for at, size in found if at >= min(SETTLED_S, seconds / 4))
    most = max(size for at, size in found if at >= min(SETTLED_S, seconds / 4))
    print(
        f"memory while the other sides are away for {seconds:.0f} s, {sent} messages published: "
        f"{settled / 1024:.1f} MiB after the first {min(SETTLED_S, seconds / 4):.0f} s, "
        f"at most {most / 1024:.1f} later "
        f"(bar {FLAT_BAR}: {check('flat memory', most <= FLAT_BAR * settled)}); then: "
        + ", ".join(f"{row['bridge']} delivered {row['delivered']}" for row in rows)
    )
