"""Dead letters in a file: one JSON object a line, synced before the record counts as finished."""

from __future__ import annotations

import base64
import errno
import json
import os
from pathlib import Path

import trio

from gateways.bridges.flow import BridgeFlow
from gateways.bridges.message import user_properties
from gateways.bridges.pump import DeadLetter

__all__ = ["DeadLetterFile", "append_letters"]

WAITING_MAX = 256


class DeadLetterFile:
    """``DeadLetters`` of a flow; ``run`` writes them."""

    def __init__(self, path: Path, flow: BridgeFlow, bytes_max: int) -> None:
        self._path, self._flow, self._bytes_max = path, flow, bytes_max
        self._waiting: list[DeadLetter] = []
        self._wake = trio.Event()

    @property
    def has_capacity(self) -> bool:
        """Whether one more may be queued."""
        return len(self._waiting) < WAITING_MAX

    def write(self, letter: DeadLetter) -> None:
        """Queue a rejected record."""
        self._waiting.append(letter)
        self._wake.set()

    async def run(self) -> None:
        """Write queued records until cancelled."""
        while True:
            if not self._waiting:
                self._wake = trio.Event()
                await self._wake.wait()
            letters, self._waiting = self._waiting, []
            try:
                await trio.to_thread.run_sync(append_letters, self._path, letters, self._bytes_max)
            except OSError as error:
                for letter in letters:
                    self._flow.dead_letter_failed(letter.token, f"{self._path}: {error.strerror or error}")
            else:
                for letter in letters:
                    self._flow.dead_letter_done(letter.token)


def append_letters(path: Path, letters: list[DeadLetter], bytes_max: int) -> None:
    """Append lines and sync them; a line cut by a crash is written again completely.

    Raises:
      OSError: Not all lines were written; the file's bound or its disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = b"".join(_line(letter) for letter in letters)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size + len(lines) > bytes_max:
            raise OSError(errno.EFBIG, f"dead_letter_bytes_max of {bytes_max} bytes reached: move the file away")
        if size and not _ends_line(path, size):
            lines = b"\n" + lines
        while lines:
            lines = lines[os.write(descriptor, lines) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_line(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _line(letter: DeadLetter) -> bytes:
    message = letter.record.message
    found = {
        "reason": letter.reason,
        "topic": message.topic,
        "target": letter.record.target,
        "qos": message.qos,
        "retain": message.retain,
        "key": None if message.key is None else base64.b64encode(message.key).decode(),
        "payload": base64.b64encode(message.payload).decode(),
        "user_properties": user_properties(message.properties),
        "at_ms": message.at_ms,
    }
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"
