"""Start modes of a bridge, and bridges with several members, as processes between two Mosquittos."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mqtt.packets import Publish
from tests.gateways.bridges.fault_run import BridgeProcess, settings
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, Mosquitto, running_mosquitto

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
MEMBERS = 3


@asynccontextmanager
async def brokers(folder: Path) -> AsyncIterator[tuple[Mosquitto, Mosquitto]]:
    for name in ("near", "far"):
        (folder / name).mkdir()
    async with running_mosquitto(folder / "near") as near, running_mosquitto(folder / "far") as far:
        yield near, far


async def waits(bridge: BridgeProcess, wanted: str, window: int) -> None:
    """Wait until a process's only bridge has this status text, and this many open messages."""
    with trio.fail_after(PATIENCE_S):
        while True:
            rows = await trio.to_thread.run_sync(bridge.rows)
            if rows and rows[0]["window"] == window and wanted in rows[0]["waits_for"]:
                return
            await trio.sleep(0.05)


async def test_lazy_bridge_connects_on_backlog_and_disconnects_when_idle(tmp_path: Path) -> None:
    """Twice; fewer messages stay at the cluster, also over a kill, and none is lost."""
    lines = 'start = "lazy"\nlazy_messages = 5\nlazy_idle_s = 1.0\nnotifications = false'
    async with brokers(tmp_path) as (near, far), gathering(far.port, "reader", "f/#") as reader:
        bridge = BridgeProcess(tmp_path, settings(near.port, far.port, lines))
        bridge.start()
        await waits(bridge, "lazy: too few messages wait", 0)
        for begin in (0, 10):
            await publish_all(near.port, [Publish("f/1", b"%d" % number, 1) for number in range(begin, begin + 4)])
            await waits(bridge, "lazy: too few messages wait", 4)
            bridge.kill()
            bridge.start()
            await waits(bridge, "lazy: too few messages wait", 4)
            assert len(reader.messages) == begin
            await publish_all(near.port, [Publish("f/1", b"%d" % number, 1) for number in range(begin + 4, begin + 10)])
            assert await reader.payloads(begin + 10) == [b"%d" % number for number in range(begin + 10)]
            await waits(bridge, "lazy: too few messages wait", 0)
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0


async def test_once_bridge_ends_with_first_connection(tmp_path: Path) -> None:
    async with brokers(tmp_path) as (near, far):
        bridge = BridgeProcess(tmp_path, settings(near.port, far.port, 'start = "once"\nnotifications = false'))
        bridge.start()
        await bridge.ready()
        async with gathering(far.port, "reader", "f/#") as reader:
            await publish_all(near.port, [Publish("f/1", b"x", 1)])
            assert await reader.payloads(1) == [b"x"]
        await far.kill()
        assert bridge.process is not None
        assert await trio.to_thread.run_sync(bridge.process.wait, PATIENCE_S) == 0
        assert "Traceback" not in bridge.log.read_text()


async def test_shared_members_divide_messages(tmp_path: Path) -> None:
    """Each message passes through one member; after a kill none is lost."""
    folder, count = tmp_path / "archive", 300
    text = f"""
[bridge.under]
kind = "files"
cluster = ["mqtt://127.0.0.1:PORT"]
client_id = "under"
shares = {MEMBERS}
folder = "{folder}"
rotate_s = 0.5
[[bridge.under.map]]
filter = "u/#"
"""
    import pyarrow.parquet

    def rows() -> list[int]:
        tables = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))]
        return [int(row["payload"]) for table in tables for row in table.to_pylist()]

    async with running_mosquitto(tmp_path) as near:
        bridge = BridgeProcess(tmp_path, text.replace("PORT", str(near.port)))
        bridge.start()
        await bridge.ready()
        await publish_all(near.port, [Publish("u/1", b"%d" % number, 1) for number in range(count)])
        with trio.fail_after(PATIENCE_S):
            while len(found := await trio.to_thread.run_sync(rows)) < count:
                await trio.sleep(0.1)
        assert sorted(found) == list(range(count)), "each once"
        shown = await trio.to_thread.run_sync(bridge.rows)
        taken = [row["delivered"] for row in shown]
        assert len(taken) == MEMBERS and sum(taken) == count and all(taken), json.dumps(shown)
        await publish_all(near.port, [Publish("u/1", b"%d" % number, 1) for number in range(count, 2 * count)])
        bridge.kill()
        bridge.start()
        with trio.fail_after(PATIENCE_S):
            while set(await trio.to_thread.run_sync(rows)) != set(range(2 * count)):
                await trio.sleep(0.1)
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
