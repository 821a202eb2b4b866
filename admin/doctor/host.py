"""Checks of this host and of the files in one folder; a check that cannot run here is skipped with the reason."""

import datetime
import importlib.machinery
import os
import resource
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from admin.doctor.findings import FAIL, SKIPPED, WARN, Check, DoctorFinding, Said, judged
from conf.errors import UserError

__all__ = ["CHECKS", "ROOMS", "HostReader", "judge"]

ROOMS = ("access", "admin", "conf", "edge", "gateways", "jobs", "membership", "mqtt", "router", "storage", "wire")
DAY_S = 86_400.0
KEY_DAYS_WARN = 90
FILES_MAX = 20_000  # of a data folder: checking more takes too long
PEM_BYTES_MAX = 1024 * 1024
OPEN_FILES_WARN = 4_096
MEMORY_WARN = 0.9


class HostReader(NamedTuple):
    """This host: the folder to check, and its inputs."""

    data: Path  # folder of `up`, of `init` or of one node
    path: Sequence[str] = tuple(sys.path)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    now: float = 0.0  # 0: use the wall clock
    check_config: Callable[[], object] | None = None  # raises UserError; None: no file was given
    settings: Mapping[str, Mapping[str, str]] = {}  # of running nodes: node -> name -> value


def judge(host: HostReader) -> list[DoctorFinding]:
    """Return the findings of every check."""
    if not host.now:
        host = host._replace(now=time.time())
    return [finding for check in CHECKS for finding in judged(check, host)]


def _configuration(host: HostReader) -> Said:
    if host.check_config is None:
        yield SKIPPED, "", "use --tier and --config to check a file; running nodes have validated theirs"
        return
    try:
        host.check_config()
    except UserError as error:
        for line in error.message.split("\n"):
            yield FAIL, "", line


def _files(host: HostReader) -> Said:
    if not host.data.is_dir():
        yield SKIPPED, str(host.data), "is not a folder here"
        return
    number = 0
    for number, (path, status) in enumerate(_walk(host.data), 1):
        if number > FILES_MAX:
            yield SKIPPED, str(host.data), f"has more than {FILES_MAX} files: the rest was not checked"
            return
        is_key = path.suffix == ".key" or path.name.endswith(("keys", "passwd"))
        if status.st_uid != os.geteuid():
            yield WARN, str(path), f"belongs to user {status.st_uid}"
        elif status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and not stat.S_ISLNK(status.st_mode):
            mode = stat.S_IMODE(status.st_mode)
            if is_key:
                yield FAIL, str(path), f"is a key that others can read or change (mode {mode:04o})"
            elif status.st_mode & stat.S_IWOTH:
                yield WARN, str(path), f"is writable by everyone (mode {mode:04o})"


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(where, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue  # a running store deletes files


def _certificates(host: HostReader) -> Said:
    folder = host.data / "tls" if (host.data / "tls").is_dir() else host.data
    paths = sorted(folder.glob("*.pem")) if folder.is_dir() else []
    if not paths:
        yield SKIPPED, str(folder), "has no certificates (*.pem)"
    for path in paths:
        end = _end_of(path)
        if end is None:
            yield WARN, str(path), "holds no readable certificate"
            continue
        days = (end - host.now) / DAY_S
        if days < 30:
            yield FAIL if days < 7 else WARN, str(path), f"has {days:.1f} days left" if days > 0 else "has expired"


def _end_of(path: Path) -> float | None:
    """Return the earliest expiry of a file's certificates; None if it cannot be read."""
    from cryptography import x509

    try:
        if path.stat().st_size > PEM_BYTES_MAX:
            return None
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None
    ends = [one.not_valid_after_utc.replace(tzinfo=datetime.UTC).timestamp() for one in found]
    return min(ends, default=None)


def _gossip_keys(host: HostReader) -> Said:
    named = {settings.get("membership.key_file", "") for settings in host.settings.values()} - {"", "None"}
    paths = [path for path in map(Path, sorted(named)) if path.is_file()]
    paths = paths or [path for folder in (host.data, host.data / "tls") for path in sorted(folder.glob("gossip.key*"))]
    if not paths:
        yield SKIPPED, "", f"no answering node names a file of gossip keys on this host, and {host.data} has none"
    for path in paths:
        days = (host.now - path.stat().st_mtime) / DAY_S
        if days > KEY_DAYS_WARN:
            yield WARN, str(path), f"was written {days:.0f} days ago"


def _packages(host: HostReader) -> Said:
    """Find other packages with our names: Python imports the first one on the path."""
    ours = Path(__file__).resolve().parent.parent.parent
    for package in ROOMS:
        for entry in dict.fromkeys(entry or "." for entry in host.path):
            spec = importlib.machinery.PathFinder.find_spec(package, [entry])
            if spec is None or spec.origin is None:
                continue
            found = Path(spec.origin).resolve().parent
            if found != ours / package:
                yield WARN, package, f"another package of this name is on the path: {found}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def _kernel(host: HostReader) -> Said:
    pages = _read(host.sys / "kernel/mm/transparent_hugepage/enabled")
    if pages is not None and "[always]" in pages:
        yield WARN, "transparent huge pages", "always: the memory of nodes grows, and event loops are delayed"
    swaps = (_read(host.proc / "swaps") or "").splitlines()[1:]
    if swaps:
        yield WARN, "swap", f"{len(swaps)} in use: a node that is swapped out loses its lease"
    memory, bound = _read(host.sys / "fs/cgroup/memory.current"), _read(host.sys / "fs/cgroup/memory.max")
    if memory and bound and bound.strip().isdecimal() and int(memory) > MEMORY_WARN * int(bound):
        yield WARN, "memory", f"{int(memory) / int(bound):.0%} of the container's limit are used"


def _limit(_: HostReader) -> Said:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_WARN:
        yield WARN, "", f"a process that is started here may open {soft} files (hard limit {hard})"


CHECKS = (
    Check("configuration", "it is valid", "correct the line; docs/settings.md lists all settings", _configuration),
    Check("files", "others cannot read keys or change files", "chmod -R go= FOLDER, as the user of the nodes", _files),
    Check("certificates", "30 days left or more", "issue new ones; `stratamq init` shows how", _certificates),
    Check(
        "gossip keys",
        f"{KEY_DAYS_WARN} days old at most",
        "`stratamq membership keys install` and `use` rotate them",
        _gossip_keys,
    ),
    Check("packages", "no other package has the name of one of ours", "run StrataMQ in its own environment", _packages),
    Check(
        "kernel",
        "huge pages, swap and memory are set as recommended",
        "madvise for huge pages; no swap; more memory",
        _kernel,
    ),
    Check("file limit", f"{OPEN_FILES_WARN} files or more", "ulimit -n 65536 before the start", _limit),
)
