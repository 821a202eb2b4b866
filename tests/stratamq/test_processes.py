"""Processes of a local cluster, with a stand-in for the nodes: ready, killed, restarted, stopped, orphaned."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from conf.errors import UserError
from stratamq.local_plan import NodePlan
from stratamq.processes import STOP_TIMEOUTS_S, Nodes
from tests.patience import PATIENCE_S

# A node that says it is ready and waits; "fail" and "stubborn" are what their names say.
NODE = """
import json, os, signal, sys, time
kind, flags = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
if kind == "fail":
    print("stratamq: port 1883 is in use", file=sys.stderr)
    sys.exit(1)
if kind == "crash":
    raise RuntimeError("a bug")
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with os.fdopen(int(flags["--ready-fd"]), "w") as pipe:
    pipe.write(json.dumps({"ready": True, "addresses": {"link": kind}}) + "\\n")
os.read(int(flags["--lifeline-fd"]), 1)
"""


class Cluster:
    def __init__(self, folder: Path, *kinds: str, restart: bool = True) -> None:
        self.lines: list[str] = []
        self.changed = trio.Event()
        self.kinds = {f"{kind}-{index}": kind for index, kind in enumerate(kinds)}
        plans = tuple(NodePlan(name, "edge", folder / "none") for name in self.kinds)
        self.nodes = Nodes(
            plans,
            print_line=self._add,
            changed=self._wake,
            logs=folder / "logs",
            restart=restart,
            command=self._command,
        )

    def _command(self, plan: NodePlan) -> list[str]:
        return [sys.executable, "-c", NODE, self.kinds[plan.name]]

    def _add(self, line: str) -> None:
        self.lines.append(line)
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self.changed.wait()

    def pid(self, name: str) -> int:
        pid = self.nodes.describe()[name]["pid"]
        assert isinstance(pid, int)
        return pid


async def test_ready_killed_started_again_and_stopped(tmp_path: Path) -> None:
    """A killed node is started again, and that is said; stop leaves nothing behind."""
    cluster = Cluster(tmp_path, "good", "good")
    async with trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_S):
            await nursery.start(cluster.nodes.run)
        assert cluster.nodes.describe()["good-0"]["addresses"] == {"link": "good"}
        first = cluster.pid("good-0")
        os.kill(first, signal.SIGKILL)
        await cluster.until(lambda: "good-0 is ready again" in cluster.lines)
        assert cluster.lines[0] == "good-0 was killed (SIGKILL); restarting"
        assert cluster.pid("good-0") != first
        pids = [cluster.pid(name) for name in cluster.kinds]
        with trio.fail_after(PATIENCE_S):
            await cluster.nodes.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_no_restart(tmp_path: Path) -> None:
    """--no-restart says so and leaves the node down, the others up."""
    cluster = Cluster(tmp_path, "good", "good", restart=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.nodes.run)
        os.kill(cluster.pid("good-1"), signal.SIGKILL)
        await cluster.until(lambda: bool(cluster.lines))
        assert cluster.lines == ["good-1 was killed (SIGKILL); --no-restart: not restarted"]
        assert list(cluster.nodes.describe()) == ["good-0"]
        await cluster.nodes.stop()


async def test_failed_start_prints_error_of_node(tmp_path: Path) -> None:
    """The node's one clear line, no traceback; the others are not left running."""
    cluster = Cluster(tmp_path, "good", "fail")
    with pytest.RaisesGroup(UserError, flatten_subgroups=True, allow_unwrapped=True) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.nodes.run)
    assert "fail-1: port 1883 is in use" in repr(caught.value)


async def test_a_node_that_crashes_at_start_shows_its_last_words(tmp_path: Path) -> None:
    """A bug keeps its traceback; nothing claims that a time was over."""
    cluster = Cluster(tmp_path, "crash")
    with pytest.RaisesGroup(UserError, flatten_subgroups=True, allow_unwrapped=True) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.nodes.run)
    assert "crash-0 ended with exit code 1 before it was ready" in repr(caught.value)
    assert "RuntimeError: a bug" in repr(caught.value)
    assert cluster.lines == []


async def test_a_node_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping is bounded."""
    monkeypatch.setitem(STOP_TIMEOUTS_S, "edge", 0.2)
    cluster = Cluster(tmp_path, "stubborn")
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.nodes.run)
        with trio.fail_after(PATIENCE_S):
            await cluster.nodes.stop()
    assert cluster.lines == ["1 edge did not stop within 0.2 s: killed"]


@pytest.mark.parametrize("waits_for", ["", "process.stdout.readline()"], ids=["at once", "later"])
def test_lifeline_ends_a_node_whose_parent_was_killed(tmp_path: Path, waits_for: str) -> None:
    """No orphans, however the parent ended, and whether the child already followed."""
    code = f"""
import os, subprocess, sys
read, write = os.pipe()
child = "import sys, time; from stratamq.cli.tiers import _follow_lifeline; "
child += "_follow_lifeline(int(sys.argv[1])); print('follows', flush=True); time.sleep(60)"
process = subprocess.Popen(
    [sys.executable, "-c", child, str(read)], pass_fds=(read,), stdout=subprocess.PIPE, cwd={str(Path.cwd())!r}
)
print(process.pid, flush=True)
{waits_for}
os.kill(os.getpid(), 9)
"""
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    pid = int(parent.stdout)
    descriptor = _pidfd(pid)
    if descriptor is not None:
        assert select.select([descriptor], [], [], 10)[0], "the child outlived its parent"
        os.close(descriptor)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
