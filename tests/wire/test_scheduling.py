"""CPU scheduling of a node: the settings accepted by the kernel, and one log line about each refused one."""

import errno
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from conf.node_settings import NodeSettings
from conf.settings import load
from wire.node.scheduling import take_turns

GROUP = Path("/proc/self/autogroup")
CHILD = """
import ctypes, logging, sys
from pathlib import Path
from conf.settings import load
from wire.node.scheduling import take_turns
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
config = load(sys.argv[1], environment={}, flags=sys.argv[2:])
print("gives way" if take_turns(config.node, config.sources) else "stays")
group = Path("/proc/self/autogroup")
print((group.read_text().split() if group.exists() else [])[-1:])  # a child of the kernel's first group reads nothing
"""


UNDER_A_POLICY = """
import ctypes, logging, os, struct, sys
from pathlib import Path
from conf.node_settings import NodeSettings
from wire.node import scheduling
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
policy, refused = int(sys.argv[1]), sys.argv[2:]
priority = 1 if policy in (os.SCHED_FIFO, os.SCHED_RR) else 0
os.nice(3)
try:
    os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
except PermissionError:
    sys.exit(77)
if refused:  # a seccomp filter that answers both calls with this errno, as containers have
    setter, getter = scheduling.SYSTEM_CALLS["x86_64"]
    code = [(0x20, 0, 0, 0), (0x15, 1, 0, setter), (0x15, 0, 1, getter)]
    code += [(0x06, 0, 0, 0x50000 | int(refused[0])), (0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("=HBBI", *line) for line in code)
    text = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.c_char_p(filter_), 0, 0) == 0
settings = NodeSettings(id="n", data_dir=Path("n"), link_port=0, group_nice=0, slice_us=100)
scheduling.take_turns(settings, {"node.slice_us": "file"})
print(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, 0))
"""


def settings(group_nice: int = 0, slice_us: int = 0) -> NodeSettings:
    return NodeSettings(id="n", data_dir=Path("n"), link_port=0, group_nice=group_nice, slice_us=slice_us)


def child(*arguments: str, own_session: bool) -> str:
    """Run a node's first step in a separate process, and return its output."""
    result = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=own_session,
        env={**os.environ, "STRATAMQ_PURE": "1"},
    )
    return result.stdout


@pytest.mark.skipif(not GROUP.exists(), reason="this kernel has no autogroup")
def test_scheduling_storage_node_yields_to_an_edge() -> None:
    """In its own session; the group of a shell contains all its processes."""
    assert child("storage", own_session=True) == "gives way\n['5']\n"
    assert child("storage", "node.group_nice=7", own_session=True) == "gives way\n['7']\n"
    assert child("storage", "node.group_nice=0", own_session=True) == "stays\n['0']\n"
    assert child("edge", own_session=True).endswith("stays\n['0']\n")
    before = GROUP.read_text()
    said = child("storage", own_session=False)
    assert GROUP.read_text() == before and "DEBUG" in said and "shares its session" in said
    assert "stays" in said, "in a group of others a yield gives up a slice"


def test_scheduling_ineffective_explicit_setting_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A default is logged at debug level; the line contains the container's error."""
    caplog.set_level(logging.DEBUG)
    take_turns(settings(group_nice=5), {"node.group_nice": "flag"}, tmp_path / "autogroup")
    take_turns(settings(group_nice=5), {}, tmp_path / "autogroup")
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]
    assert all(record.getMessage().startswith("node.group_nice = 5 has no effect: ") for record in caplog.records)


@pytest.mark.parametrize(("make", "why"), [(Path.mkdir, "Is a directory"), (None, "this kernel has no ")])
def test_scheduling_refused_by_the_kernel_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: object, why: str
) -> None:
    """The node starts nevertheless."""
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    if callable(make):
        make(tmp_path / "autogroup")
    take_turns(settings(group_nice=5), {"node.group_nice": "file"}, tmp_path / "autogroup")
    assert why in caplog.text


@pytest.mark.parametrize(("policy", "gives_way"), [(os.SCHED_OTHER, True), (os.SCHED_FIFO, False), (6, False)])
def test_scheduling_other_policies_do_not_yield(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: int, gives_way: bool
) -> None:
    """Under SCHED_DEADLINE, 6, a yield gives up the rest of a period."""
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy | os.SCHED_RESET_ON_FORK)
    group = tmp_path / "autogroup"
    group.write_text("/autogroup-1 nice 0")
    assert take_turns(settings(group_nice=5), {}, group) is gives_way


def test_scheduling_slice_is_set_or_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel before 6.12 accepts the call without effect, which only reading it back reveals."""
    monkeypatch.setattr("platform.machine", lambda: "vax")
    take_turns(settings(slice_us=100), {"node.slice_us": "file"})
    assert "node.slice_us = 100 has no effect: not known for vax" in caplog.text


def under_a_policy(policy: int, *refused: str) -> list[str]:
    """Run the step under this policy and nice value 3; return its output, last the resulting policy."""
    command = [sys.executable, "-c", UNDER_A_POLICY, str(policy), *refused]
    pure = {**os.environ, "STRATAMQ_PURE": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=pure)
    if result.returncode == 77:
        pytest.skip("this policy needs a privilege")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("policy", [os.SCHED_OTHER, os.SCHED_BATCH])
def test_scheduling_keeps_the_policy_of_the_unit_file(policy: int) -> None:
    """The slice is requested with the current policy, flags and nice value."""
    *said, has = under_a_policy(policy)
    assert has == f"{policy} 3"
    assert not said or "this kernel has no slices" in said[0]


def test_scheduling_keeps_sched_idle() -> None:
    """It requested SCHED_OTHER, which replaced the operator's policy; SCHED_IDLE has no slices."""
    said, has = under_a_policy(os.SCHED_IDLE)
    assert has == f"{os.SCHED_IDLE} 3" and "under SCHED_IDLE, which has no slices" in said


@pytest.mark.parametrize(("policy", "name"), [(os.SCHED_FIFO, "SCHED_FIFO"), (os.SCHED_RR, "SCHED_RR")])
def test_scheduling_keeps_a_real_time_policy(policy: int, name: str) -> None:
    said, has = under_a_policy(policy)
    assert has == f"{policy} 3" and f"under {name}, which has no slices" in said


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_scheduling_without_the_system_call_logs_the_error(number: int) -> None:
    """One line with the system's error text, and the node continues."""
    said, has = under_a_policy(os.SCHED_OTHER, str(number))
    assert has == f"{os.SCHED_OTHER} 3"
    assert f"node.slice_us = 100 has no effect: {os.strerror(number)}" in said


def test_scheduling_zero_makes_no_system_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    take_turns(settings(), {"node.group_nice": "flag", "node.slice_us": "flag"}, tmp_path / "autogroup")
    assert not caplog.records and not list(tmp_path.iterdir())


def test_scheduling_defaults_give_only_the_edge_a_short_slice() -> None:
    slices = {tier: load(tier, environment={}).node.slice_us for tier in ("edge", "router", "storage")}
    assert slices == {"edge": 100, "router": 0, "storage": 0}
