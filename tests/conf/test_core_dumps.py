"""Core dumps are disabled: real processes that crash, and possible core patterns of a kernel."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conf.core_dumps import PATTERN, core_dump_goes_to

PAGE = 4_096
CRASH = """
import os, resource, sys
from conf.core_dumps import core_dump_goes_to, forbid_core_dumps
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if sys.argv[1] == "forbid":
    forbid_core_dumps()
print(core_dump_goes_to(), flush=True)
os.abort()
"""


def crash(folder: Path, word: str) -> tuple[bool, str]:
    """Let a process end by SIGABRT; return whether the kernel wrote a core, and the core path that the process
    expected.
    """
    read, write = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    actions = [(os.POSIX_SPAWN_DUP2, write, 1)]
    command = ["/bin/sh", "-c", 'cd "$1" && exec "$2" -c "$3" "$4"', "sh", str(folder), sys.executable, CRASH, word]
    pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
    os.close(write)
    with os.fdopen(read) as output:
        expected = output.read().strip()
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGABRT
    return os.WCOREDUMP(status), expected


@pytest.mark.skipif(0 <= resource.getrlimit(resource.RLIMIT_CORE)[1] < PAGE, reason="no core of any process here")
def test_forbid_core_dumps_crash_leaves_no_core(tmp_path: Path) -> None:
    """A process without the limit dumps core; the same process with the limit does not."""
    dumped, expected = crash(tmp_path, "allow")
    assert expected == PATTERN.read_text().strip()
    assert dumped or expected.startswith(("|", "@", "/")), "the kernel keeps a core where it says that it does"
    for core in tmp_path.iterdir():
        core.unlink()
    dumped, expected = crash(tmp_path, "forbid")
    assert (dumped, [*tmp_path.iterdir()]) == (False, [])
    assert not expected or expected.startswith("@")


@pytest.mark.parametrize(
    ("pattern", "limits"),
    [
        ("core", {0: False, 1: False, PAGE - 1: False, PAGE: True, resource.RLIM_INFINITY: True}),
        ("/var/cores/%e", {0: False, 1: False, PAGE: True}),
        ("|/usr/lib/systemd/systemd-coredump %P", {0: True, 1: False, 2: True, resource.RLIM_INFINITY: True}),
        ("@/run/cores.sock", {0: True, 1: True}),
    ],
)
def test_core_limit_by_pattern(tmp_path: Path, pattern: str, limits: dict[int, bool]) -> None:
    """A core program is prevented only by a limit of exactly 1, a core file by any below a page (core(5))."""
    (tmp_path / "core_pattern").write_text(f"{pattern}\n")
    before = resource.getrlimit(resource.RLIMIT_CORE)
    found = {}
    try:
        for limit in limits:
            resource.setrlimit(resource.RLIMIT_CORE, (limit, before[1]))
            found[limit] = core_dump_goes_to(tmp_path / "core_pattern")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    assert found == {limit: pattern if dumps else "" for limit, dumps in limits.items()}


@pytest.mark.parametrize("words", [["version"], ["edge", "--config", "/nowhere"]])
def test_every_command_forbids_core_dumps(words: list[str]) -> None:
    """Nodes, gateways, and operators' commands, which hold keys too; a stricter limit stays."""
    code = (
        "import resource, sys; from stratamq.cli.main import main; main(sys.argv[1:]);"
        "print(*resource.getrlimit(resource.RLIMIT_CORE), file=sys.stderr)"
    )

    def limits(soft: int, hard: int) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (soft, hard)),
        )  # fmt: skip
        return ended.stderr.splitlines()[-1]

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    assert limits(hard, hard) == (f"1 {hard}" if hard else "0 0")
    assert limits(0, 0) == "0 0"
