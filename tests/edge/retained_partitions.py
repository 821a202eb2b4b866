"""Retained partitions that answer when a test says so, and retained messages as partitions send them."""

from typing import Any, cast

from access.policy.view import PolicyView
from edge.node.ports import CorePublisher
from edge.publishing.order_answers import OrderAnswers
from edge.publishing.publishing import EdgePublishing
from edge.publishing.recording import Recording
from edge.publishing.sending import MessageSender
from edge.rights.absent import AbsentUserChecks
from tests.edge.edge_harness import Edge
from wire.messages.retained import (
    RetainedMessage,
)


def retained(topic: str, payload: bytes = b"old") -> RetainedMessage:
    return RetainedMessage(topic, payload, 1)


class RetainedPartitions:
    """Stands before the loop and keeps what goes to a retained partition alone until the test says so."""

    def __init__(self, edge: Edge) -> None:
        self.waiting: list[Any] = []  # what to call with the reason code
        core, loop = edge.core, cast(CorePublisher, self)
        self._hot = core.hot
        sending = MessageSender(core.node, loop, core.clients, core.routes)
        recording = Recording(
            core.node, loop, core.clients, core.requests, core.routes, core.picking, sending, core.rights
        )
        absent = AbsentUserChecks(core.rights, lambda *_: False, PolicyView, lambda: 0.0)
        core.publishing = EdgePublishing(
            core.node,
            loop,
            core.clients,
            core.routes,
            sending,
            recording,
            core.conduct,
            absent,
            OrderAnswers(core.node),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hot, name)

    def publish(self, route: Any, publish: Any, retained_partition: int = -1, *more: Any, owner: bytes = b"") -> int:
        del owner
        if retained_partition < 0:
            return int(self._hot.publish(route, publish, retained_partition, *more))
        self.waiting.append(more[3])
        return 1
