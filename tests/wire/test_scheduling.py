"""How a node shares the processor: what the kernel took, and one line about what it did not."""

import logging
import os
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
take_turns(config.node, config.sources)
group = Path("/proc/self/autogroup")
print((group.read_text().split() if group.exists() else [])[-1:])  # a child of the kernel's first group reads nothing
"""


def settings(group_nice: int = 0, slice_us: int = 0) -> NodeSettings:
    return NodeSettings(id="n", data_dir=Path("n"), link_port=0, group_nice=group_nice, slice_us=slice_us)


def child(*arguments: str, own_session: bool) -> str:
    """Run a node's first step in a process of its own, and return what it says."""
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
def test_a_storage_node_waits_for_an_edge() -> None:
    """Of a session of its own; the group of a shell is everything that was started there."""
    assert child("storage", own_session=True) == "['5']\n"
    assert child("storage", "node.group_nice=7", own_session=True) == "['7']\n"
    assert child("edge", own_session=True).endswith("['0']\n")
    before = GROUP.read_text()
    said = child("storage", own_session=False)
    assert GROUP.read_text() == before and "DEBUG" in said and "shares its session" in said


def test_a_written_setting_without_effect_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A default one is said at debug; where a container forbids it, its own word is in the line."""
    caplog.set_level(logging.DEBUG)
    take_turns(settings(group_nice=5), {"node.group_nice": "flag"}, tmp_path / "autogroup")
    take_turns(settings(group_nice=5), {}, tmp_path / "autogroup")
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]
    assert all(record.getMessage().startswith("node.group_nice = 5 has no effect: ") for record in caplog.records)


@pytest.mark.parametrize(("make", "why"), [(Path.mkdir, "Is a directory"), (None, "this kernel has no ")])
def test_a_kernel_that_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: object, why: str
) -> None:
    """The node starts all the same."""
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    if callable(make):
        make(tmp_path / "autogroup")
    take_turns(settings(group_nice=5), {"node.group_nice": "file"}, tmp_path / "autogroup")
    assert why in caplog.text


def test_a_slice_is_taken_or_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel before 6.12 takes the call and does nothing: only reading it back tells."""
    monkeypatch.setattr("platform.machine", lambda: "vax")
    take_turns(settings(slice_us=100), {"node.slice_us": "file"})
    assert "node.slice_us = 100 has no effect: not known for vax" in caplog.text


def test_zero_leaves_the_kernel_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    take_turns(settings(), {"node.group_nice": "flag", "node.slice_us": "flag"}, tmp_path / "autogroup")
    assert not caplog.records and not list(tmp_path.iterdir())


def test_only_the_edge_has_a_short_slice() -> None:
    slices = {tier: load(tier, environment={}).node.slice_us for tier in ("edge", "router", "storage")}
    assert slices == {"edge": 100, "router": 0, "storage": 0}
