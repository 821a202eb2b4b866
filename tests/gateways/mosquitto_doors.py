"""A Mosquitto with four listeners for gateways: TCP, TLS, WebSocket and WebSocket over TLS."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.free_ports import free_ports
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import EXECUTABLE, INSTALLED
from wire.links.authority import DevelopmentAuthority

__all__ = ["INSTALLED", "Doors", "mosquitto_doors"]

NOW = datetime.datetime.now(datetime.UTC)


@dataclass
class Doors:
    """Addresses by scheme, and the CA of the broker."""

    addresses: dict[str, str]
    authority: Path
    process: trio.Process


@asynccontextmanager
async def mosquitto_doors(folder: Path, *lines: str) -> AsyncIterator[Doors]:
    """Run a broker within a block.

    Args:
      folder: Of its files.
      lines: Of its configuration, before the listeners.
    """
    files = DevelopmentAuthority(folder / "tls", "test", NOW).server("mosquitto")
    ports = free_ports(4)
    tls = [f"cafile {files.authority}", f"certfile {files.certificate}", f"keyfile {files.key}"]
    config = folder / "mosquitto.conf"
    listeners = [f"listener {ports[0]} 127.0.0.1", f"listener {ports[1]} 127.0.0.1", *tls]
    listeners += [f"listener {ports[2]} 127.0.0.1", "protocol websockets"]
    listeners += [f"listener {ports[3]} 127.0.0.1", "protocol websockets", *tls]
    config.write_text("\n".join(["allow_anonymous true", "user root", *lines, *listeners]) + "\n")
    process = await trio.lowlevel.open_process(
        [EXECUTABLE, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with trio.fail_after(PATIENCE_S):
            for port in ports:
                while True:
                    try:
                        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                        break
                    except OSError:
                        await trio.sleep(0.01)  # polling: no event signals an open port
        names = zip(("mqtt", "mqtts", "ws", "wss"), ports, strict=True)
        yield Doors({name: f"{name}://127.0.0.1:{port}" for name, port in names}, files.authority, process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
