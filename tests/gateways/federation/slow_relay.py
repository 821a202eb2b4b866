"""Relays of links between agents, in threads; each delays, blocks or cuts the bytes of one link."""

from __future__ import annotations

import queue
import random
import socket
import threading
import time
from collections.abc import Iterable

from tests.patience import PATIENCE_S

CHUNK_BYTES = 65_536
STALL_S = (0.3, 3.0)
LOOK_S = 0.01
WAITING_MAX = 1_024  # chunks in transit


class Relays:
    """All relays of a federation.

    Attributes:
        delay_s: Delay of each chunk.
        stall_share: Share of chunks that are delayed longer, with all chunks after them.
        pairs: The links, by the names of their agents.
    """

    def __init__(self) -> None:
        self.delay_s = self.stall_share = 0.0
        self.pairs: list[tuple[str, str]] = []
        self._cut: set[tuple[str, str]] = set()
        self._listeners: list[socket.socket] = []
        self._random = random.Random(7)
        self._is_over = False

    def port(self, one: str, other: str, target: int) -> int:
        """Return the port of a new relay to a port."""
        pair = (one, other)
        self.pairs.append(pair)
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, target, pair), daemon=True).start()
        return int(listener.getsockname()[1])

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Block these links; the connections stay open, as with an unplugged cable."""
        self._cut = set(pairs)

    def heal(self) -> None:
        """Unblock all links."""
        self._cut = set()

    def close(self) -> None:
        """Close all sockets."""
        self._is_over = True
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: socket.socket, target: int, pair: tuple[str, str]) -> None:
        while not self._is_over:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", target), timeout=PATIENCE_S)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pipe, args=(source, sink, pair), daemon=True).start()

    def _pipe(self, source: socket.socket, sink: socket.socket, pair: tuple[str, str]) -> None:
        waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(WAITING_MAX)
        threading.Thread(target=self._send, args=(waiting, sink, pair), daemon=True).start()
        due = 0.0
        while True:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            stall = self._random.uniform(*STALL_S) if self._random.random() < self.stall_share else 0.0
            due = max(due, time.monotonic() + self.delay_s + stall)
            waiting.put((due, data))
            if not data:
                return

    def _send(self, waiting: queue.Queue[tuple[float, bytes]], sink: socket.socket, pair: tuple[str, str]) -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            while pair in self._cut and not self._is_over:
                time.sleep(LOOK_S)
            try:
                if data:
                    sink.sendall(data)
                    continue
            except OSError:
                pass
            sink.close()
            while data:  # lets the reader end
                _, data = waiting.get()
            return
