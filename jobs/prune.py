"""Remove files that no manifest in use lists: old manifests, the files of these only, folders of aborted jobs.

    stratamq jobs prune --input DIR [--keep 3] [--grace-hours 24] [--dry-run]

A manifest is *in use* if it is among the newest ``--keep``, or was the newest at any time within ``--grace-hours``. A
job starts from the newest manifest, so files of jobs up to that age stay. A running job's output is in no manifest yet,
so files changed within the grace period stay too. Only manifests, their files, and files under ``runs/`` and
``quarantine/`` are removed. Source: docs/jobs.md, "Retention".
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobs.files import FileSystem, open_directory
from jobs.findings import JobExitCode
from jobs.job_parser import JobParser
from jobs.spark import SparkUnavailable, could_not_run, open_session
from wire.sstable.manifest import FOLDERS, Manifest, ManifestDamaged, decode_manifest, manifest_name, manifest_numbers

__all__ = ["PrunePlan", "main", "plan", "prune"]

KEEP = 3  # manifests: the newest, and two for comparison or rollback
GRACE_HOURS = 24.0  # longest duration of a job; a shorter one frees space sooner
HOUR_MS = 3_600_000


@dataclass(slots=True)
class PrunePlan:
    """Files to remove."""

    manifests: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)  # path -> bytes
    folders: list[str] = field(default_factory=list)  # removed whole; their files are part of this plan
    kept: list[int] = field(default_factory=list)  # manifests in use

    @property
    def bytes(self) -> int:
        """Bytes of all files to remove."""
        return sum(self.files.values())


def plan(store: FileSystem, now_ms: int, keep: int = KEEP, grace_ms: int = int(GRACE_HOURS * HOUR_MS)) -> PrunePlan:
    """Return the files to remove from a directory.

    Args:
        now_ms: UTC ms, by the clock that stamps the directory's files.
        keep: Number of newest manifests to keep, 1 or more.
        grace_ms: Longest duration of a job.
    Raises:
        FileNotFoundError: The directory has no manifest.
        ManifestDamaged: A manifest in use is damaged, so its files are unknown.
    """
    numbers = manifest_numbers(store.names())
    if not numbers:
        raise FileNotFoundError("no manifest")
    result = PrunePlan()
    result.kept = _in_use(store, numbers, now_ms - grace_ms, keep)
    named: set[str] = set()
    for number in result.kept:
        named |= _names(decode_manifest(store.read(manifest_name(number))))
    result.manifests = [number for number in numbers if number not in result.kept]
    for top in FOLDERS:
        for name in store.names(top):
            _add_folder(store, f"{top}/{name}", named, now_ms - grace_ms, result)
    return result


def _in_use(store: FileSystem, numbers: list[int], since_ms: int, keep: int) -> list[int]:
    """Return the newest manifests, and those with a successor since since_ms."""
    used = numbers[-keep:]
    for number, successor in zip(reversed(numbers[:-1]), reversed(numbers[1:]), strict=True):
        if store.modified_ms(manifest_name(successor)) < since_ms:
            break
        used.append(number)
    return sorted(set(used))


def _names(manifest: Manifest) -> set[str]:
    return {entry.path for entry in manifest.files} | set(manifest.quarantine)


def _add_folder(store: FileSystem, folder: str, named: set[str], since_ms: int, result: PrunePlan) -> None:
    """Plan one run's folder: whole if no manifest in use lists its files; recently changed files stay."""
    inside = store.tree(folder)
    stays = {path for path, _, changed_ms in inside if path in named or changed_ms >= since_ms}
    result.files |= {path: size for path, size, _ in inside if path not in stays}
    if not stays and store.modified_ms(folder) < since_ms:
        result.folders.append(folder)


def prune(store: FileSystem, removed: PrunePlan) -> None:
    """Execute the plan, manifests first, so that after an interruption no manifest lists a missing file."""
    for number in removed.manifests:
        store.delete(manifest_name(number))
    for folder in removed.folders:
        store.delete(folder)
    inside = tuple(f"{folder}/" for folder in removed.folders)
    for path in removed.files:
        if not path.startswith(inside):
            store.delete(path)


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    options = JobParser(prog="stratamq jobs prune", description="Remove files that no manifest in use lists.")
    options.add_argument("--input", required=True, help="directory or URI with manifests")
    options.add_argument("--keep", type=int, default=KEEP, help="newest manifests that stay (default 3)")
    options.add_argument(
        "--grace-hours", type=float, default=GRACE_HOURS, help="longest duration of a job (default 24)"
    )
    options.add_argument("--now", type=int, help="UTC ms; default: the clock")
    options.add_argument("--dry-run", action="store_true", help="print the files to remove without removing them")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. A local directory needs neither Spark nor Java."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    if arguments.keep < 1 or arguments.grace_hours < 0:
        print("stratamq jobs prune: --keep must be 1 or more, --grace-hours 0 or more", file=sys.stderr)
        return JobExitCode.USAGE
    now_ms = arguments.now if arguments.now is not None else time.time_ns() // 1_000_000
    try:
        local = "://" not in arguments.input or arguments.input.startswith("file:")
        store = open_directory(None if local else open_session("stratamq-prune", small=True), arguments.input)
        removed = plan(store, now_ms, arguments.keep, int(arguments.grace_hours * HOUR_MS))
        if not arguments.dry_run:
            prune(store, removed)
    except (SparkUnavailable, ManifestDamaged, OSError) as error:
        return could_not_run("prune", error)
    for path in [manifest_name(number) for number in removed.manifests] + sorted(removed.files):
        print(path)
    done = "would remove" if arguments.dry_run else "removed"
    print(
        f"{done} {len(removed.manifests)} manifests and {len(removed.files)} files, {removed.bytes} bytes; "
        f"{len(removed.kept)} manifests in use",
        file=sys.stderr,
    )
    return JobExitCode.CLEAN


if __name__ == "__main__":
    sys.exit(main())
