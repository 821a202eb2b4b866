"""The processes of a local cluster: start, wait for readiness, restart after a crash, stop in order.

Each child has two pipes: it reports readiness on one, and the end of file of the other one (the lifeline) reports the
end of this process. Children run in their own sessions, so Ctrl-C reaches only this process, which stops them in order:
edges, storage, routers.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from conf.errors import ExitCode, UserError
from stratamq import installed
from stratamq.local_plan import NodePlan
from wire.node.process import EXIT_DAMAGED, EXIT_PUT_ASIDE, EXIT_RESTART

__all__ = ["STOP_TIMEOUTS_S", "Nodes"]

READY_TIMEOUT_S = 60.0  # replaying a large log takes long
EXIT_GRACE_S = 5.0  # from closing the ready pipe early to the end of the process
STOP_TIMEOUTS_S = {
    "admin": 1.0,
    "balance": 1.0,
    "edge": 7.0,
    "storage": 5.0,
    "router": 3.0,
}  # in this order, 15 s in all; then kill
BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0
STEADY_S = 30.0  # after this long a node counts as recovered
DAMAGED_RETRY_S = 10.0  # retry interval with a damaged folder
RESTARTS_MAX = 8  # consecutive restarts without recovery, before giving up
LOG_BYTES_MAX = 16 * 1024 * 1024  # a longer log file is truncated when its node starts
TAIL_LINES = 12


class _Node:
    """One child."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.process: trio.Process | None = None
        self.addresses: dict[str, Any] = {}
        self.ready = trio.Event()
        self.restarts = 0
        self.damaged = False


class Nodes:
    """All children of one `stratamq up`.

    Args:
        print_line: Prints one line.
        changed: Called when a node became ready or ended.
        logs: Folder of log files; None: the children use our stderr.
        restart: Restart crashed nodes.
        command: Returns the command of a node, without the two pipes; replaced in tests.
    """

    def __init__(
        self,
        plans: tuple[NodePlan, ...],
        settings: tuple[str, ...] = (),
        *,
        print_line: Callable[[str], None],
        changed: Callable[[], None],
        logs: Path | None,
        restart: bool,
        command: Callable[[NodePlan], list[str]] | None = None,
    ) -> None:
        self._nodes = {plan.name: _Node(plan) for plan in plans}
        self._command = command or partial(_command, settings)
        self._print_line = print_line
        self._changed = changed
        self._logs = logs
        self._restart = restart
        self._stopping = False
        self._nursery: trio.Nursery | None = None

    def describe(self) -> dict[str, dict[str, object]]:
        """Return tier, process ID and addresses of every running node."""
        return {
            name: {"tier": node.plan.tier, "pid": node.process.pid, "addresses": node.addresses}
            for name, node in self._nodes.items()
            if node.process is not None
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start all nodes and keep them running until ``stop``; reports started when all are ready.

        Raises:
            UserError: A node failed to become ready; the others were stopped.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for node in self._nodes.values():
                    nursery.start_soon(self._keep, node)
                for node in self._nodes.values():
                    await node.ready.wait()
                task_status.started()
        finally:
            self._stopping = True
            self._kill_all()

    async def add(self, plan: NodePlan) -> dict[str, Any]:
        """Start an optional process; return its addresses, {} if it did not start."""
        node = self._nodes[plan.name] = _Node(plan)
        assert self._nursery is not None, "run() must have started"
        self._nursery.start_soon(self._keep_apart, node)
        await node.ready.wait()
        return node.addresses

    async def _keep_apart(self, node: _Node) -> None:
        try:
            await self._keep(node)
        except UserError as error:
            self._print_line(error.message)
            node.ready.set()

    async def stop(self) -> None:
        """Stop the tiers one after the other, by force after a timeout; ``run`` returns afterwards."""
        self._stopping = True
        for tier, timeout_s in STOP_TIMEOUTS_S.items():
            processes = [n.process for n in self._nodes.values() if n.plan.tier == tier and n.process is not None]
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            with trio.move_on_after(timeout_s) as scope:
                for process in processes:
                    await process.wait()
            if scope.cancelled_caught:
                late = [process for process in processes if process.returncode is None]
                self._print_line(f"{len(late)} {tier} did not stop within {timeout_s:g} s: killed")
                for process in late:
                    process.kill()

    def _kill_all(self) -> None:
        for node in self._nodes.values():
            if node.process is not None and node.process.returncode is None:
                node.process.kill()

    async def _keep(self, node: _Node) -> None:
        backoff = BACKOFF_MIN_S
        while not self._stopping:
            began = trio.current_time()
            code = await self._run_once(node)
            self._changed()
            if self._stopping:
                return
            name = node.plan.name
            ended = _how_it_ended(code)
            wants_another = code in (EXIT_RESTART, EXIT_PUT_ASIDE) and self._restart and node.restarts < RESTARTS_MAX
            if not node.ready.is_set() and not wants_another:
                raise UserError(self._why_not_ready(node, ended), code if code > 0 else ExitCode.FAILED)
            if trio.current_time() - began > STEADY_S:
                node.restarts, backoff = 0, BACKOFF_MIN_S
            if not self._restart:
                self._print_line(f"{name} {ended}; --no-restart: not restarted")
                return
            if code == EXIT_DAMAGED:
                if not node.damaged:
                    self._print_line(f"{name} waits for the repair of its folder. {self._tail(node, 1)}")
                node.damaged = True
                await trio.sleep(DAMAGED_RETRY_S)
                continue
            node.damaged = False
            if code == ExitCode.USAGE or node.restarts >= RESTARTS_MAX:
                self._print_line(f"{name} {ended}; giving up after {node.restarts} restarts. {self._tail(node, 1)}")
                return
            node.restarts += 1
            self._print_line(f"{name} {ended}; restarting")
            await trio.sleep(backoff)
            backoff = min(BACKOFF_MAX_S, 2 * backoff)

    async def _run_once(self, node: _Node) -> int:
        """Run one incarnation of a node; return its exit code, negative for a signal."""
        ready_read, ready_write = os.pipe()
        life_read, life_write = os.pipe()
        pipes = ["--ready-fd", str(ready_write), "--lifeline-fd", str(life_read)]
        try:
            with self._open_log(node) as log:
                process = await trio.lowlevel.open_process(
                    [*self._command(node.plan), *pipes],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(ready_write, life_read),
                    start_new_session=True,
                    env=_environment(),
                )
        except BaseException:
            os.close(life_write)
            os.close(ready_read)
            raise
        finally:
            os.close(ready_write)
            os.close(life_read)
        node.process = process
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_ready, node, ready_read)
                await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                process.kill()
            os.close(life_write)
            node.process = None
        return process.returncode if process.returncode is not None else -signal.SIGKILL

    async def _read_ready(self, node: _Node, descriptor: int) -> None:
        """Wait for the ready line; kill a node that neither reports readiness nor ends."""
        line = b""
        async with trio.lowlevel.FdStream(descriptor) as pipe:
            with trio.move_on_after(READY_TIMEOUT_S) as scope:
                while not line.endswith(b"\n"):
                    data = await pipe.receive_some(65536)
                    if not data:
                        await trio.sleep(EXIT_GRACE_S)  # it is ending: the end of the process cancels this task
                        break
                    line += data
        if line.endswith(b"\n"):
            node.addresses = json.loads(line)["addresses"]
            self._changed()  # before the line below: its reader may query the new process
            if node.ready.is_set():
                self._print_line(f"{node.plan.name} is ready again")
            node.ready.set()
        elif node.process is not None and not self._stopping:
            waited = f"after {READY_TIMEOUT_S:g} s" if scope.cancelled_caught else "and closed its pipe"
            self._print_line(f"{node.plan.name} is not ready {waited}: killed")
            node.process.kill()

    # -- logs

    def _log_path(self, node: _Node) -> Path | None:
        return None if self._logs is None else self._logs / f"{node.plan.name}.log"

    def _open_log(self, node: _Node) -> Any:
        path = self._log_path(node)
        if path is None:
            return contextlib.nullcontext(sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.exists() and path.stat().st_size > LOG_BYTES_MAX
        return path.open("wb" if fresh else "ab")

    def _why_not_ready(self, node: _Node, ended: str) -> str:
        tail = self._tail(node, TAIL_LINES)
        mistakes = [line.removeprefix("stratamq: ") for line in tail.split("\n") if line.startswith("stratamq: ")]
        if mistakes:
            return "\n".join(f"{node.plan.name}: {line}" for line in mistakes)
        indented = "".join(f"\n  {line}" for line in tail.split("\n") if line)
        return f"{node.plan.name} {ended} before it was ready" + (f":{indented}" if indented else "")

    def _tail(self, node: _Node, lines: int) -> str:
        path = self._log_path(node)
        if path is None or not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return b"\n".join(file.read().splitlines()[-lines:]).decode(errors="replace")


def _command(settings: tuple[str, ...], plan: NodePlan) -> list[str]:
    flags = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-P", "-m", "stratamq", plan.tier, "--config", str(plan.config), *flags]


def _how_it_ended(code: int) -> str:
    if code == EXIT_RESTART:
        return "was declared dead by the routers"
    if code == EXIT_PUT_ASIDE:
        return "quarantined its damaged store (see its log)"
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _environment() -> dict[str, str]:
    """Return the environment of a child: ours, with this code first on the path.

    Required only if our PYTHONPATH precedes the installed packages.
    """
    root = str(Path(__file__).parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if installed() and len(paths) == 1:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
