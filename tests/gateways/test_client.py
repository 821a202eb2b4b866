"""The shell of the MQTT client against Mosquitto and against a misbehaving broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request

from gateways.addresses import parse_address
from gateways.client import GatewayClient, GatewayClientOptions, RefusedFilter
from gateways.transport import client_context
from gateways.websocket_client import WebSocketClient
from mqtt import StreamDecoder, encode_packet
from mqtt.client_session import Accepted
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from mqtt.properties import Properties, PropertyId
from tests.gateways.mosquitto_doors import INSTALLED, mosquitto_doors
from tests.patience import PATIENCE_S

FILTERS = (SubscriptionRequest("a/#", 2),)


class User:
    """Stores messages, and acknowledges them at once."""

    def __init__(self) -> None:
        self.client: GatewayClient | None = None
        self.messages: list[Publish] = []
        self.answers: list[tuple[int, int]] = []
        self.disconnections: list[str] = []
        self.is_connected = trio.Event()
        self.changed = trio.Event()

    def connected(self, accepted: Accepted) -> None:
        del accepted
        self.is_connected.set()

    def disconnected(self, reason: str) -> None:
        self.disconnections.append(reason)
        self._change()

    def received(self, packet: Publish) -> None:
        self.messages.append(packet)
        assert self.client is not None
        self.client.acknowledge(packet)
        self._change()

    def answered(self, token: int, reason_code: int) -> None:
        self.answers.append((token, reason_code))
        self._change()

    def writable(self) -> None:
        """No output is pending."""

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def has(self, messages: int, answers: int) -> bool:
        return len(self.messages) == messages and len(self.answers) == answers

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self.changed.wait()


def make_client(
    user: User,
    *addresses: str,
    authority: Path | None = None,
    version: int = 5,
    filters: tuple[SubscriptionRequest, ...] = FILTERS,
    server_references: tuple[str, ...] = (),
) -> GatewayClient:
    user.client = GatewayClient(
        GatewayClientOptions(
            tuple(map(parse_address, addresses)),
            lambda: Connect("bridge-1", protocol_version=version, keep_alive_s=30),
            filters,
            None if authority is None else client_context(authority, None, None),
            server_references=server_references,
        ),
        user,
        Random(1),
    )
    return user.client


Script = Callable[[trio.SocketStream, list[Packet]], Awaitable[None]]


@asynccontextmanager
async def broker(script: Script) -> AsyncIterator[str]:
    """Run a script for each connection, with its first packets; yield the address."""
    async with trio.open_nursery() as nursery:

        async def serve(stream: trio.SocketStream) -> None:
            decoder = StreamDecoder(5)
            packets: list[Packet] = []
            while not packets:
                data = await stream.receive_some(65536)
                if not data:
                    return
                packets = decoder.feed(bytes(data))
            await script(stream, packets)

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"mqtt://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
async def test_client_each_transport_carries_messages_both_ways(tmp_path: Path) -> None:
    """TCP, TLS, WebSocket and both; QoS 0 to 2, 3.1.1 and 5."""
    async with mosquitto_doors(tmp_path) as listeners:
        for number, (scheme, address) in enumerate(listeners.addresses.items()):
            user = User()
            secure, size = scheme in ("mqtts", "wss"), 1000 if scheme.startswith("ws") else 40_000
            client = make_client(
                user, address, authority=listeners.authority if secure else None, version=5 - number % 2
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                with trio.fail_after(PATIENCE_S):
                    await user.is_connected.wait()
                for qos in (0, 1, 2):
                    assert client.publish(Publish(f"a/{qos}", b"x" * size, qos), qos)
                await user.until(partial(user.has, 3, 2))
                nursery.cancel_scope.cancel()
            assert sorted((packet.topic_name, len(packet.payload)) for packet in user.messages) == [
                (f"a/{qos}", size) for qos in (0, 1, 2)
            ]
            assert sorted(user.answers) == [(1, 0), (2, 0)]


@pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)")
async def test_client_untrusted_certificate_tries_next_address(tmp_path: Path) -> None:
    """A certificate of an unknown CA, a closed port, then a broker."""
    async with mosquitto_doors(tmp_path) as listeners:
        user = User()
        client = make_client(user, listeners.addresses["mqtts"], "mqtt://127.0.0.1:1", listeners.addresses["mqtt"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            with trio.fail_after(PATIENCE_S):
                await user.is_connected.wait()
            nursery.cancel_scope.cancel()
        assert "certificate" in user.disconnections[0] and len(user.disconnections) == 2


async def test_client_refused_filter_raises_one_line() -> None:
    async def refuse(stream: trio.SocketStream, packets: list[Packet]) -> None:
        assert isinstance(packets[0], Connect)
        await stream.send_all(encode_packet(Connack(), 5))
        (subscribe,) = StreamDecoder(5).feed(bytes(await stream.receive_some(65536)))
        assert isinstance(subscribe, Subscribe)
        await stream.send_all(encode_packet(Suback(subscribe.packet_identifier, [0x87]), 5))
        await trio.sleep_forever()

    async with broker(refuse) as address:
        with (
            pytest.raises(RefusedFilter, match=r"refuses the filter a/#: not authorized \(0x87\)"),
            trio.fail_after(PATIENCE_S),
        ):
            await make_client(User(), address).run()


async def test_client_suback_with_missing_codes_raises_one_line() -> None:
    """The gateway does not run with part of its filters, since it is unknown which one is missing."""

    async def answer_one(stream: trio.SocketStream, packets: list[Packet]) -> None:
        del packets
        await stream.send_all(encode_packet(Connack(), 5))
        (subscribe,) = StreamDecoder(5).feed(bytes(await stream.receive_some(65536)))
        assert isinstance(subscribe, Subscribe)
        await stream.send_all(encode_packet(Suback(subscribe.packet_identifier, [1]), 5))
        await trio.sleep_forever()

    two = (*FILTERS, SubscriptionRequest("b/#", 1))
    async with broker(answer_one) as address:
        with pytest.raises(RefusedFilter, match="answers 1 of 2 filters"), trio.fail_after(PATIENCE_S):
            await make_client(User(), address, filters=two).run()


def test_websocket_wrap_after_close_returns_nothing() -> None:
    """A message in flight is lost with the connection, without another effect."""
    server, client = WSConnection(ConnectionType.SERVER), WebSocketClient("localhost", "/mqtt")
    server.receive_data(client.take_output())
    assert isinstance(next(server.events()), Request)
    client.receive(server.send(AcceptConnection(subprotocol="mqtt")))
    assert client.is_open and client.wrap(b"before")
    client.receive(server.send(CloseConnection(code=1000)))
    assert client.failure and client.wrap(b"behind") == b""


async def test_client_reference_loop_ends_after_three_hops() -> None:
    """Two brokers refer to each other, one by CONNACK, one by DISCONNECT."""
    references = ["", ""]
    connections: list[int] = []

    def script(number: int) -> Script:
        async def redirect(stream: trio.SocketStream, packets: list[Packet]) -> None:
            del packets
            connections.append(number)
            properties: Properties = {PropertyId.SERVER_REFERENCE: references[1 - number]}
            code = 0x9C
            answers: list[Packet] = [Connack(reason_code=code, properties=properties)]
            if number:
                answers = [Connack(), Disconnect(code, properties)]
            await stream.send_all(b"".join(encode_packet(each, 5) for each in answers))

        return redirect

    user = User()
    async with broker(script(0)) as references[0], broker(script(1)) as references[1]:
        client = make_client(user, references[0], server_references=("127.0.0.1",))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await user.until(lambda: len(user.disconnections) == 5)
            nursery.cancel_scope.cancel()
    assert connections[:5] == [0, 1, 0, 1, 0], "three hops, then the configured address after a delay"
    assert all("(0x9c)" in reason for reason in user.disconnections)


async def test_client_reference_to_unlisted_host_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """By default the reference is refused, counted, and logged with both addresses."""
    caplog.set_level(logging.INFO)
    connections: list[str] = []

    async def other(stream: trio.SocketStream, packets: list[Packet]) -> None:
        del packets
        connections.append("other")
        await stream.send_all(encode_packet(Connack(reason_code=0x87), 5))

    user = User()
    async with broker(other) as reference:

        async def redirect(stream: trio.SocketStream, packets: list[Packet]) -> None:
            del packets
            connections.append("remote")
            properties: Properties = {PropertyId.SERVER_REFERENCE: reference}
            await stream.send_all(encode_packet(Connack(reason_code=0x9C, properties=properties), 5))

        async with broker(redirect) as remote:
            client = make_client(user, remote)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                await user.until(lambda: len(user.disconnections) == 2)
                nursery.cancel_scope.cancel()
            assert connections == ["remote", "remote"] and client.counts == {"references_refused": 2}
            user = User()
            client = make_client(user, remote, server_references=(reference.removeprefix("mqtt://"),))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                await user.until(lambda: len(user.disconnections) == 2)
                nursery.cancel_scope.cancel()
            assert connections[2:] == ["remote", "other"] and client.counts == {"references_followed": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert any(remote in line and reference in line and "which is not permitted: " in line for line in lines)
    assert any(remote in line and reference in line and "not permitted" not in line for line in lines)


async def test_client_protocol_error_sends_disconnect_reason() -> None:
    """A PUBLISH above Maximum Packet Size; the connection ends, and the next one follows."""
    received_packets: list[Packet] = []

    async def too_large(stream: trio.SocketStream, packets: list[Packet]) -> None:
        del packets
        await stream.send_all(encode_packet(Connack(), 5) + encode_packet(Publish("a", bytes(2000)), 5))
        decoder = StreamDecoder(5)
        while data := await stream.receive_some(65536):
            received_packets.extend(decoder.feed(bytes(data)))

    user = User()
    async with broker(too_large) as address:
        options = GatewayClientOptions(
            (parse_address(address),),
            lambda: Connect("c", protocol_version=5, properties={PropertyId.MAXIMUM_PACKET_SIZE: 1000}),
        )
        user.client = GatewayClient(options, user, Random(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(user.client.run)
            await user.until(lambda: len(user.disconnections) == 2)
            nursery.cancel_scope.cancel()
    assert Disconnect(0x95) in received_packets
    assert user.disconnections[0].startswith("the broker broke the protocol: packet of ")
