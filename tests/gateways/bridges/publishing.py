"""Test clients beside a bridge: one publishes a list, one collects messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import trio

from gateways.addresses import parse_address
from gateways.client import GatewayClient, GatewayClientOptions
from mqtt.client_session import Accepted
from mqtt.packets import Connect, Publish, SubscriptionRequest
from mqtt.properties import PropertyId
from tests.patience import PATIENCE_S

__all__ = ["Gatherer", "gathering", "publish_all"]


class Gatherer:
    """A ``ClientUser`` that stores messages."""

    def __init__(self) -> None:
        self.client: GatewayClient | None = None
        self.messages: list[Publish] = []
        self.codes: dict[int, int] = {}
        self.is_connected = trio.Event()
        self._changed = trio.Event()

    def connected(self, accepted: Accepted) -> None:
        del accepted
        self.is_connected.set()

    def disconnected(self, reason: str) -> None:
        del reason

    def received(self, packet: Publish) -> None:
        assert self.client is not None
        self.messages.append(packet)
        self.client.acknowledge(packet)
        self._change()

    def answered(self, token: int, reason_code: int) -> None:
        self.codes[token] = reason_code
        self._change()

    def writable(self) -> None:
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    async def payloads(self, count: int, timeout_s: float = PATIENCE_S) -> list[bytes]:
        """Wait for this many different payloads; return all in order."""
        with trio.move_on_after(timeout_s):
            while len({packet.payload for packet in self.messages}) < count:
                await self.changed()
        return [packet.payload for packet in self.messages]


@asynccontextmanager
async def gathering(port: int, name: str, *filters: str, version: int = 5, login: str = "") -> AsyncIterator[Gatherer]:
    """Run a client of one broker, subscribed when the block begins. ``login``: user name and password."""
    user = Gatherer()
    requests = tuple(SubscriptionRequest(each, 1, False, True) for each in filters)
    username, password = (login, login.encode()) if login else (None, None)
    properties = {PropertyId.SESSION_EXPIRY_INTERVAL: 100} if version == 5 else {}
    options = GatewayClientOptions(
        (parse_address(f"127.0.0.1:{port}"),),
        lambda: Connect(name, False, 30, version, None, username, password, dict(properties.items())),
        requests,
    )
    user.client = GatewayClient(options, user, Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(user.client.run)
        with trio.fail_after(PATIENCE_S):
            await user.client.granted.wait()
        yield user
        nursery.cancel_scope.cancel()


async def publish_all(port: int, packets: list[Publish], version: int = 5, login: str = "") -> None:
    """Publish at a broker, and wait until each is acknowledged."""
    async with gathering(port, "publisher", version=version, login=login) as user:
        assert user.client is not None
        with trio.fail_after(PATIENCE_S):
            await user.is_connected.wait()
            for token, packet in enumerate(packets):
                while not user.client.has_capacity:
                    await user.changed()
                assert user.client.publish(packet, token)
            while len(user.codes) < sum(packet.qos > 0 for packet in packets) or user.client.session.outbound:
                await user.changed()  # a broker may forward a QoS 2 message at PUBREL
