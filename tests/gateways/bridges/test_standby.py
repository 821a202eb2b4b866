"""Two processes for one bridge: one is active, the other takes over, and never both."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from random import Random

import pytest
import trio

from gateways.presence import Presence
from mqtt.packets import Publish
from tests.gateways.bridges.fault_run import BridgeProcess, settings
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto


def test_presence_takeover_times() -> None:
    presence = Presence(Random(1))
    assert presence.takes_over_at() == math.inf
    presence.connected(100.0)
    assert 100.5 <= presence.takes_over_at() <= 100.7, "no message was retained"
    presence.received(100.1, b"1 7")
    assert 115.1 <= presence.takes_over_at() <= 115.3, "a will may be lost"
    presence.received(110.0, b"0")
    assert 110.0 <= presence.takes_over_at() <= 110.2
    presence.disconnected()
    assert presence.takes_over_at() == math.inf, "a disconnected standby does not take over"


def state(process: BridgeProcess) -> str:
    rows = process.rows()
    return str(rows[0]["state"]) if rows and not rows[0]["waits_for"] else ""


async def until(process: BridgeProcess, wanted: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while await trio.to_thread.run_sync(state, process) != wanted:
            await trio.sleep(0.02)


@pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
async def test_standby_takes_over_after_kill(tmp_path: Path) -> None:
    """After kill -9 within 3 s without loss, and after SIGTERM; the returning process becomes a standby."""
    for name in ("near", "far", "one", "two"):
        (tmp_path / name).mkdir()
    async with (
        running_mosquitto(tmp_path / "near") as near,
        running_mosquitto(tmp_path / "far") as far,
        gathering(far.port, "reader", "f/#") as reader,
    ):
        lines = 'group = "g"\npresence = "presence/g"'
        text = settings(near.port, far.port, lines)
        pair = [BridgeProcess(tmp_path / name, text) for name in ("one", "two")]
        for number, process in enumerate(pair):
            named = process.file.read_text().replace("[gateway]", f'[gateway]\nid = "process-{number}"')
            process.file.write_text(named)
        one, two = pair
        try:
            one.start()
            await until(one, "active")
            two.start()
            await until(two, "standby")
            await publish_all(near.port, [Publish(f"f/{number % 3}", b"%d" % number, 1) for number in range(100)])
            one.kill()
            await until(two, "active")
            one.start()
            await publish_all(near.port, [Publish(f"f/{number % 3}", b"%d" % number, 1) for number in range(100, 200)])
            await until(one, "standby")
            assert await trio.to_thread.run_sync(two.kill, signal.SIGTERM) == 0
            await until(one, "active")
            await publish_all(near.port, [Publish("f/0", b"200", 1)])
            payloads = await reader.payloads(201)
        finally:
            for process in pair:
                if process.process is not None and process.process.poll() is None:
                    process.kill()
    assert {int(payload) for payload in payloads} == set(range(201))
