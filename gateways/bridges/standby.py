"""A bridge in an active/standby group: processes share a client ID, and a standby takes over from the active one.

A separate connection subscribes to presence. While active, the bridge's own cluster connection announces presence and
has the will. When that connection ends, the bridge is stopped and becomes a standby. Its unacknowledged messages are
resent to the next active process, so no stale process sends beside the new one.
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

__all__ = ["Standby"]

logger = logging.getLogger(__name__)


class StandbyUser:
    """``ClientUser`` that receives presence."""

    def __init__(self, presence: Presence) -> None:
        self.changed = trio.Event()
        self.client: GatewayClient | None = None
        self._presence = presence

    def connected(self, accepted: Accepted) -> None:
        """Record the subscription: a retained message may follow."""
        del accepted
        self._presence.connected(trio.current_time())
        self._change()

    def disconnected(self, reason: str) -> None:
        """Record the disconnection."""
        del reason
        self._presence.disconnected()
        self._change()

    def received(self, packet: Publish) -> None:
        """Handle a message of the topic."""
        assert self.client is not None
        self.client.acknowledge(packet)
        self._presence.received(trio.current_time(), packet.payload)
        self._change()

    def answered(self, token: int, reason_code: int) -> None:
        """No publish is sent here."""

    def writable(self) -> None:
        """No output is pending."""

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class Standby:
    """Runs one bridge alternately with the other processes of its group.

    Args:
      bridge: The reported bridge; its flows and sides are replaced at each takeover.
      rebuild: Makes a new bridge.
      topic: Topic of presence.
      process: Name of this process.
    """

    def __init__(self, bridge: Bridge, rebuild: Callable[[], Bridge], topic: str, process: str) -> None:
        self._bridge, self._rebuild, self._topic = bridge, rebuild, topic
        self._presence = Presence(Random())
        self._listener = StandbyUser(self._presence)
        assert bridge.cluster is not None
        endpoint = dataclasses.replace(
            bridge.cluster.endpoint,
            client_id=f"{bridge.cluster.endpoint.client_id}-presence-{process}",
            clean_start=True,
            session_expiry_s=0,
        )
        requests = [SubscriptionRequest(topic, 1, retain_handling=0)]
        self._listener.client = GatewayClient(endpoint.options(requests), self._listener, Random())

    async def run(self) -> None:
        """Alternate between standby and active until cancelled."""
        assert self._listener.client is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listener.client.run)
            while True:
                self._bridge.state = "standby"
                await self._wait()
                say(logger, "bridge.takes_over", bridge=self._bridge.name)
                await self._run_active()
                say(logger, "bridge.stands_by", bridge=self._bridge.name)

    async def _wait(self) -> None:
        while True:
            changed = self._listener.changed
            with trio.move_on_at(self._presence.takes_over_at()):
                await changed.wait()
            if trio.current_time() >= self._presence.takes_over_at():
                return

    async def _run_active(self) -> None:
        """Be active until the connection at the cluster ends."""
        fresh = self._rebuild()
        for old, new in zip(self._bridge.flows, fresh.flows, strict=True):
            new.pump.counts.update(old.pump.counts)
        self._bridge.flows[:], self._bridge.sides[:] = fresh.flows, fresh.sides
        self._bridge.clients[:] = fresh.clients
        assert fresh.cluster is not None
        end, endpoint = fresh.cluster.end, fresh.cluster.endpoint
        ended, count = trio.Event(), 0
        endpoint.will = Will(self._topic, b"0", 1, True)
        publisher = end.publisher(lambda _token, _code: None)

        def announce() -> None:
            nonlocal count
            count += 1
            if end.has_capacity:
                publisher.publish(Publish(self._topic, b"1 %d" % count, 1, True), 0)

        end.when_up.append(announce)
        end.when_down.append(ended.set)
        self._bridge.state = "active"
        async with trio.open_nursery() as nursery:

            async def run(task: Callable[[], Awaitable[None]]) -> None:
                await task()
                ended.set()

            for flow in fresh.flows:
                nursery.start_soon(keep_time, flow)
            for task in fresh.tasks:
                nursery.start_soon(run, task)
            while not ended.is_set():
                with trio.move_on_after(ANNOUNCE_S):
                    await ended.wait()
                announce()
            nursery.cancel_scope.cancel()
        # Another process may be active: presence reports it soon, or this one takes over again.
        if self._listener.client is not None and self._listener.client.is_connected:
            self._presence.connected(trio.current_time())
        else:
            self._presence.disconnected()
