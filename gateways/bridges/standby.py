"""A bridge that stands by for another process with the same client ID, and takes over when that one is gone.

A connection of its own listens to presence. While active, the bridge's own connection at the cluster announces it, and
has the will. When that connection ends, for whatever reason, the bridge is torn down and stands by: what it held comes
again to whoever is active next, so nothing is sent late beside the new one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from random import Random

import trio

from conf.events import say
from gateways.bridges.running import Bridge, keep_time
from gateways.client import GatewayClient
from gateways.presence import ANNOUNCE_S, Presence
from mqtt.client_session import Accepted
from mqtt.packets import Publish, SubscriptionRequest, Will

__all__ = ["StandBy"]

logger = logging.getLogger(__name__)


class StandbyUser:
    """``ClientUser`` that hears presence."""

    def __init__(self, presence: Presence) -> None:
        self.changed = trio.Event()
        self.client: GatewayClient | None = None
        self._presence = presence

    def connected(self, accepted: Accepted) -> None:
        """Note that the retained message comes now."""
        del accepted
        self._presence.connected(trio.current_time())
        self._change()

    def parted(self, reason: str) -> None:
        """Note that nothing is heard."""
        del reason
        self._presence.parted()
        self._change()

    def received(self, packet: Publish) -> None:
        """Take a message of the topic."""
        assert self.client is not None
        self.client.acknowledge(packet)
        self._presence.heard(trio.current_time(), packet.payload)
        self._change()

    def answered(self, token: int, reason_code: int) -> None:
        """Nothing is published here."""

    def room(self) -> None:
        """Nothing waits."""

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class StandBy:
    """Runs one bridge in turn with those of its group.

    Args:
        bridge: As it is shown; its flows and sides are replaced at each turn.
        rebuild: Makes a fresh one.
        topic: Of presence.
        process: Name of this process.
    """

    def __init__(self, bridge: Bridge, rebuild: Callable[[], Bridge], topic: str, process: str) -> None:
        self._bridge, self._rebuild, self._topic = bridge, rebuild, topic
        self._presence = Presence(Random())
        self._listener = StandbyUser(self._presence)
        assert bridge.cluster is not None
        door = dataclasses.replace(
            bridge.cluster.door,
            client_id=f"{bridge.cluster.door.client_id}-presence-{process}",
            clean_start=True,
            session_expiry_s=0,
        )
        asked = [SubscriptionRequest(topic, 1, retain_handling=0)]
        self._listener.client = GatewayClient(door.options(asked), self._listener, Random())

    async def run(self) -> None:
        """Stand by and be active in turn, for ever."""
        assert self._listener.client is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listener.client.run)
            while True:
                self._bridge.state = "standby"
                await self._wait()
                say(logger, "bridge.takes_over", bridge=self._bridge.name)
                await self._turn()
                say(logger, "bridge.stands_by", bridge=self._bridge.name)

    async def _wait(self) -> None:
        while True:
            changed = self._listener.changed
            with trio.move_on_at(self._presence.takes_over_at()):
                await changed.wait()
            if trio.current_time() >= self._presence.takes_over_at():
                return

    async def _turn(self) -> None:
        """Be active until the connection at the cluster ends."""
        fresh = self._rebuild()
        for old, new in zip(self._bridge.flows, fresh.flows, strict=True):
            new.pump.counts.update(old.pump.counts)
        self._bridge.flows[:], self._bridge.sides[:] = fresh.flows, fresh.sides
        self._bridge.clients[:] = fresh.clients
        assert fresh.cluster is not None
        end, door = fresh.cluster.end, fresh.cluster.door
        over, count = trio.Event(), 0
        door.will = Will(self._topic, b"0", 1, True)
        publisher = end.publisher(lambda _token, _code: None)

        def announce() -> None:
            nonlocal count
            count += 1
            if end.has_room:
                publisher.publish(Publish(self._topic, b"1 %d" % count, 1, True), 0)

        end.when_up.append(announce)
        end.when_down.append(over.set)
        self._bridge.state = "active"
        async with trio.open_nursery() as nursery:

            async def run(task: Callable[[], Awaitable[None]]) -> None:
                await task()
                over.set()

            for flow in fresh.flows:
                nursery.start_soon(keep_time, flow)
            for task in fresh.tasks:
                nursery.start_soon(run, task)
            while not over.is_set():
                with trio.move_on_after(ANNOUNCE_S):
                    await over.wait()
                announce()
            nursery.cancel_scope.cancel()
        # Somebody may have taken over: the topic says it soon, or we take over again.
        if self._listener.client is not None and self._listener.client.is_connected:
            self._presence.connected(trio.current_time())
        else:
            self._presence.parted()
