"""``python -m bench.raft``: committed entries per second and time to elect, three nodes in three processes.

Each node is its own process with its own folder; links are plain TCP on loopback with length-prefixed messages. The
leader's process runs the proposers. For comparison it prints the raw fdatasync latency of the same idle disk:
no Raft on this disk commits a batch faster than about two of them.
"""

import argparse
import multiprocessing
import os
import random
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import deque
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio

from router.raft.events import RaftConfig
from router.raft.log import RaftLog, create_log
from router.raft.messages import RaftMessage, decode_message, encode_message
from router.raft.node import NotLeader, RaftNode, Unavailable

__all__ = ["Link", "main", "receive_loop"]

_LENGTH = struct.Struct("<I")
QUEUE_MAX = 10_000  # messages waiting for a link; more are dropped, Raft repeats


class Link:
    """Outgoing messages to one peer, batched into one write."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._queue: deque[bytes] = deque(maxlen=QUEUE_MAX)
        self._wake = trio.Event()

    def send(self, message: RaftMessage) -> None:
        self._queue.append(encode_message(message))
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                stream = await trio.open_tcp_stream(*self._address)
                while True:
                    if not self._queue:
                        await self._wake.wait()
                    self._wake = trio.Event()
                    pieces: list[bytes] = []
                    while self._queue:
                        payload = self._queue.popleft()
                        pieces += (_LENGTH.pack(len(payload)), payload)
                    await stream.send_all(b"".join(pieces))
            except (OSError, trio.BrokenResourceError):
                await trio.sleep(0.01)


async def receive_loop(stream: trio.SocketStream, node: RaftNode) -> None:
    """Hand the messages of one connection to the node until it ends, well or not."""
    try:
        async with stream:
            await _receive_messages(stream, node)
    except trio.BrokenResourceError:
        pass


async def _receive_messages(stream: trio.SocketStream, node: RaftNode) -> None:
    buffer = bytearray()
    async for data in stream:
        buffer += data
        offset = 0
        while len(buffer) - offset >= 4:
            (length,) = _LENGTH.unpack_from(buffer, offset)
            if len(buffer) - offset - 4 < length:
                break
            node.receive(decode_message(bytes(buffer[offset + 4 : offset + 4 + length])))
            offset += 4 + length
        del buffer[:offset]


async def _serve(
    name: str,
    folder: Path,
    listener: socket.socket,
    addresses: dict[str, tuple[str, int]],
    report: "Connection[Any, Any]",
    args: argparse.Namespace,
) -> None:
    links = {peer: Link(address) for peer, address in addresses.items() if peer != name}
    applied = [0]

    def apply(entry: object) -> int:
        del entry
        applied[0] += 1
        return applied[0]

    node = RaftNode(
        RaftConfig(id=name, voters=tuple(addresses)),
        RaftLog(folder),
        send=lambda to, message: links[to].send(message),
        apply=apply,
        take_snapshot=lambda: partial(b"%d".__mod__, applied[0]),
        restore=lambda _: None,
        rng=random.Random(name),
        incarnation=1,
    )
    trio_listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, lambda stream: receive_loop(stream, node), [trio_listener])
        for link in links.values():
            nursery.start_soon(link.run)
        await nursery.start(node.run)
        while node.leader_hint is None:
            await trio.sleep(0.001)
        report.send(("leader known", time.monotonic()))
        while not report.poll():
            await trio.sleep(0.01)
        report.recv()
        if node.is_leader:
            report.send(("figures", await _load(node, args)))
        else:
            report.send(("figures", None))
        while not report.poll():
            await trio.sleep(0.05)
        report.send(("applied", applied[0]))
        nursery.cancel_scope.cancel()


async def _load(node: RaftNode, args: argparse.Namespace) -> tuple[int, float, list[float]]:
    latencies: list[float] = []
    payload = b"x" * args.bytes
    end = time.monotonic() + args.seconds

    async def proposer() -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                await node.propose(payload)
            except (NotLeader, Unavailable):
                await trio.sleep(0.01)
                continue
            latencies.append(time.monotonic() - began)

    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for _ in range(args.proposers):
            nursery.start_soon(proposer)
    return len(latencies), time.monotonic() - began, sorted(latencies)[:: max(1, len(latencies) // 1000)]


def _process(
    name: str,
    folder: Path,
    listener: socket.socket,
    addresses: dict[str, tuple[str, int]],
    report: "Connection[Any, Any]",
    args: argparse.Namespace,
) -> None:
    trio.run(_serve, name, folder, listener, addresses, report, args)


def _raw_fdatasync_ms(folder: Path) -> list[float]:
    took = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


def main() -> int:
    """Run once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--proposers", type=int, default=256, help="concurrent callers of propose")
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary folder here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder or Path.cwd(), prefix=".bench-raft-") as name:
        folder = Path(name)
        raw = _raw_fdatasync_ms(folder)
        names = ("r1", "r2", "r3")
        listeners = {}
        for at, peer in enumerate(names):
            create_log(folder / peer, random.getrandbits(62) + 1 + at)
            listeners[peer] = socket.create_server(("127.0.0.1", 0))
        addresses = {peer: listener.getsockname() for peer, listener in listeners.items()}
        pipes, processes = [], []
        began = time.monotonic()
        for peer in names:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(
                target=_process, args=(peer, folder / peer, listeners[peer], addresses, theirs, args), daemon=True
            )
            process.start()
            pipes.append(ours)
            processes.append(process)
        known = max(pipe.recv()[1] for pipe in pipes)
        for pipe in pipes:
            pipe.send("go")
        figures = [pipe.recv()[1] for pipe in pipes]
        time.sleep(0.3)  # followers learn the last commit index with the next heartbeat
        for pipe in pipes:
            pipe.send("stop")
        applied = [pipe.recv()[1] for pipe in pipes]
        for process in processes:
            process.join(5)
        ends = []
        for peer in names:
            stored = RaftLog(folder / peer).load()
            ends.append(len(stored.entries) + (stored.snapshot.index if stored.snapshot else 0))
    count, took, latencies = next(each for each in figures if each is not None)
    print(f"3 nodes in 3 processes knew a leader {known - began:.3f} s after the first process was started")
    print(f"{count / took:,.0f} committed entries/s ({args.bytes} B, {args.proposers} proposers, {took:.1f} s)")
    p99 = latencies[int(len(latencies) * 0.99)] * 1000
    print(f"latency of propose, ms: median {statistics.median(latencies) * 1000:.2f}, P99 {p99:.2f}")
    print(f"answered {count}, applied by each {applied}, last index on each disk {ends}")
    print(f"raw fdatasync of 4 KiB, ms: median {raw[100]:.3f}, P99 {raw[197]:.3f}; load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
