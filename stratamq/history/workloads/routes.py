"""routes: subscribe and unsubscribe churn, with publishes timed around SUBACK and UNSUBACK (R4, R5).

Every round uses its own topic: another client publishes while SUBSCRIBE is in flight, after SUBACK, and after UNSUBACK.
A subscription without its message in time stays, so that the end of the run separates late from lost; their number is
limited.
"""

from __future__ import annotations

import random

import trio

from stratamq.history.client import ClientOptions, RecordingClient
from stratamq.history.operations import OperationPhase
from stratamq.history.run import BACKOFF_S, Run
from stratamq.history.workloads.workload import Workload

PATIENCE_S = 1.0  # for a message before its subscription is left standing
LEFT_STANDING_MAX = 20  # per client
AFTER_UNSUBACK_S = 0.02  # for a message that must not come

__all__ = ["RoutesWorkload"]


class RoutesWorkload(Workload):
    """Half of the clients subscribe, durable and ephemeral ones, half publish for them."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        half = self.count(8) // 2
        self.topic_root = run.name("routes")
        self.subscribers = [run.client(f"s{i}", _subscriber_options(i)) for i in range(half)]
        self.publishers = [run.client(f"p{i}", ClientOptions(protocol_version=5)) for i in range(half)]

    async def prepare(self) -> None:
        """Connect and subscribe the clients, and wait until all are ready."""
        for client in (*self.subscribers, *self.publishers):
            self.run.start_member(client, {})
        await self.run.members_ready()

    async def work(self) -> None:
        """Let the clients work until cancelled."""
        async with trio.open_nursery() as nursery:
            for subscriber in self.subscribers:
                nursery.start_soon(self._churn, subscriber)

    async def _churn(self, subscriber: RecordingClient) -> None:
        rng = self.run.rng(subscriber.process)
        left_standing = count = 0
        while left_standing < LEFT_STANDING_MAX:
            count += 1
            await subscriber.wait_connected()
            whole = await self._round(subscriber, rng, count)
            if whole is None:
                await trio.sleep(rng.uniform(*BACKOFF_S))  # it asks again: its wait is to be the broker's, not its own
            else:
                left_standing += not whole
                await trio.sleep(rng.uniform(0, 2) / self.run.settings.operations_per_s)

    async def _round(self, subscriber: RecordingClient, rng: random.Random, count: int) -> bool | None:
        """Subscribe, publish around it, unsubscribe.

        Returns:
            False when the subscription is left standing, None when SUBSCRIBE was not granted.
        """
        topic = f"{self.topic_root}/{subscriber.process}/{count}/x"
        topic_filter = rng.choice((topic, topic[:-1] + "+", topic[:-2] + "/#", topic.replace(self.topic_root, "+")))
        publisher, other = rng.choice(self.publishers), rng.choice(self.publishers)
        name = f"{subscriber.process}-{count}"
        async with trio.open_nursery() as nursery:  # answered or not, its topic is then known to the broker
            nursery.start_soon(self.run.publish, other, topic, f"{name}-overlap", 1, set[str]())
            subscribing = subscriber.subscribe(topic_filter, 1)
            if subscribing is None or await subscriber.outcome(subscribing) is not OperationPhase.OK:
                return None
        connection = subscriber.connection
        for number in range(rng.randint(1, 3)):
            stays = subscriber.connected and subscriber.connection == connection
            receivers = {subscriber.client_id} if stays or subscriber.options.expiry_in_force_s else set[str]()
            await self.run.publish(publisher, topic, f"{name}-{number}", rng.choice((1, 2)), receivers)
        for earlier in range(number + 1):
            if not await self.run.delivered(f"{name}-{earlier}", PATIENCE_S):
                return False
        unsubscribing = subscriber.unsubscribe(topic_filter)
        if unsubscribing is not None and await subscriber.outcome(unsubscribing) is OperationPhase.OK:
            await self.run.publish(other, topic, f"{name}-after", 1, set())
            await trio.sleep(AFTER_UNSUBACK_S)
        return True


def _subscriber_options(number: int) -> ClientOptions:
    version = 5 if number % 4 < 2 else 4
    if number % 2:
        return ClientOptions(protocol_version=version)
    return ClientOptions(protocol_version=version, clean_start=True, session_expiry_interval_s=0)
