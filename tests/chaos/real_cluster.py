"""A real cluster for schedules: the processes of ``stratamq up``, with disk, clock and network faults.

Names, certificates and configuration come from ``stratamq.local_plan``. It starts the processes of
``stratamq.processes``, but keeps killed nodes down as scheduled, and records unexpected ends. A node that
the routers declared dead is restarted at once, as ``up`` does.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from stratamq.history.client import Address
from stratamq.local_plan import CLUSTER, NodePlan, UpOptions, make_plan
from tests.chaos.namespaces import Namespaces
from tests.chaos.node_disk import CRASH_POINTS, NodeDisk, build_shim, can_preload
from tests.chaos.schedule import Verb, tier_of
from wire.node.process import EXIT_DAMAGED, EXIT_PUT_ASIDE, EXIT_RESTART

READY_S = 300.0
BACKOFF_S = 0.2
POLL_S = 0.1
SETTINGS_OF = {"edge": ("edge.flapping_ends_max=0",)}  # the limit would refuse the workload of takeovers
WHAT_IS_MISSING = (
    "partitions_without_primary",
    "partitions_under_replicated",
    "partitions_unplaced",
    "shards_collecting",
)
DISK_VERBS = (Verb.FAIL_SYNC, Verb.FILL_DISK, Verb.FLIP_BITS)

__all__ = ["RealCluster", "Shape", "real_cluster", "spread"]


@dataclass(frozen=True)
class Shape:
    """The number of nodes of each tier, and the possible faults.

    Attributes:
        small_disks: Nodes with a disk of 64 MiB (needs root).
        namespaces: Each node in its own network (needs root, and a namespace for this process).
    """

    routers: int = 1
    storages: int = 1
    edges: int = 2
    small_disks: tuple[str, ...] = ()
    namespaces: bool = False
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.routers}/{self.storages}/{self.edges}"


@dataclass(eq=False)
class _Node:
    plan: NodePlan
    disk: NodeDisk
    wanted: bool = True
    stopped: bool = False
    damaged: bool = False  # by us: ending by itself is then the right answer
    process: trio.Process | None = None
    addresses: dict[str, Any] = field(default_factory=dict)
    ready: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class RealCluster:
    """Implements ``chaos_run.Cluster``.

    Attributes:
        ended: Unexpected ends of processes: a line each.
        missing: Missing parts of the cluster at the last status check.
        crash_points: The armed ones, and whether a process reached them.
        deaths: How often the routers declared each node dead and it restarted.
    """

    def __init__(self, folder: Path, shape: Shape, seed: int) -> None:
        self.folder, self.shape = folder, shape
        self.ended: list[str] = []
        self.deaths: Counter[str] = Counter()
        self.missing: dict[str, int] = {}
        self.crash_points: Counter[str] = Counter()
        self._armed: dict[str, str] = {}
        self._rng = random.Random(f"{seed}/damage")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = UpOptions(
            shape.edges, shape.routers, shape.storages, folder, 0, 0, settings=shape.settings, restart=False
        )
        plan = make_plan(options, folder, datetime.datetime.now(datetime.UTC))
        names = [node.name for node in plan.nodes]
        self._network = Namespaces(names) if shape.namespaces else None
        if self._network is not None:
            spread(plan.nodes, self._network.address)
        shim = build_shim(folder) if can_preload() else None
        (folder / "logs").mkdir(exist_ok=True)
        self._nodes = {
            node.name: _Node(
                node, NodeDisk(folder / node.name, folder / f"{node.name}.shim", shim, node.name in shape.small_disks)
            )
            for node in plan.nodes
        }
        self._routers = plan.routers

    # -- actions of schedules

    def nodes(self) -> list[str]:
        return list(self._nodes)

    async def kill(self, node: str) -> None:
        entry = self._nodes[node]
        entry.wanted = False
        self._signal(node, signal.SIGKILL)
        while entry.process is not None:
            await entry.changed.wait()

    async def restart(self, node: str) -> None:
        """Start a node unless it runs; returns at once: ``recovered`` waits."""
        entry = self._nodes[node]
        entry.wanted = True
        entry.change()

    async def stop(self, node: str) -> None:
        self._nodes[node].stopped = True
        self._signal(node, signal.SIGSTOP)

    async def cont(self, node: str) -> None:
        self._nodes[node].stopped = False
        self._signal(node, signal.SIGCONT)

    def cut(self, sender: str, receiver: str) -> None:
        self._net.cut(sender, receiver)

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        raise NotImplementedError("this kernel cannot delay; test_fault_proxy.py does")

    def half_open(self, node: str) -> None:
        """Drop all traffic of the node, then kill it: its peers receive neither FIN nor RST."""
        for other in self._nodes:
            if other != node:
                self._net.cut(node, other)
        self._nodes[node].wanted = False
        self._signal(node, signal.SIGKILL)

    def heal_links(self) -> None:
        self._net.heal()

    async def disk(self, node: str, verb: Verb, amount: float) -> None:
        entry = self._nodes[node]
        entry.damaged = entry.damaged or verb in DISK_VERBS
        if verb is Verb.SLOW_SYNC:
            entry.disk.slow_sync(amount)
        elif verb is Verb.FAIL_SYNC:
            entry.disk.fail_next_sync()
        elif verb is Verb.FILL_DISK:
            await trio.to_thread.run_sync(entry.disk.fill, amount)
        elif verb is Verb.FLIP_BITS:
            self._say(node, f"flipped {', '.join(entry.disk.flip_bits(int(amount), self._rng))}")
        elif verb is Verb.WIPE_DISK:
            entry.disk.wipe()
        elif verb is Verb.LOSE_POWER:
            lost = await trio.to_thread.run_sync(entry.disk.lose_power, self._rng)
            self._say(node, f"lost power: {', '.join(lost) or 'nothing was unsynced'}")
        elif verb is Verb.CRASH_POINT:
            point, after = divmod(int(amount), 1000)
            entry.wanted = False  # stays down until the schedule starts it
            entry.disk.crash_at(CRASH_POINTS[point - 1], after)
            self._armed[node] = CRASH_POINTS[point - 1]

    async def heal_disk(self, node: str) -> None:
        disk = self._nodes[node].disk
        if (point := self._armed.pop(node, None)) is not None:
            reached = disk.crashed()
            self.crash_points[f"{tier_of(node)}, {point}, {'reached' if reached else 'not reached'}"] += 1
            self._say(node, f"crash point {point} {'reached' if reached else 'not reached'}")
        disk.heal()

    async def shift_clock(self, node: str, seconds: float) -> None:
        self._nodes[node].disk.shift_clock(seconds)

    async def recovered(self) -> None:
        """Return when every node is ready, every partition has a primary and all its copies are in sync."""
        await self.all_ready()
        while not await self._placed():
            await trio.sleep(POLL_S)
        for entry in self._nodes.values():
            entry.damaged = False

    # -- queries of runs

    async def all_ready(self) -> None:
        while down := [name for name, entry in self._nodes.items() if not entry.ready]:
            self.missing = dict.fromkeys(down, 1)
            await trio.sleep(POLL_S)

    def brokers(self) -> tuple[Address, ...]:
        """Return the addresses of the edges' plain ports."""
        edges = [entry.plan for entry in self._nodes.values() if entry.plan.tier == "edge"]
        return tuple((self._address(plan.name), plan.listeners["plain"]) for plan in edges)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the processes until cancelled; started when all are ready."""
        try:
            async with trio.open_nursery() as nursery:
                for entry in self._nodes.values():
                    nursery.start_soon(self._keep, entry)
                with trio.move_on_after(READY_S) as waited:
                    await self.recovered()
                if waited.cancelled_caught:
                    ends = [f"{name}: {self._tail(name)}" for name in self.missing if name in self._nodes]
                    raise TimeoutError(f"not ready within {READY_S:g} s: {self.missing}\n" + "\n".join(ends))
                task_status.started()
        finally:
            for entry in self._nodes.values():
                entry.disk.close()
            if self._network is not None:
                self._network.close()

    async def _keep(self, entry: _Node) -> None:
        name = entry.plan.name
        while True:
            while not entry.wanted:
                await entry.changed.wait()
            code = await self._one_life(entry)
            if not entry.wanted:
                continue
            if code in (EXIT_RESTART, EXIT_PUT_ASIDE):
                self.deaths[name] += 1
            elif code == EXIT_DAMAGED and tier_of(name) == "router":
                self._say(name, "moved the damaged log away, as docs/ring.md says")
                raft = Path(entry.disk.folder) / "raft"
                if raft.exists():
                    raft.rename(raft.with_name(f"raft.damaged-{self._rng.randrange(1 << 30)}"))
            elif code and not entry.damaged:
                self.ended.append(f"{name} ended with {code}: {self._tail(name)}")
            await trio.sleep(BACKOFF_S)

    async def _one_life(self, entry: _Node) -> int:
        ready_read, ready_write = os.pipe()
        life_read, life_write = os.pipe()
        name = entry.plan.name
        command = [sys.executable, "-m", "stratamq", entry.plan.tier, "--config", str(entry.plan.config)]
        command += ["--ready-fd", str(ready_write), "--lifeline-fd", str(life_read)]
        for setting in (*self.shape.settings, *SETTINGS_OF.get(entry.plan.tier, ())):
            command += ["--set", setting]
        front = self._network.command(name) if self._network is not None else []
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            entry.process = await trio.lowlevel.open_process(
                [*front, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(ready_write, life_read),
                start_new_session=True,
                env={**os.environ, **entry.disk.environment()},
            )
        os.close(ready_write)
        os.close(life_read)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_ready, entry, ready_read)
                await entry.process.wait()
                nursery.cancel_scope.cancel()
        finally:
            process, entry.process, entry.ready = entry.process, None, False
            if process.returncode is None:
                process.kill()
            os.close(life_write)
            entry.change()
        return process.returncode if process.returncode is not None else -signal.SIGKILL

    async def _read_ready(self, entry: _Node, descriptor: int) -> None:
        line = b""
        async with trio.lowlevel.FdStream(descriptor) as pipe:
            while not line.endswith(b"\n") and (data := await pipe.receive_some(65_536)):
                line += data
        if line.endswith(b"\n"):
            entry.addresses = json.loads(line)["addresses"]
            entry.ready = True
            self._write_state()
            entry.change()

    def _write_state(self) -> None:
        """Write the state file of the operator's commands."""
        state = {
            "pid": os.getpid(),
            "cluster": CLUSTER,
            "routers": [
                f"{self._address(name)}:{self._routers[number].rpartition(':')[2]}"
                for number, name in enumerate(n for n in self._nodes if tier_of(n) == "router")
            ],
            "tls": str(self.folder / "tls"),
            "nodes": {
                name: {
                    "tier": entry.plan.tier,
                    "pid": entry.process.pid if entry.process is not None else 0,
                    "addresses": entry.addresses,
                }
                for name, entry in self._nodes.items()
            },
            "listeners": {n: e.plan.listeners for n, e in self._nodes.items() if e.plan.tier == "edge"},
        }
        (self.folder / "up.json").write_text(json.dumps(state))

    async def ask(self, verb: str) -> Any:
        """Return the JSON of an operator's command; None when no router answers."""
        command = [sys.executable, "-m", "stratamq", *verb.split(), "-o", "json", "--data", str(self.folder)]
        with trio.move_on_after(10.0):
            result = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
            try:
                return json.loads(result.stdout)
            except ValueError:
                self.missing = {result.stderr.decode(errors="replace")[-200:]: 0}
                return None
        self.missing = {"routers that answer": 0}
        return None

    async def _placed(self) -> bool:
        status = await self.ask("cluster status")
        if status is not None:
            self.missing = {name: status[name] for name in WHAT_IS_MISSING if status[name]}
        return status is not None and not self.missing

    def _address(self, node: str) -> str:
        return self._network.address(node) if self._network is not None else "127.0.0.1"

    @property
    def _net(self) -> Namespaces:
        if self._network is None:
            raise NotImplementedError("links are cut between network namespaces only")
        return self._network

    def _signal(self, node: str, number: signal.Signals) -> None:
        process = self._nodes[node].process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _say(self, node: str, line: str) -> None:
        with (self.folder / "logs" / f"{node}.log").open("a") as log:
            log.write(f"[chaos] {line}\n")

    def _tail(self, node: str) -> str:
        lines = (self.folder / "logs" / f"{node}.log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-4:])


def spread(plans: tuple[NodePlan, ...], address_of: Callable[[str], str]) -> None:
    """Replace the loopback addresses of ``make_plan`` by one address per node."""
    first = address_of("router-0")
    routers: dict[str, str] = {}
    for plan in plans:
        for line in plan.config.read_text().splitlines():
            if plan.tier == "router" and line.startswith("link_port"):
                routers[line.split("=")[1].strip()] = address_of(plan.name)
    for plan in plans:
        lines = []
        for line in plan.config.read_text().splitlines():
            for port, address in routers.items():
                line = line.replace(f"127.0.0.1:{port}", f"{address}:{port}")
            if line.startswith("seeds") or (plan.name == "router-0" and line.startswith("bind")):
                line = line.replace("127.0.0.1", first)  # gossip
            lines.append(line.replace("127.0.0.1", address_of(plan.name)))
            if line == "[metrics]":
                lines.append(f'bind = "{address_of(plan.name)}"')
        plan.config.write_text("\n".join([*lines, ""]))


@contextlib.asynccontextmanager
async def real_cluster(folder: Path, shape: Shape, seed: int) -> AsyncIterator[RealCluster]:
    """Run a cluster in a folder."""
    cluster = RealCluster(folder, shape, seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.run)
        yield cluster
        nursery.cancel_scope.cancel()
