"""Command-line programs of the protocol: publish lines of standard input, print received messages.

A device in a loop of its own (``device.py``), over a socket in clear or secured.
"""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio

from access.files import AccessFileError
from conf.errors import ExitCode, UserError
from gateways.datagrams.device import Device, DeviceReady, RequestResult
from gateways.datagrams.dtls import DtlsFiles, DtlsSocket
from gateways.datagrams.keys import read_key
from gateways.datagrams.messages import Code, Datagram, DatagramPublish, Endpoint
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sealed import SealedPort
from gateways.datagrams.sockets import DatagramSocket, bind_udp, endpoint_of
from gateways.datagrams.subscribers import DatagramPeer
from mqtt.errors import MqttError
from mqtt.topics import validate_topic_filter, validate_topic_name
from wire.links.fast_path_run import run_plainly

__all__ = ["ProgramIdentity", "publish_lines", "read_line", "subscribe_and_print"]

LINE_BYTES_MAX = 1_000
AHEAD = 256  # lines read before their answers are received


class ProgramIdentity(NamedTuple):
    """Credentials of a device: a key with its name; or a certificate, its key and the CA of nodes; or none."""

    name: str = ""
    key_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def read(self) -> Callable[[socket.socket], DatagramSocket | DtlsSocket]:
        """Return the factory of the device's socket, from a bound one.

        Raises:
          AccessFileError: A file is unusable.
          ValueError: The combination of files is invalid.
        """
        if self.certificate and self.key and self.authority and not self.key_file:
            files = DtlsFiles(self.certificate, self.key, self.authority)
            return lambda bound: DtlsSocket(bound, files, serves=False, opens=True)
        if self.certificate or self.key or self.authority:
            raise ValueError("set --certificate, --key and --authority together, without --key-file")
        sealed = SealedPort({}, self.name, read_key(self.key_file)) if self.key_file is not None else None
        return lambda bound: DatagramSocket(bound, sealed)


class _Program:
    """One device and its socket."""

    def __init__(self, nodes: list[str], identity: ProgramIdentity, give_up_s: float, relay: bool) -> None:
        try:
            homes = tuple(endpoint_of(node) for node in nodes)
        except ValueError as error:
            raise UserError(f"--node: {error}", ExitCode.USAGE) from None
        try:
            self._make_port = identity.read()
        except (AccessFileError, ValueError) as error:
            raise UserError(str(error), ExitCode.USAGE) from None
        self.device = Device(homes, time.time_ns() // 1000 << 8 | secrets.randbits(8), give_up_s, relay)
        self._bind = "::" if len(homes[0].ip) == 16 else "0.0.0.0"
        self._arrived: list[tuple[Endpoint, Datagram]] = []
        self._changed = trio.Event()
        self.is_finished = False

    async def run(self, act: Callable[[DeviceReady], None]) -> None:
        """Serve the device until ``act`` sets ``is_finished``."""
        port = self._make_port(bind_udp(self._bind, 0))
        async with trio.open_nursery() as nursery:
            await nursery.start(port.run)
            nursery.start_soon(self._read, port)
            while True:
                now = trio.current_time()
                arrived, self._arrived = self._arrived, []
                ready = self.device.handle(now, arrived)
                for endpoint, packet in ready.send:
                    port.send(now, Sent(DatagramPeer(endpoint), packet))
                act(ready)
                if self.is_finished:
                    await port.flush()
                    nursery.cancel_scope.cancel()
                    return
                deadline = self.device.next_deadline()
                with trio.move_on_at(now + 60 if deadline is None else deadline):
                    await self._changed.wait()
                self._changed = trio.Event()

    def wake(self) -> None:
        """Wake the loop."""
        self._changed.set()

    async def _read(self, port: DatagramSocket | DtlsSocket) -> None:
        while True:
            await port.readable()
            port.read(trio.current_time(), self._received)
            self._changed.set()

    def _received(self, peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None:
        del name, is_proved, length
        self._arrived.append((peer.endpoint, packet))


def _check(text: str, validate: Callable[[str], None]) -> None:
    try:
        validate(text)
    except MqttError as error:
        raise UserError(f"{text}: {error}", ExitCode.USAGE) from None


def publish_lines(
    nodes: list[str], topic: str, qos: int, identity: ProgramIdentity, give_up_s: float
) -> list[RequestResult]:
    """Publish each line of standard input; return the failed ones.

    Raises:
      UserError: An argument is invalid.
    """
    _check(topic, validate_topic_name)
    program = _Program(nodes, identity, give_up_s, False)
    failed: list[RequestResult] = []
    sent = 0

    async def feed(scope: trio.CancelScope) -> None:
        nonlocal sent
        while True:
            line = await trio.to_thread.run_sync(read_line, abandon_on_cancel=True)
            if not line:
                break
            text = line.rstrip(b"\n")
            if len(text) > LINE_BYTES_MAX:
                failed.append(RequestResult(sent, Code.TOO_LARGE))
            else:
                program.device.publish(trio.current_time(), sent, topic, text, qos)
                program.wake()
            sent += 1
            while program.device.open > AHEAD:
                await trio.sleep(0.01)
        while program.device.open:
            await trio.sleep(0.01)
        scope.cancel()

    def act(ready: DeviceReady) -> None:
        failed.extend(each for each in ready.outcomes if each.code != Code.DISTRIBUTED)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed, nursery.cancel_scope)
            nursery.start_soon(program.run, act)

    run_plainly(run)
    return failed


def read_line() -> bytes:
    """Return the next line of standard input; an oversized one is truncated above the bound."""
    line = sys.stdin.buffer.readline(LINE_BYTES_MAX + 2)
    rest = line
    while rest and not rest.endswith(b"\n"):
        rest = sys.stdin.buffer.readline(LINE_BYTES_MAX)
    return line


def subscribe_and_print(
    nodes: list[str],
    filters: list[str],
    qos: int,
    count: int,
    identity: ProgramIdentity,
    give_up_s: float,
    relay: bool,
    show: Callable[[DatagramPublish], None],
) -> None:
    """Subscribe, and show each message; ends after ``count`` of them, 0: never.

    Raises:
      UserError: A filter was refused, or no node answers.
    """
    for topic_filter in filters:
        _check(topic_filter[:-1] + "#" if topic_filter.endswith("*") else topic_filter, validate_topic_filter)
    program = _Program(nodes, identity, give_up_s, relay)
    shown = 0
    refusal = ""

    def act(ready: DeviceReady) -> None:
        nonlocal shown, refusal
        for result in ready.outcomes:
            if result.code != Code.SUBSCRIBED:
                why = Code(result.code).name.lower() if result.code >= 0 else "no node answers"
                refusal = f"{filters[result.ref]}: {why}"
                program.is_finished = True
            else:
                print(f"subscribed {filters[result.ref]}", file=sys.stderr, flush=True)
        for message in ready.delivered:
            if not count or shown < count:
                show(message)
            shown += 1
        if count and shown >= count:
            program.is_finished = True

    async def run() -> None:
        for ref, topic_filter in enumerate(filters):
            program.device.subscribe(trio.current_time(), ref, topic_filter, qos)
        await program.run(act)

    run_plainly(run)
    if refusal:
        raise UserError(refusal, ExitCode.FAILED)
