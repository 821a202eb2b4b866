"""Run fault proxies in their own process, controlled over a small socket.

One JSON object per line, one answer per line. ``{"link": "a-b", "do": "set", "direction": "to_server",
"delay_s": 0.1}``; ``do`` is one of set, cut, heal, reset, half_open, stats, ports. Without ``link``: all links; without
``direction``: both. Run it with ``python -m tests.chaos.fault_control --seed 1 --control /tmp/faults.sock
tcp:a-b:127.0.0.1:7001:127.0.0.1:7948``: kind, name, listening address, target.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
from pathlib import Path
from typing import Any

import trio

from tests.chaos.fault_proxy import FaultProxy, TcpFaultProxy, UdpFaultProxy
from tests.chaos.faults import DIRECTIONS, UnknownFault
from tests.patience import PATIENCE_S

LINE_BYTES_MAX = 65_536

__all__ = ["ControlClient", "command", "parse_link", "serve_control"]


def command(links: dict[str, FaultProxy], order: dict[str, Any]) -> dict[str, Any]:
    """Execute one order; return the answer.

    Raises:
        UnknownFault: The order has an unknown name; no link was changed.
    """
    order = dict(order)
    name, verb = order.pop("link", None), order.pop("do", "")
    directions = [order.pop("direction")] if "direction" in order else list(DIRECTIONS)
    if name is not None and name not in links:
        raise UnknownFault(f"no link {name!r}; there are {', '.join(sorted(links))}")
    if set(directions) - set(DIRECTIONS):
        raise UnknownFault(f"no direction {directions[0]!r}; there are {', '.join(DIRECTIONS)}")
    chosen = [links[name]] if name is not None else [links[known] for known in sorted(links)]
    if verb == "stats":
        return {"ok": True, "stats": {link.name: link.stats() for link in chosen}}
    if verb == "ports":
        return {"ok": True, "ports": {link.name: link.port for link in chosen}}
    for link in chosen:
        if verb == "set":
            for direction in directions:
                getattr(link, direction).set(**order)
        elif verb in ("cut", "heal", "reset", "half_open") and not order:
            getattr(link, verb)()
        else:
            raise UnknownFault(f"cannot do {verb!r} with {sorted(order)}")
    return {"ok": True}


async def serve_control(
    links: dict[str, FaultProxy],
    path: Path,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen on a Unix socket until cancelled."""
    path.unlink(missing_ok=True)
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        await control.bind(str(path))
        path.chmod(0o600)
        control.listen()
        task_status.started()

        async def serve(stream: trio.SocketStream) -> None:
            await _serve_orders(links, stream)

        await trio.serve_listeners(serve, [trio.SocketListener(control)])


async def _serve_orders(links: dict[str, FaultProxy], stream: trio.SocketStream) -> None:
    buffer = b""
    try:
        while len(buffer) <= LINE_BYTES_MAX and (data := await stream.receive_some(LINE_BYTES_MAX)):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                await stream.send_all(json.dumps(_answer(links, line)).encode() + b"\n")
    except trio.BrokenResourceError:
        return


def _answer(links: dict[str, FaultProxy], line: bytes) -> dict[str, Any]:
    try:
        order = json.loads(line)
        if not isinstance(order, dict):
            raise UnknownFault("an order is a JSON object")
        return command(links, order)
    except (ValueError, TypeError) as error:  # UnknownFault is a ValueError, so is bad JSON
        return {"ok": False, "error": str(error)}


class ControlClient:
    """Blocking client for tests and scripts: ``with ControlClient(path) as order: order(link="a-b", do="cut")``."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rwb")

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def __call__(self, **order: Any) -> dict[str, Any]:
        self._file.write(json.dumps(order).encode() + b"\n")
        self._file.flush()
        answer: dict[str, Any] = json.loads(self._file.readline())
        if not answer["ok"]:
            raise UnknownFault(answer["error"])
        return answer


def parse_link(text: str, seed: int) -> tuple[FaultProxy, tuple[str, int]]:
    """Read KIND:NAME:HOST:PORT:HOST:PORT; return the proxy and where it listens.

    Raises:
        ValueError: It is not that.
    """
    kind, name, host, port, target_host, target_port = text.split(":")
    types: dict[str, type[FaultProxy]] = {"tcp": TcpFaultProxy, "udp": UdpFaultProxy}
    if kind not in types:
        raise ValueError(f"{kind!r} is neither tcp nor udp")
    return types[kind]((target_host, int(target_port)), seed, name), (host, int(port))


async def _main(options: argparse.Namespace) -> None:
    links: dict[str, FaultProxy] = {}
    async with trio.open_nursery() as nursery:
        for text in options.links:
            proxy, (host, port) = parse_link(text, options.seed)
            links[proxy.name] = proxy
            await nursery.start(proxy.run, host, port)
            print(f"{proxy.name}: {host}:{proxy.port} -> {proxy.target[0]}:{proxy.target[1]}", flush=True)
        await nursery.start(serve_control, links, options.control)
        print(f"seed {options.seed}, control {options.control}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("links", nargs="+", metavar="KIND:NAME:HOST:PORT:HOST:PORT")
    trio.run(_main, parser.parse_args())
