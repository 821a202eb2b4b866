"""Faults of one node's disk and wall clock: a preloaded shim, a small tmpfs, damage to files at rest.

The schedule selects the faults. Without gcc there is no shim, without root no small disk; the caller checks first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.chaos import power_loss

SOURCE = Path(__file__).parent / "shim" / "fault_shim.c"
CONTROL = struct.Struct("=qqqqqq")  # sync_delay_us, fail_syncs, clock_shift_s, syncs_failed, crash_point, crash_after
CRASH_POINTS = (
    "before sync",
    "after sync",
    "before write",
    "after write",
    "before rename",
    "after rename",
    "before send",
    "after send",
)  # in the order of the shim's enum, which counts from 1
SMALL_DISK_BYTES = 64 << 20
KEPT = frozenset({"lock", "incarnation"})  # of a wiped disk: the node's name and lives are the operator's

__all__ = ["CRASH_POINTS", "NodeDisk", "build_shim", "can_mount", "can_preload"]


def can_preload() -> bool:
    """Return whether the shim can be built here."""
    return shutil.which("gcc") is not None


def can_mount() -> bool:
    """Return whether a small disk can be mounted here."""
    return os.geteuid() == 0


def build_shim(folder: Path) -> Path:
    """Compile the shim into a folder; return the library."""
    library = folder / "fault_shim.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return library


class NodeDisk:
    """Disk and clock of one node.

    Args:
        folder: The node's data folder.
        shim: Library to preload; None: no faults of syncs and clocks.
        small: Mount a tmpfs of 64 MiB over the folder.
    """

    def __init__(self, folder: Path, control: Path, shim: Path | None, small: bool) -> None:
        self.folder = folder
        self._control, self._shim, self._small = control, shim, small
        self._journal = control.with_suffix(".journal")
        self._delay_us = self._fail = self._shift_s = 0
        self._crash_point = self._crash_after = 0
        self._write()
        if small:
            self._mount()

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the node's process."""
        if self._shim is None:
            return {}
        return {
            "LD_PRELOAD": str(self._shim),
            "CHAOS_CONTROL": str(self._control),
            "CHAOS_FOLDER": str(self.folder.resolve()),
            "CHAOS_JOURNAL": str(self._journal),
        }

    def crash_at(self, point: str, after: int) -> None:
        """Let the process kill itself at the so-manieth call of one kind, from now on."""
        self._crash_point, self._crash_after = CRASH_POINTS.index(point) + 1, after
        self._write()

    def crashed(self) -> bool:
        """Whether the point was reached."""
        return bool(CONTROL.unpack(self._control.read_bytes())[4] < 0)

    def lose_power(self, rng: random.Random) -> list[str]:
        """Undo unsynced writes of a stopped node. Return the files and their losses."""
        return power_loss.lose_power(self.folder, self._journal, rng)

    def slow_sync(self, seconds: float) -> None:
        self._delay_us = int(seconds * 1e6)
        self._write()

    def fail_next_sync(self) -> None:
        self._fail = 1
        self._write()

    def shift_clock(self, seconds: float) -> None:
        self._shift_s = int(seconds)
        self._write()

    def fill(self, share_left: float) -> None:
        """Fill the disk until this share of it is left.

        Raises:
            ValueError: It is not a small disk, and the machine's own is never filled.
        """
        if not self._small:
            raise ValueError("only a small disk is filled")
        free = shutil.disk_usage(self.folder).free - int(SMALL_DISK_BYTES * share_left)
        with contextlib.suppress(OSError), self._ballast.open("wb") as file:  # full to the last block, maybe at once
            while free > 0:
                free -= file.write(bytes(min(free, 1 << 16)))

    def heal(self) -> None:
        self._delay_us = self._fail = self._crash_point = self._crash_after = 0
        self._write()
        self._ballast.unlink(missing_ok=True)

    def flip_bits(self, count: int, rng: random.Random) -> list[str]:
        """Flip bits of the node's files, which is down; return where."""
        files = [(path, path.stat().st_size) for path in self._kept_files()]
        sized = [(path, size) for path, size in files if size]
        done = []
        for _ in range(count if sized else 0):
            path, size = rng.choices(sized, [size for _, size in sized])[0]
            at, bit = rng.randrange(size), rng.randrange(8)
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0] ^ (1 << bit)
                file.seek(at)
                file.write(bytes((byte,)))
            done.append(f"{path.relative_to(self.folder)}@{at}.{bit}")
        return done

    def wipe(self) -> None:
        """Empty the disk of the node, which is down; its configuration and its count of lives stay."""
        for path in list(self.folder.iterdir()):
            if path.name in KEPT or path.suffix == ".toml":
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        if self._small:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)

    @functools.cached_property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def _kept_files(self) -> Iterator[Path]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.name not in KEPT and path.suffix != ".toml":
                yield path

    def _mount(self) -> None:
        saved = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        options = f"size={SMALL_DISK_BYTES},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(self.folder)], check=True)
        for name, data in saved.items():
            (self.folder / name).write_bytes(data)

    def _write(self) -> None:
        if not self._control.exists():
            self._control.write_bytes(bytes(CONTROL.size))
        with self._control.open("r+b") as file:
            file.write(CONTROL.pack(self._delay_us, self._fail, self._shift_s, 0, self._crash_point, self._crash_after))
