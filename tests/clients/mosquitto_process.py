"""Debian's Mosquitto for a test without trio: a free port, its own configuration, stopped with the block."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.free_ports import free_port
from tests.patience import PATIENCE_S

__all__ = ["EXECUTABLE", "mosquitto"]

EXECUTABLE = shutil.which("mosquitto") or "/usr/sbin/mosquitto"


@contextlib.contextmanager
def mosquitto(folder: Path, *lines: str) -> Iterator[int]:
    """Run it with some lines of configuration; yield its port once all its listeners accept connections.

    Started by root it would drop its privileges, and could not read the test's files.
    """
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text("\n".join((f"listener {port} 127.0.0.1", "user root", *lines, "")))
    with (folder / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([EXECUTABLE, "-c", config], stdout=log, stderr=log)
    waiting = [port, *(int(line.split()[1]) for line in lines if line.startswith("listener "))]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while waiting and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", waiting[-1]), 1):
                waiting.pop()
                continue
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
