"""An exactly-once bridge process: killed between two Mosquittos, and started with invalid spools."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sqlite3
import subprocess
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from conf.bridge_config import load_bridges
from conf.errors import ExitCode, UserError
from gateways.bridges.kinds import build_all
from mqtt.packets import Publish
from tests.gateways.bridges.fault_run import BridgeProcess, fault_run, settings
from tests.gateways.bridges.publishing import gathering, publish_all
from tests.gateways.bridges.test_mqtt_bridge import command
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

pytestmark = pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")

ONCE = "exactly_once = true"
FILE_BYTES = 100_000  # more than the process's log, less than the later writes


async def test_killed_while_it_works(tmp_path: Path) -> None:
    """In the history of both sides no message is lost or repeated, and order holds."""
    outcome = await fault_run(tmp_path, kills=2, stops=1, each=80, qos=2, lines=ONCE)
    assert outcome.verdict.clean, [finding.message for finding in outcome.verdict.findings[:5]]
    assert (outcome.received, outcome.repeats) == (outcome.published, 0)


@pytest.mark.slow
async def test_killed_a_hundred_times(tmp_path: Path) -> None:
    outcome = await fault_run(tmp_path, kills=100, stops=20, qos=2, lines=ONCE)
    assert outcome.verdict.clean, [finding.message for finding in outcome.verdict.findings[:5]]
    assert (outcome.received, outcome.repeats) == (outcome.published, 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ONCE, ""),
        (f"{ONCE}\nclean_start = true", "clean_start = false on both sides"),
        (f"{ONCE}\nsession_expiry_s = 0", "session_expiry_s above 0 on both sides"),
        (f'{ONCE}\ngroup = "g"', "one process"),
        (f'{ONCE}\ntopics = ["f/# out 1"]', "QoS 2 in each of topics"),
    ],
)
def test_exactly_once_missing_requirement_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    whole = settings(1, 1, text)
    if "topics" in text:
        whole = whole.replace('topics = ["f/# out 2"]\n', "", 1)
    config = load_bridges(BridgeProcess(tmp_path, whole).file, environment={})
    if not wanted:
        assert [side.name for side in build_all(config)[0].sides] == ["cluster", "remote", "spool"]
        return
    with pytest.raises(UserError) as refused:
        build_all(config)
    assert wanted in refused.value.message and "\n" not in refused.value.message
    assert refused.value.exit_code == ExitCode.USAGE


def damage_spool(path: Path, how: str) -> None:
    """Modify a spool after a clean shutdown."""
    if how == "damaged":
        content = bytearray(path.read_bytes())
        content[4096:8192] = os.urandom(4096)
        path.write_bytes(content)
        return
    database = sqlite3.connect(path)
    if how == "newer version":
        database.execute("PRAGMA user_version = 99")
    elif how == "invalid row":
        key, value = b"r\x00\x01", b"nonsense"
        checksum = zlib.crc32(value, zlib.crc32(key, zlib.crc32(b"sent")))
        database.execute("INSERT INTO rows VALUES('sent', ?, ?, ?)", (key, value, checksum))
    else:
        database.execute("UPDATE facts SET value = 'bridge another' WHERE name = 'owner'")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("foreign", "belongs to bridge another, not to bridge under-test"),
        pytest.param("newer version", "start the newer program", marks=pytest.mark.slow),
        pytest.param("damaged", "damaged", marks=pytest.mark.slow),
        pytest.param("invalid row", "invalid row", marks=pytest.mark.slow),
    ],
)
async def test_exactly_once_invalid_spool_fails_only_that_bridge(tmp_path: Path, how: str, wanted: str) -> None:
    """One line with the cause and the remedy; the other bridge of the process continues."""
    async with two_bridges(tmp_path) as (bridge, near, far):
        bridge.start()
        await bridge.ready()
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
        damage_spool(tmp_path / "data" / "under.spool", how)
        bridge.start()
        await failed(bridge, wanted)
        async with gathering(far, "gatherer", "o/#") as gatherer:
            await publish_all(near, [Publish("o/1", b"x", 1)])
            assert await gatherer.payloads(1) == [b"x"]
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 1
        lines = [line for line in bridge.log.read_text().splitlines() if wanted in line]
        assert len(lines) == 1 and "Traceback" not in bridge.log.read_text()


async def test_exactly_once_paused_3_1_1_broker_receives_all(tmp_path: Path) -> None:
    """Mosquitto disconnects clients with more than 20 QoS 2 messages in flight, so the bridge reconnected without
    end.
    """
    packets = [Publish("f/x", b"%d" % number, qos=2) for number in range(60)]
    for name in ("near", "far", "data"):
        (tmp_path / name).mkdir()
    async with running_mosquitto(tmp_path / "near") as near, running_mosquitto(tmp_path / "far") as far:
        bridge = BridgeProcess(tmp_path, settings(near.port, far.port, ONCE) + 'protocol = "3.1.1"\n')
        bridge.start()
        try:
            await bridge.ready()
            async with gathering(far.port, "reader", "f/#") as reader:
                far.pause(signal.SIGSTOP)
                await publish_all(near.port, packets)
                await row_of(bridge, "window", "60")
                far.pause(signal.SIGCONT)
                assert await reader.payloads(60) == [packet.payload for packet in packets]
        finally:
            bridge.kill()


async def test_exactly_once_full_disk_pauses_bridge(tmp_path: Path) -> None:
    """Both sides pause, the status names the spool; after space is freed every message arrives once."""
    async with two_bridges(tmp_path) as (bridge, near, far):
        with small_disk(tmp_path / "data", 16) as fill:
            async with gathering(far, "gatherer", "f/#") as gatherer:
                bridge.start()
                await bridge.ready()
                await publish_all(near, [Publish("f/1", b"before", 2)])
                await gatherer.payloads(1)
                fill_up(fill)
                await publish_all(near, [Publish("f/1", b"%d" % number * 2000, 2) for number in range(10, 40)])
                await waits(bridge, "no room on the disk")
                fill.unlink()
                found = await gatherer.payloads(31)
                assert len(found) == len(set(found)) == 31
                assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0


async def test_exactly_once_unwritable_spool_fails_bridge(tmp_path: Path) -> None:
    """Unwritten messages are resent; the next process sends each message once."""
    async with two_bridges(tmp_path) as (bridge, near, far), gathering(far, "gatherer", "f/#") as gatherer:
        bridge.start()
        await bridge.ready()
        await publish_all(near, [Publish("f/1", b"before", 2)])
        await gatherer.payloads(1)
        assert bridge.process is not None
        resource.prlimit(bridge.process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        await publish_all(near, [Publish("f/1", b"%d" % number * 2000, 2) for number in range(10, 40)])
        await failed(bridge, "cannot be written")
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 1
        bridge.start()
        found = await gatherer.payloads(31)
        assert len(found) == len(set(found)) == 31
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
    assert "Traceback" not in bridge.log.read_text()


@pytest.mark.slow
async def test_exactly_once_read_only_disk_refuses_start(tmp_path: Path) -> None:
    """One line; after the disk is writable again the bridge resumes."""
    async with two_bridges(tmp_path) as (bridge, near, far):
        with small_disk(tmp_path / "data", 16) as fill:
            async with gathering(far, "gatherer", "f/#") as gatherer:
                bridge.start()
                await bridge.ready()
                assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
                subprocess.run(["mount", "-o", "remount,ro", str(fill.parent)], check=True)
                refused = await trio.to_thread.run_sync(command, tmp_path)
                assert refused.returncode != 0 and len(refused.stderr.strip().splitlines()) == 1, refused.stderr
                assert "Read-only" in refused.stderr or "read-only" in refused.stderr
                subprocess.run(["mount", "-o", "remount,rw", str(fill.parent)], check=True)
                await publish_all(near, [Publish("f/1", b"%d" % number, 2) for number in range(30)])
                bridge.start()
                found = await gatherer.payloads(30)
                assert len(found) == len(set(found)) == 30
                assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Mount a small disk over a folder; yield the path of a file that may fill it."""
    if os.geteuid():
        pytest.skip("mounting a disk needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "bridge", str(folder)], check=True)
    try:
        yield folder / "ballast"
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(ballast: Path) -> None:
    """Fill a disk."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


async def row_of(bridge: BridgeProcess, key: str, wanted: str) -> None:
    """Wait until the status of the exactly-once bridge contains a text."""
    with trio.fail_after(PATIENCE_S):
        while True:
            rows = {row["bridge"]: row for row in await trio.to_thread.run_sync(bridge.rows)}
            if rows and wanted in str(rows["under"][key]):
                return
            await trio.sleep(0.05)


async def failed(bridge: BridgeProcess, wanted: str) -> None:
    await row_of(bridge, "state", "failed")
    await row_of(bridge, "waits_for", wanted)


async def waits(bridge: BridgeProcess, wanted: str) -> None:
    await row_of(bridge, "waits_for", wanted)


@contextlib.asynccontextmanager
async def two_bridges(folder: Path) -> AsyncIterator[tuple[BridgeProcess, int, int]]:
    """Run two Mosquittos; yield a process with an exactly-once bridge and another one, and both ports."""
    for name in ("near", "far", "data"):
        (folder / name).mkdir()
    async with running_mosquitto(folder / "near") as near, running_mosquitto(folder / "far") as far:
        other = settings(near.port, far.port, "").replace("bridge.under", "bridge.other").replace("f/#", "o/#")
        other = other.replace('"under-test"', '"other"')
        bridge = BridgeProcess(folder, settings(near.port, far.port, ONCE) + other)
        try:
            yield bridge, near.port, far.port
        finally:
            if bridge.process is not None and bridge.process.poll() is None:
                bridge.kill()
