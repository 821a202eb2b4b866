"""The shim applies the harness's faults to a running process; damage at rest is at the reported place."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.node_disk import NodeDisk, build_shim, can_preload

CHILD = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for line in sys.stdin:
    began = time.monotonic()
    try:
        os.fdatasync(file)
        said = "ok"
    except OSError as error:
        said = str(error.errno)
    print(said, round(time.monotonic() - began, 3), time.time(), flush=True)
"""


@pytest.mark.skipif(not can_preload(), reason="gcc is missing: apt install gcc")
def test_faults_change_while_the_process_runs(tmp_path: Path) -> None:
    disk = NodeDisk(tmp_path, tmp_path / "control", build_shim(tmp_path), small=False)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=disk.environment(),
    )

    def sync() -> tuple[str, float, float]:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        outcome, took, wall = child.stdout.readline().split()
        return outcome, float(took), float(wall)

    try:
        assert sync()[0] == "ok"
        disk.slow_sync(0.2)
        assert sync()[1] >= 0.2
        disk.heal()
        disk.fail_next_sync()
        assert sync()[0] == "5"
        assert sync()[0] == "ok"
        disk.shift_clock(-3600)
        assert abs(sync()[2] - (time.time() - 3600)) < 60
        disk.shift_clock(0)
        assert abs(sync()[2] - time.time()) < 60
    finally:
        child.kill()
        child.communicate()


def test_bits_are_flipped_at_reported_place_and_names_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    (folder / "raft").mkdir(parents=True)
    for name in ("incarnation", "lock", "router.toml", "raft/log"):
        (folder / name).write_bytes(bytes(100))
    disk = NodeDisk(folder, tmp_path / "control", None, small=False)
    (report,) = disk.flip_bits(1, random.Random(1))
    name, _, place = report.partition("@")
    at, bit = (int(number) for number in place.split("."))
    assert name == "raft/log"
    assert (folder / name).read_bytes() == bytes(at) + bytes((1 << bit,)) + bytes(99 - at)
    assert (folder / "incarnation").read_bytes() == bytes(100)
    disk.wipe()
    assert sorted(path.name for path in folder.iterdir()) == ["incarnation", "lock", "router.toml"]
    with pytest.raises(ValueError, match="small disk"):
        disk.fill(0.0)


WRITER = """
import os, sys
folder = sys.argv[1]
file = os.open(folder + "/a", os.O_CREAT | os.O_RDWR)
os.pwrite(file, b"1" * 5000, 0)
os.fdatasync(file)
os.pwrite(file, b"2" * 5000, 4000)
with open(folder + "/b.new", "wb") as new:
    new.write(b"whole")
    new.flush()
    os.fsync(new.fileno())
os.rename(folder + "/b.new", folder + "/b")
with open(folder + "/c", "wb") as new:
    new.write(b"never synced")
print("ready", flush=True)
for line in sys.stdin:
    os.fdatasync(file)
    print("synced", flush=True)
"""


@pytest.mark.skipif(not can_preload(), reason="gcc is missing: apt install gcc")
def test_power_loss_undoes_unsynced_writes_only(tmp_path: Path) -> None:
    """Some seed loses all unsynced data, some seed a part; synced data always remains."""
    sizes = set()
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        disk = NodeDisk(folder, tmp_path / f"{seed}.shim", build_shim(tmp_path), small=False)
        subprocess.run(
            [sys.executable, "-c", WRITER, str(folder)], stdin=subprocess.DEVNULL, env=disk.environment(), check=True
        )
        report = disk.lose_power(random.Random(seed))
        data = (folder / "a").read_bytes()
        assert data[:4000] == b"1" * 4000
        assert 5000 <= len(data) <= 9000
        assert (folder / "b").read_bytes() == b"whole"
        assert (folder / "c").read_bytes() in (b"", b"never synced")
        assert any(line.startswith("a: ") for line in report)
        sizes.add(len(data))
        assert disk.lose_power(random.Random(seed)) == []
    assert 5000 in sizes
    assert len(sizes) > 1


@pytest.mark.skipif(not can_preload(), reason="gcc is missing: apt install gcc")
def test_process_ends_at_its_crash_point(tmp_path: Path) -> None:
    disk = NodeDisk(tmp_path, tmp_path / "control", build_shim(tmp_path), small=False)
    disk.crash_at("after sync", 4)
    child = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)], input="\n" * 9, text=True, capture_output=True,
        env=disk.environment(), check=False,
    )  # fmt: skip
    assert child.returncode == -9
    assert child.stdout.split() == ["ready", "synced"]  # two syncs before, the fourth did not return
    assert disk.crashed()
