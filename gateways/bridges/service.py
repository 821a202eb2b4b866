"""The process of bridges: its folder, metrics page, status socket, signals, and one task per bridge."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import trio

from conf.bridge_config import BridgeConfig
from conf.data_folder import DataFolder
from conf.errors import ExitCode
from conf.metrics import Metrics
from gateways.bridges.kinds import build_all
from gateways.bridges.report import Rates, register_metrics, status_rows
from gateways.bridges.running import Bridge, BridgeFinding, run_bridge
from gateways.process import open_pages
from wire.links.fast_path_run import run_plainly
from wire.node.process import own_version

__all__ = ["STATUS_SOCKET", "check", "main"]

logger = logging.getLogger(__name__)

STATUS_SOCKET = "status.sock"
RATE_S = 1.0
STATUS_S_MAX = 5.0  # timeout of a status connection


def main(config: BridgeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    """Run all bridges until they have ended or a signal is received; return the exit code.

    Raises:
      UserError: A configuration error, or another process uses the folder; no bridge was started.
    """
    folder = DataFolder(config.gateway.data_dir)
    try:
        return trio.run(_main, config, ready)
    finally:
        folder.close()


async def _main(config: BridgeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    bridges = build_all(config)
    metrics = Metrics("gateway", config.gateway.id, own_version())
    register_metrics(metrics, bridges)
    stopping, rates = trio.Event(), Rates()
    async with trio.open_nursery() as nursery:
        addresses = await open_pages(nursery, config.metrics, metrics, stopping, f"bridges {config.gateway.id}")
        nursery.start_soon(_serve_status, config.gateway.data_dir / STATUS_SOCKET, bridges, rates)
        nursery.start_soon(_update_rates, bridges, rates)
        ready(addresses)
        await _run_all(bridges, stopping)
        nursery.cancel_scope.cancel()
    return ExitCode.FAILED if any(bridge.state == "failed" for bridge in bridges) else ExitCode.OK


async def _run_all(bridges: list[Bridge], stopping: trio.Event) -> None:
    """Run each bridge in its own task; on a stop, disconnect its clients first."""
    async with trio.open_nursery() as nursery:

        async def stop() -> None:
            await stopping.wait()
            async with trio.open_nursery() as leaving:
                for bridge in bridges:
                    for client in bridge.clients:
                        leaving.start_soon(client.leave)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as running:
            nursery.start_soon(stop)
            for bridge in bridges:
                running.start_soon(run_bridge, bridge)
        nursery.cancel_scope.cancel()


async def _update_rates(bridges: list[Bridge], rates: Rates) -> None:
    while True:
        rates.update(bridges, trio.current_time())
        await trio.sleep(RATE_S)


async def _serve_status(path: Path, bridges: list[Bridge], rates: Rates) -> None:
    """Send the state of all bridges as JSON to each connection."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(os.fspath(path))
    listener.listen(8)
    with listener:
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError:  # the client disconnected, or no descriptor is free
                await trio.sleep(RATE_S)
                continue
            with trio.move_on_after(STATUS_S_MAX), contextlib.suppress(OSError, trio.BrokenResourceError):
                text = json.dumps(status_rows(bridges, rates)).encode()
                await trio.SocketStream(connection).send_all(text)
            connection.close()


def check(config: BridgeConfig) -> list[tuple[str, BridgeFinding]]:
    """Check both sides of each bridge; return the findings by bridge."""

    async def run_checks() -> list[tuple[str, BridgeFinding]]:
        found: list[tuple[str, BridgeFinding]] = []
        for bridge in build_all(config):
            for each in bridge.checks:
                found += [(bridge.name, finding) for finding in await each()]
        return found

    return run_plainly(run_checks)
