"""An exactly-once bridge as a process: killed between two Mosquittos, and started with spools that are not its own."""

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
FILE_BYTES = 100_000  # more than the log of the process, less than what follows


async def test_killed_while_it_works(tmp_path: Path) -> None:
    """By the history of both sides nothing is lost, order holds, and nothing comes twice."""
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
def test_what_it_needs_is_asked_for_at_the_start(tmp_path: Path, text: str, wanted: str) -> None:
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


def spoil(path: Path, how: str) -> None:
    """Change a spool that an orderly end left."""
    if how == "damaged":
        content = bytearray(path.read_bytes())
        content[4096:8192] = os.urandom(4096)
        path.write_bytes(content)
        return
    database = sqlite3.connect(path)
    if how == "newer version":
        database.execute("PRAGMA user_version = 99")
    elif how == "a row that is none":
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
        ("foreign", "is of bridge another, not of bridge under-test"),
        pytest.param("newer version", "start the newer program", marks=pytest.mark.slow),
        pytest.param("damaged", "damaged", marks=pytest.mark.slow),
        pytest.param("a row that is none", "a row that is none", marks=pytest.mark.slow),
    ],
)
async def test_a_spool_that_is_none_of_its_own_ends_that_bridge_alone(tmp_path: Path, how: str, wanted: str) -> None:
    """One line that says what and what to do; the other bridge of the process goes on."""
    async with two_bridges(tmp_path) as (bridge, near, far):
        bridge.start()
        await bridge.ready()
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 0
        spoil(tmp_path / "data" / "under.spool", how)
        bridge.start()
        await failed(bridge, wanted)
        async with gathering(far, "gatherer", "o/#") as gatherer:
            await publish_all(near, [Publish("o/1", b"x", 1)])
            assert await gatherer.payloads(1) == [b"x"]
        assert await trio.to_thread.run_sync(bridge.kill, signal.SIGTERM) == 1
        lines = [line for line in bridge.log.read_text().splitlines() if wanted in line]
        assert len(lines) == 1 and "Traceback" not in bridge.log.read_text()


async def test_a_broker_of_3_1_1_that_stood_still(tmp_path: Path) -> None:
    """Mosquitto ends who has more than 20 of QoS 2 under way, so the bridge came back with them for ever."""
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


async def test_a_full_disk_holds_the_bridge_and_no_more(tmp_path: Path) -> None:
    """Both sides stand still, the status names the spool; with room again everything comes, once."""
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


async def test_a_spool_that_cannot_be_written_any_more_ends_that_bridge(tmp_path: Path) -> None:
    """What it had not written comes again; the next process sends each message once."""
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
async def test_a_disk_that_is_read_only_refuses_the_start(tmp_path: Path) -> None:
    """One line; on a disk that can be written again, all goes on."""
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
    """Mount a disk of a few MiB over a folder; yield the place of a file that may fill it."""
    if os.geteuid():
        pytest.skip("mounting a disk needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "bridge", str(folder)], check=True)
    try:
        yield folder / "ballast"
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(ballast: Path) -> None:
    """Leave no room on a disk."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


async def row_of(bridge: BridgeProcess, key: str, wanted: str) -> None:
    """Wait until the status of the exactly-once bridge has a text."""
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
