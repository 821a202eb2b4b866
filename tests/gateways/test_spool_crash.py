"""Kill -9 at every write and sync of a commit, power loss, and failed syncs: acknowledged rows are stored."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateways.spool import SpoolFile
from tests.chaos.node_disk import NodeDisk, build_shim, can_preload
from tests.gateways.spool_child import FAILED_EXIT, LAST, expected_rows
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BOUND = 1 << 30
POINTS = ("before write", "after write", "before sync", "after sync")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not can_preload():
        pytest.skip("no gcc: crashes within a commit are not made")
    return build_shim(tmp_path_factory.mktemp("shim"))


def start(path: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "tests/gateways/spool_child.py"), str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}
    )


def check(path: Path, acked: int) -> int:
    """Compare the rows with those of the last number; return that number."""
    spool = SpoolFile(path, "test", BOUND)
    last = int.from_bytes(dict(spool.load("fact")).get(LAST, bytes(8)))
    assert last >= acked
    assert list(spool.load("message")) == expected_rows(last)
    spool.close()
    return last


def kill_at(tmp_path: Path, shim: Path, point: str, counts: Iterable[int]) -> None:
    """Kill processes one after another on the same file, at the given calls."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    disk = NodeDisk(folder, tmp_path / "control", shim, small=False)
    last = 0
    for after in counts:
        disk.crash_at(point, after)
        child = start(folder / "file", disk.environment())
        assert child.stdout is not None
        acked = max([int(line) for line in child.stdout] or [0])
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
        assert disk.crashed()
        last = check(folder / "file", max(acked, last))


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at_points_of_a_commit(tmp_path: Path, shim: Path, point: str) -> None:
    """The file has the state before or after the transaction; after it if the caller was acknowledged."""
    kill_at(tmp_path, shim, point, (2, 5, 9, 60))


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at_every_point_of_a_commit(tmp_path: Path, shim: Path, point: str) -> None:
    """Each call of opening, recovery and the first commits, and some within checkpoints."""
    kill_at(tmp_path, shim, point, (*range(1, 60), 100, 500, 1_000, 1_500, 2_000))


def lose_power(tmp_path: Path, shim: Path, rounds: int) -> None:
    """Kill processes, and discard random parts of their unsynced writes."""
    rng = random.Random(5)
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    disk = NodeDisk(folder, tmp_path / "control", shim, small=False)
    last = 0
    for _ in range(rounds):
        disk.crash_at(rng.choice(POINTS), rng.randrange(1, 200))
        child = start(folder / "file", disk.environment())
        assert child.stdout is not None
        acked = max([int(line) for line in child.stdout] or [0])
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
        disk.lose_power(rng)
        last = check(folder / "file", max(acked, last))


def test_loss_of_power(tmp_path: Path, shim: Path) -> None:
    """Acknowledged rows are stored."""
    lose_power(tmp_path, shim, 4)


@pytest.mark.slow
def test_loss_of_power_often(tmp_path: Path, shim: Path) -> None:
    """60 times on one file."""
    lose_power(tmp_path, shim, 60)


def test_spool_failed_sync_ends_process(tmp_path: Path, shim: Path) -> None:
    """The disk's content is then unknown: no further commit is acknowledged, and the next process checks the file."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    disk = NodeDisk(folder, tmp_path / "control", shim, small=False)
    child = start(folder / "file", disk.environment())
    assert child.stdout is not None
    acked = 0
    for line in child.stdout:
        acked = int(line)
        if acked == 20:
            disk.fail_next_sync()
    assert child.wait(PATIENCE_S) == FAILED_EXIT
    check(folder / "file", acked)
