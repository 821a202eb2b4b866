"""The shim does to a process what the harness wrote down, while it runs; damage at rest is where it says."""

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
        said, took, wall = child.stdout.readline().split()
        return said, float(took), float(wall)

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


def test_bits_are_flipped_where_it_says_and_names_are_spared(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    (folder / "raft").mkdir(parents=True)
    for name in ("incarnation", "lock", "router.toml", "raft/log"):
        (folder / name).write_bytes(bytes(100))
    disk = NodeDisk(folder, tmp_path / "control", None, small=False)
    (told,) = disk.flip_bits(1, random.Random(1))
    name, _, place = told.partition("@")
    at, bit = (int(number) for number in place.split("."))
    assert name == "raft/log"
    assert (folder / name).read_bytes() == bytes(at) + bytes((1 << bit,)) + bytes(99 - at)
    assert (folder / "incarnation").read_bytes() == bytes(100)
    disk.wipe()
    assert sorted(path.name for path in folder.iterdir()) == ["incarnation", "lock", "router.toml"]
    with pytest.raises(ValueError, match="small disk"):
        disk.fill(0.0)
