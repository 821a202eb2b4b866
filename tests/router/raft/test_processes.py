"""Three real processes and disks, repeated kill -9 of the leader: no acknowledged entry is lost."""

import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.raft import Link, receive_loop
from router.raft.events import RaftConfig
from router.raft.log import RaftLog, create_log
from router.raft.messages import LogEntry
from router.raft.node import NotLeader, RaftNode, Unavailable
from tests.turn_time import assert_within, timed

pytestmark = pytest.mark.slow

KILLS = 15
NAMES = ("r1", "r2", "r3")


async def _serve(
    name: str,
    folder: Path,
    life: int,
    listener: socket.socket,
    addresses: dict[str, Any],
    control: "Connection[Any, Any]",
) -> None:
    links = {peer: Link(address) for peer, address in addresses.items() if peer != name}
    values: list[bytes] = []

    def apply(entry: LogEntry) -> None:
        values.append(entry.data)

    def restore(data: bytes) -> None:
        values[:] = data.split()

    def take() -> Callable[[], bytes]:
        data = b" ".join(values)
        return lambda: data

    node = RaftNode(
        RaftConfig(id=name, voters=NAMES, trailing_entries=50),
        RaftLog(folder),
        send=lambda to, message: links[to].send(message),
        apply=apply,
        take_snapshot=take,
        restore=restore,
        rng=random.Random(life),
        incarnation=life,
        snapshot_every_entries=100,
    )

    async def answer() -> None:
        while True:
            if not control.poll():
                await trio.sleep(0.001)
                continue
            request = control.recv()
            if request == "values":
                control.send(values)
                continue
            try:
                with trio.fail_after(2):
                    await node.propose(request)
                control.send("acknowledged")
            except (NotLeader, Unavailable, trio.TooSlowError):
                control.send("no")

    async with trio.open_nursery() as nursery:
        stream = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        nursery.start_soon(trio.serve_listeners, lambda stream: receive_loop(stream, node), [stream])
        for link in links.values():
            nursery.start_soon(link.run)
        await nursery.start(node.run)
        await answer()


def _process(*arguments: Any) -> None:
    trio.run(_serve, *arguments)


class Processes:
    """The group, killed and started by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
        self.addresses = {name: listener.getsockname() for name, listener in self.listeners.items()}
        self.processes: dict[str, Any] = {}
        self.pipes: dict[str, Any] = {}
        self.lives = 0
        for name in NAMES:
            create_log(folder / name, random.getrandbits(60) + 1)
            self.start(name)

    def start(self, name: str) -> None:
        self.lives += 1
        self.pipes[name], theirs = multiprocessing.get_context("fork").Pipe()
        arguments = (name, self.folder / name, self.lives, self.listeners[name], self.addresses, theirs)
        process = multiprocessing.get_context("fork").Process(target=_process, args=arguments, daemon=True)
        process.start()
        self.processes[name] = process

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.pipes.pop(name)

    def ask(self, name: str, request: object) -> Any:
        self.pipes[name].send(request)
        return self.pipes[name].recv() if self.pipes[name].poll(5) else None

    def propose(self, value: bytes) -> str:
        """Send to each process until one acknowledges; return its name."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for name in self.processes:
                if self.ask(name, value) == "acknowledged":
                    return name
        raise AssertionError("no leader within 10 s")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Processes]:
    group = Processes(tmp_path)
    yield group
    for name in list(group.processes):
        group.kill(name)
    for listener in group.listeners.values():
        listener.close()


@timed
def test_repeated_kills_of_the_leader_lose_no_acknowledged_value(group: Processes) -> None:
    """A new leader answers within 3 s of each kill, and every process applies every acknowledged value."""
    acknowledged: list[bytes] = []
    worst = 0.0
    number = 0
    for _ in range(KILLS):
        for _ in range(20):
            number += 1
            value = b"%d" % number
            leader = group.propose(value)
            acknowledged.append(value)
        group.kill(leader)
        began = time.monotonic()
        number += 1
        group.propose(b"%d" % number)
        acknowledged.append(b"%d" % number)
        worst = max(worst, time.monotonic() - began)
        group.start(leader)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        values = [group.ask(name, "values") for name in NAMES]
        if values[0] == values[1] == values[2] and set(acknowledged) <= set(values[0]):
            break
    assert values[0] == values[1] == values[2]
    assert set(acknowledged) <= set(values[0])
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged, longest pause {worst:.2f} s")
    assert_within("the longest pause", worst * 1e3, 3_000)
