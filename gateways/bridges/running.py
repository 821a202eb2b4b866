"""A running bridge: its tasks, its state, and its failure, which does not affect other bridges.

Kinds build a ``Bridge`` (``gateways/bridges/kinds.py``); the service runs many.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from conf.errors import UserError
from conf.events import say
from gateways.bridges.broker_endpoint import BrokerEndpoint
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.mqtt_end import MqttEnd
from gateways.client import GatewayClient

__all__ = ["Bridge", "BridgeFinding", "BridgeSide", "ClusterSide", "keep_time", "run_bridge", "wall_ms"]

logger = logging.getLogger(__name__)


class BridgeSide(Protocol):
    """One side of a bridge."""

    name: str

    @property
    def is_up(self) -> bool:
        """Whether it is usable."""

    @property
    def reason(self) -> str:
        """Why it is not usable, "" while it is."""


@dataclass(frozen=True, slots=True)
class BridgeFinding:
    """One result of `bridge check`."""

    ok: bool
    side: str
    text: str


@dataclass(frozen=True, slots=True)
class ClusterSide:
    """The connection at the cluster, for users that set a will on it."""

    end: MqttEnd
    endpoint: BrokerEndpoint


@dataclass
class Bridge:
    """One bridge.

    Attributes:
      tasks: Run until the bridge ends; a task that returns ends the bridge normally.
      clients: Disconnected when the process stops.
      cluster: Its connection at the cluster; with shares the first one.
      state: "starting", "active", "standby", "ended" or "failed".
      failure: One line, after a failure.
      checks: Check each side without moving messages.
    """

    name: str
    kind: str
    flows: list[BridgeFlow]
    sides: list[BridgeSide]
    tasks: list[Callable[[], Awaitable[None]]]
    clients: list[GatewayClient] = field(default_factory=list)
    checks: Sequence[Callable[[], Awaitable[list[BridgeFinding]]]] = ()
    cluster: ClusterSide | None = None
    state: str = "starting"
    failure: str = ""
    started_at: float = field(default_factory=time.time)

    @property
    def is_ready(self) -> bool:
        """Whether both sides are up, or another process runs the bridge."""
        return self.state == "standby" or (self.state == "active" and all(side.is_up for side in self.sides))

    @property
    def waits_for(self) -> str:
        """Return the side that is down and why, "" for none."""
        if self.failure:
            return f"{self.name}: {self.failure}"
        down = [f"{self.name}: {side.name}: {side.reason}" for side in self.sides if not side.is_up]
        return down[0] if down and self.state != "standby" else ""


def wall_ms() -> int:
    """Return UTC in milliseconds."""
    return time.time_ns() // 1_000_000


async def keep_time(flow: BridgeFlow) -> None:
    """Call a flow's ``step`` at its deadlines until cancelled."""
    moved, due = trio.Event(), math.inf

    def wake() -> None:
        if flow.next_deadline() < due:
            moved.set()

    flow.waker = wake
    while True:
        due = flow.next_deadline()
        moved = trio.Event()
        with trio.move_on_at(due):
            await moved.wait()
        flow.step()


async def run_bridge(bridge: Bridge) -> None:
    """Run a bridge to its end; a failure ends only this bridge."""
    try:
        async with trio.open_nursery() as nursery:

            async def run(task: Callable[[], Awaitable[None]]) -> None:
                await task()
                nursery.cancel_scope.cancel()

            for flow in bridge.flows:
                nursery.start_soon(keep_time, flow)
            for task in bridge.tasks:
                nursery.start_soon(run, task)
            if bridge.state == "starting":
                bridge.state = "active"
        bridge.state = "ended"
        say(logger, "bridge.ended", bridge=bridge.name)
    except* UserError as group:
        errors = [error for error in _leaves(group) if isinstance(error, UserError)]
        _fail(bridge, errors[0].message)
    except* Exception as group:
        say(logger, "bridge.fault", bridge=bridge.name, exc_info=True)
        _fail(bridge, f"internal error: {next(iter(_leaves(group)))!r}")


def _fail(bridge: Bridge, text: str) -> None:
    bridge.state, bridge.failure = "failed", text
    say(logger, "bridge.failed", bridge=bridge.name, why=text)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
