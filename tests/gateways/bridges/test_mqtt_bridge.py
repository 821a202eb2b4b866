"""A bridge process between two Mosquittos: killed, refused, checked, tried, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.chaos.fault_proxy import TcpFaultProxy
from tests.gateways.bridges.fault_run import BridgeProcess, fault_run, settings
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "stratamq", "bridge", *arguments, "--config", str(folder / "bridge.toml")]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)


async def test_killed_while_it_works(tmp_path: Path) -> None:
    """In the history of both sides no message is lost, and order holds; fault_run repeats this hundreds of times."""
    outcome = await fault_run(tmp_path, kills=2, stops=1, each=80)
    assert outcome.verdict.clean, [finding.message for finding in outcome.verdict.findings[:5]]
    assert outcome.received == outcome.published == 320


@pytest.mark.slow
async def test_killed_a_hundred_times(tmp_path: Path) -> None:
    outcome = await fault_run(tmp_path, kills=100, stops=20)
    assert outcome.verdict.clean, [finding.message for finding in outcome.verdict.findings[:5]]


async def test_bridge_commands_and_clean_shutdown(tmp_path: Path) -> None:
    """Several commands around one process."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    async with running_mosquitto(tmp_path / "near") as near, running_mosquitto(tmp_path / "far") as far:
        bridge = BridgeProcess(tmp_path, settings(near.port, far.port, ""))
        checked = await trio.to_thread.run_sync(command, tmp_path, "check", "-o", "json")
        assert checked.returncode == 0, checked.stderr
        assert [row["ok"] for row in json.loads(checked.stdout)] == [True, True]
        tried = await trio.to_thread.run_sync(
            command, tmp_path, "try", "--topic", "f/1", "--payload", "x", "-o", "json"
        )
        assert json.loads(tried.stdout)[0]["target"] == "f/1"
        status = await trio.to_thread.run_sync(command, tmp_path, "status")
        assert status.returncode == 4 and "no bridge process responds" in status.stderr
        bridge.start()
        await bridge.ready()
        shown = await trio.to_thread.run_sync(command, tmp_path, "status", "-o", "json")
        assert json.loads(shown.stdout)[0]["state"] == "active"
        second = await trio.to_thread.run_sync(command, tmp_path)
        assert second.returncode == 1 and "in use by another process" in second.stderr
        assert "Traceback" not in second.stderr
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
        assert "Traceback" not in bridge.log.read_text()
    checked = await trio.to_thread.run_sync(command, tmp_path, "check", "-o", "json")
    assert checked.returncode == 1 and not any(row["ok"] for row in json.loads(checked.stdout))


async def test_bridge_is_ready_after_filters_are_granted(tmp_path: Path) -> None:
    """A message published as soon as a bridge is ready is received, also in a new session."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    async with running_mosquitto(tmp_path / "near") as near, running_mosquitto(tmp_path / "far") as far:
        proxy = TcpFaultProxy(("127.0.0.1", near.port), seed=1)
        async with trio.open_nursery() as nursery:
            port = await nursery.start(proxy.run)
            proxy.to_client.set(byte_budget=12)  # CONNACK, and a part of the next packet
            bridge = BridgeProcess(tmp_path, settings(port, far.port, "notifications = false"))
            bridge.start()
            with trio.fail_after(PATIENCE_S):
                while True:
                    rows = await trio.to_thread.run_sync(bridge.rows)
                    if rows and "has not answered SUBSCRIBE" in rows[0]["waits_for"]:
                        break
                    await trio.sleep(0.05)
            proxy.heal()
            await bridge.ready()
            assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
            nursery.cancel_scope.cancel()


async def test_bridge_waiting_does_not_affect_other_bridge(tmp_path: Path) -> None:
    """Two bridges of one process; the remote broker of one does not support TLS."""
    (tmp_path / "far").mkdir()
    async with running_mosquitto(tmp_path / "far") as far:
        text = settings(far.port, far.port, "notifications = false")
        text = text.replace('client_id = "under-test"', 'client_id = "near"').replace(
            "[bridge.under.remote]", '[bridge.under.remote]\nclient_id = "far"'
        )
        broken = text.replace("bridge.under", "bridge.broken").replace('"near"', '"a"').replace('"far"', '"b"')
        broken = broken.replace('["f/# out 2"]', "[\"f/# out 2 x/ ''\"]").replace(
            'addresses = ["mqtt://', 'protocol = "5"\naddresses = ["mqtts://'
        )
        bridge = BridgeProcess(tmp_path, text + broken)
        bridge.start()
        with trio.fail_after(PATIENCE_S):
            while True:
                rows = {row["bridge"]: row for row in await trio.to_thread.run_sync(bridge.rows)}
                if rows and not rows["under"]["waits_for"] and "remote" in rows["broken"]["waits_for"]:
                    break
                await trio.sleep(0.05)
        assert rows["under"]["state"] == "active"
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
