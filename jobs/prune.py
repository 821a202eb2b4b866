"""Remove what no manifest in use names: old manifests, the files that only they list, folders of jobs that died.

    stratamq jobs prune --input DIR [--keep 3] [--grace-hours 24] [--dry-run]

A manifest is *in use* when it is among the newest ``--keep``, or was the newest at any time within ``--grace-hours``: a
job began from the newest one, so nothing that a job of at most that age reads or carries is touched. What a job writes
is in no manifest before its end; files changed within the grace are left alone for that reason. Only manifests, what
they list, and what lies under ``runs/`` and ``quarantine/`` is ever removed. Source: docs/jobs.md, "Retention".
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

KEEP = 3  # manifests: the newest, and two to compare it with or to go back to
GRACE_HOURS = 24.0  # the longest that a job may run; shorter frees space sooner
HOUR_MS = 3_600_000


@dataclass(slots=True)
class PrunePlan:
    """Files that may go."""

    manifests: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)  # path -> bytes
    folders: list[str] = field(default_factory=list)  # with all that is in them, files of this plan
    kept: list[int] = field(default_factory=list)  # manifests in use

    @property
    def bytes(self) -> int:
        """Bytes of all files to remove."""
        return sum(self.files.values())


def plan(store: FileSystem, now_ms: int, keep: int = KEEP, grace_ms: int = int(GRACE_HOURS * HOUR_MS)) -> PrunePlan:
    """Return what may go from a directory.

    Args:
        now_ms: UTC ms, by the clock that stamps the directory's files.
        keep: Newest manifests that stay, 1 or more.
        grace_ms: No job runs longer.
    Raises:
        FileNotFoundError: Without a manifest.
        ManifestDamaged: A manifest in use cannot be read: what it lists is not known.
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
    """The newest ones, and each whose successor came after since_ms."""
    used = numbers[-keep:]
    for number, successor in zip(reversed(numbers[:-1]), reversed(numbers[1:]), strict=True):
        if store.modified_ms(manifest_name(successor)) < since_ms:
            break
        used.append(number)
    return sorted(set(used))


def _names(manifest: Manifest) -> set[str]:
    return {entry.path for entry in manifest.files} | set(manifest.quarantine)


def _add_folder(store: FileSystem, folder: str, named: set[str], since_ms: int, result: PrunePlan) -> None:
    """Plan one run's folder: whole when nothing in it is named, else file by file; never what changed lately."""
    inside = store.tree(folder)
    stays = {path for path, _, changed_ms in inside if path in named or changed_ms >= since_ms}
    result.files |= {path: size for path, size, _ in inside if path not in stays}
    if not stays and store.modified_ms(folder) < since_ms:
        result.folders.append(folder)


def prune(store: FileSystem, removed: PrunePlan) -> None:
    """Remove it: manifests first, so that whatever point is reached, none of those left lists a missing file."""
    for number in removed.manifests:
        store.delete(manifest_name(number))
    for folder in removed.folders:
        store.delete(folder)
    inside = tuple(f"{folder}/" for folder in removed.folders)
    for path in removed.files:
        if not path.startswith(inside):
            store.delete(path)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    words = JobParser(prog="stratamq jobs prune", description="Remove what no manifest in use names.")
    words.add_argument("--input", required=True, help="directory or URI with manifests")
    words.add_argument("--keep", type=int, default=KEEP, help="newest manifests that stay (default 3)")
    words.add_argument("--grace-hours", type=float, default=GRACE_HOURS, help="no job runs longer (default 24)")
    words.add_argument("--now", type=int, help="UTC ms; default: the clock")
    words.add_argument("--dry-run", action="store_true", help="say what would go, remove nothing")
    return words


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
