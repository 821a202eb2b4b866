"""A Mosquitto of our own for tests: free port, temporary configuration, killed and started at will."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.free_ports import free_ports
from tests.patience import PATIENCE_S

EXECUTABLE = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
INSTALLED = Path(EXECUTABLE).exists()
START_TIMEOUT_S = PATIENCE_S

__all__ = ["INSTALLED", "Mosquitto", "running_mosquitto"]


class Mosquitto:
    """One broker process on loopback."""

    def __init__(self, folder: Path, persistence: bool, further: Iterable[str] = ()) -> None:
        self.ports = free_ports(2)  # two doors to one broker: for clients that change their address
        self.port = self.ports[0]
        self._process: trio.Process | None = None
        self._config = folder / "mosquitto.conf"
        lines = [
            *(f"listener {port} 127.0.0.1" for port in self.ports),
            "allow_anonymous true",
            "max_queued_messages 0",
            "log_type error",
            "user root",  # started by root it would drop its rights, and could not write its database here
            f"persistence {'true' if persistence else 'false'}",
            f"persistence_location {folder}/",
            "autosave_interval 1",
            *further,
        ]
        self._config.write_text("\n".join(lines) + "\n")

    async def start(self) -> None:
        """Start and wait until it accepts connections."""
        self._process = await trio.lowlevel.open_process(
            [EXECUTABLE, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with trio.fail_after(START_TIMEOUT_S):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                except OSError:
                    await trio.sleep(0.01)  # there is nothing to wait on for a port to open
                    continue
                await stream.aclose()
                return

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def pause(self, number: int) -> None:
        """Let the process stand still by SIGSTOP, or go on by SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)


@asynccontextmanager
async def running_mosquitto(
    folder: Path, persistence: bool = False, further: Iterable[str] = ()
) -> AsyncIterator[Mosquitto]:
    """Run a broker for the length of a block, with further lines of its configuration."""
    broker = Mosquitto(folder, persistence, further)
    await broker.start()
    try:
        yield broker
    finally:
        with trio.CancelScope(shield=True):
            await broker.kill()
