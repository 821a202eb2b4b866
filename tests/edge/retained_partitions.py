"""Retained partitions with responses by the test, and retained messages in their wire form."""

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
    """Wraps the loop and holds messages for a retained partition until the test releases them."""

    def __init__(self, edge: Edge) -> None:
        self.waiting: list[Any] = []  # callbacks to be called with the reason code
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
