"""Floor of a relaying agent: the cheapest Python program that fulfils custody.

It reads frames over TLS 1.3, splits them by their headers, stores each as a row, deletes those of the batch before (the
next hop has stored them) in the same synced transaction, and sends them over TLS. It neither decodes,
routes nor renumbers. The generator and the receiver are other processes.
"""

from __future__ import annotations

import socket
import sqlite3
import ssl
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from gateways.federation.messages import TopicMessage, encode
from stratamq.federate_folder import make_folder
from wire.messages.frames import HEADER, HEADER_BYTES, PROTOCOL_VERSION, FrameKind

__all__ = ["relayed_floor"]

BATCH = 256  # messages of a transaction: about as many as an agent has in one
READ_BYTES = 256 * 1024
USED = "used"  # file: processor seconds of the program in the middle
SCHEMA = "CREATE TABLE rows(key INTEGER PRIMARY KEY, value BLOB NOT NULL)"


def relayed_floor(count: int, payload_bytes: int) -> tuple[float, float]:
    """Return messages a second on the clock, and processor time per message in us, of the program in the middle."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_folder(folder, "floor", ["a", "b"], ["a-b"])
        source, middle_in = _pair()
        middle_out, end = _pair()
        begun = time.monotonic()
        feeder = _start(lambda: _feed(_tls(folder, source, False), count, payload_bytes), (middle_in, middle_out, end))
        middle = _start(lambda: _relay(folder, middle_in, middle_out, count), (source, end))
        for each in (source, middle_in, middle_out):
            each.close()
        _drain(_tls(folder, end, True), count)
        for process in (middle, feeder):
            process.join()
        took = time.monotonic() - begun
        if middle.exitcode:
            raise RuntimeError("the program in the middle failed")
        return count / took, float((folder / USED).read_text()) / count * 1e6


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def _start(work: Callable[[], None], strange: tuple[socket.socket, ...]) -> BaseProcess:
    def run() -> None:
        for each in strange:
            each.close()
        work()

    process = get_context("fork").Process(target=run)
    process.start()
    return process


def _tls(folder: Path, plain: socket.socket, is_server: bool) -> ssl.SSLSocket:
    side = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    name, tls = "b" if is_server else "a", folder / "tls"
    context.load_verify_locations(tls / "ca.pem")
    context.load_cert_chain(tls / f"{name}.pem", tls / f"{name}.key")
    return context.wrap_socket(plain, server_side=is_server)


def _feed(stream: ssl.SSLSocket, count: int, payload_bytes: int) -> None:
    frames = []
    for number in range(1, count + 1):
        message = TopicMessage(
            "a",
            1,
            number,
            number - 1,
            number,
            "rate/x",
            bytes(payload_bytes),
            1,
            False,
            False,
            0,
            3,
            0,
            b"",
            ("c",),
            ("a",),
        )
        data = encode(message)
        frames += [HEADER.pack(len(data), FrameKind.CONTROL, 0, PROTOCOL_VERSION, number), data]
    stream.sendall(b"".join(frames))
    stream.recv(1)


def _relay(folder: Path, before: socket.socket, behind: socket.socket, count: int) -> None:
    database = sqlite3.connect(folder / "rows", isolation_level=None)
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(SCHEMA)
    source, target = _tls(folder, before, True), _tls(folder, behind, False)
    rest, done = b"", 0
    former: list[tuple[int]] = []
    rows: list[tuple[int, bytes]] = []
    while done < count:
        while len(rows) < min(BATCH, count - done):
            rest += source.recv(READ_BYTES)
            at = 0
            while len(rest) - at >= HEADER_BYTES:
                length, _, _, _, number = HEADER.unpack_from(rest, at)
                end = at + HEADER_BYTES + length
                if end > len(rest):
                    break
                rows.append((number, rest[at:end]))
                at = end
            rest = rest[at:]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("DELETE FROM rows WHERE key = ?", former)
        database.executemany("INSERT INTO rows VALUES(?, ?)", rows)
        database.execute("COMMIT")
        target.sendall(b"".join([frame for _, frame in rows]))
        done += len(rows)
        former, rows = [(number,) for number, _ in rows], []
    (folder / USED).write_text(str(time.process_time()))
    source.sendall(b"k")


def _drain(stream: ssl.SSLSocket, count: int) -> None:
    size = 0
    while data := stream.recv(READ_BYTES):
        size += len(data)
    if size < count * HEADER_BYTES:
        raise RuntimeError("not everything came")
