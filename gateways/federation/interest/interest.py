"""Interest of a broker's clients: which filters are wanted, by whom, until when; the rows that keep it.

Shared by the adapters; each of them turns what its broker says into ``subscribed``, ``unsubscribed``, ``connected`` and
``left``. Pure logic; the caller commits ``take_rows`` with the acknowledgement of what was read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from gateways.federation.events import MARKER_PREFIX, InterestChanged
from gateways.spool_rows import Delete, Put, Write
from mqtt.errors import MqttError
from mqtt.topics import validate_topic_filter

__all__ = ["INTEREST_KIND", "NO_CLIENT", "Adapter", "Interest", "federated"]

INTEREST_KIND = "interest"
FILTER_CHARACTERS_MAX = 65_535
AGENTS_MAX = 64  # others at the same broker that are remembered
MARKER = re.compile(re.escape(MARKER_PREFIX) + r"[A-Za-z0-9._-]+/marker")  # which agents alone subscribe to
NO_CLIENT = "\0"  # begins a name that stands for a file or a list: no client identifier has it [MQTT-1.5.4-2]


class Adapter(Protocol):
    """One kind of broker."""

    @property
    def filters(self) -> tuple[str, ...]:
        """Topics of the broker that tell of interest."""

    @property
    def interest(self) -> Interest:
        """Interest that is known."""

    def takes(self, topic: str) -> bool:
        """Whether a message is for this adapter."""

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Take one message."""

    def away(self, wall_s: float) -> None:
        """Note that the agent is not connected to its broker."""

    def back(self, wall_s: float, is_present: bool) -> bool:
        """Note that it is; return whether something may have been missed, which is said."""


class _Row(msgspec.Struct, array_like=True):
    """Filters of one client.

    Attributes:
        filters: Each with its highest QoS.
        keeps: Its session outlives its connection; true while nobody knows.
        left_s: Wall clock at which it left; 0 while it is here.
    """

    filters: dict[str, int]
    keeps: bool = True
    left_s: float = 0.0


def federated(topic_filter: str) -> str:
    """Return the filter of a subscription as it federates; "" for one that never does, or is none."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2] if topic_filter.count("/") >= 2 else ""
    if not topic_filter or topic_filter.startswith(("$", MARKER_PREFIX)) or len(topic_filter) > FILTER_CHARACTERS_MAX:
        return ""
    try:
        validate_topic_filter(topic_filter)
    except MqttError:
        return ""
    return topic_filter


class Interest:
    """See the module.

    A client that subscribes to the marker of an agent is one: it stands at the same broker, and captures what others
    want elsewhere. Taken for a wish, two such agents would keep each other's filters for ever.

    Args:
        own: Client identifiers of the agent itself, which do not count.
        interest_s: How long a client with a kept session counts after it left.
        filters_max: Bound of filters; more are counted and not federated.

    Attributes:
        counts: What happened, by name.
    """

    def __init__(self, own: Iterable[str] = (), interest_s: float = 604_800.0, filters_max: int = 10_000) -> None:
        self.counts: Counter[str] = Counter()
        self._own, self._interest_s, self._filters_max = frozenset(own), interest_s, filters_max
        self._clients: dict[str, _Row] = {}
        self._holders: dict[str, dict[str, int]] = {}  # filter -> client -> QoS
        self._told: dict[str, int] = {}
        self._touched: set[str] = set()  # filters
        self._dirty: set[str] = set()  # clients
        self._agents: set[str] = set()

    def __len__(self) -> int:
        """Return how many filters are wanted."""
        return len(self._holders)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Put back what a former process knew.

        Raises:
            ValueError: A row is none of ours.
        """
        for key, value in rows:
            try:
                row = msgspec.msgpack.decode(value, type=_Row)
            except msgspec.MsgspecError as error:
                raise ValueError(f"a row of interest cannot be read: {error}") from None
            client = key.decode()
            self._clients[client] = row
            for topic_filter, qos in row.filters.items():
                self._hold(client, topic_filter, qos)

    def subscribed(self, client: str, topic_filter: str, qos: int) -> None:
        """Note a subscription."""
        if client in self._own:
            return
        if client not in self._agents and len(self._agents) < AGENTS_MAX and MARKER.fullmatch(topic_filter):
            self._agents.add(client)
            self.ended(client)
        if client in self._agents:
            self.counts["another_agent"] += 1
            return
        topic_filter = federated(topic_filter)
        if not topic_filter:
            self.counts["not_federated"] += 1
            return
        if topic_filter not in self._holders and len(self._holders) >= self._filters_max:
            self.counts["too_many_filters"] += 1
            return
        row = self._clients.setdefault(client, _Row({}))
        row.filters[topic_filter] = qos
        row.left_s = 0.0
        self._hold(client, topic_filter, qos)
        self._dirty.add(client)

    def unsubscribed(self, client: str, topic_filter: str) -> None:
        """Note the end of a subscription."""
        row = self._clients.get(client)
        topic_filter = federated(topic_filter)
        if row is None or row.filters.pop(topic_filter, None) is None:
            return
        self._drop(client, topic_filter)
        self._dirty.add(client)

    def connected(self, client: str, keeps: bool) -> None:
        """Note a connection; with a clean start what the client wanted before is over."""
        row = self._clients.get(client)
        if client in self._own or (row is None and keeps):
            return
        row = self._clients.setdefault(client, _Row({}))
        if not keeps:
            for topic_filter in list(row.filters):
                self._drop(client, topic_filter)
            row.filters.clear()
            self._dirty.add(client)
        elif row.left_s:
            self._dirty.add(client)
        row.keeps, row.left_s = keeps, 0.0

    def doubt(self, client: str) -> None:
        """Note that a client that began anew may keep its session after this connection."""
        self._clients[client].keeps = True

    def left(self, wall_s: float, client: str) -> None:
        """Note the end of a connection."""
        row = self._clients.get(client)
        if row is None:
            return
        if row.keeps and row.filters:
            row.left_s = wall_s
            self._dirty.add(client)
        else:
            self._forget(client)

    def ended(self, client: str) -> None:
        """Note that a session is over."""
        if client in self._clients:
            self._forget(client)

    def gap(self, wall_s: float) -> None:
        """Note that something may have been missed: nothing is taken away, and who is not heard any more ends later."""
        self.counts["interest_gap"] += 1
        for client, row in self._clients.items():
            if client.startswith(NO_CLIENT):
                continue
            row.keeps = True
            if not row.left_s and row.filters:
                row.left_s = wall_s
                self._dirty.add(client)

    def is_known(self, client: str) -> bool:
        """Whether a client is here, or has a session."""
        return client in self._clients

    def has(self, client: str, topic_filter: str) -> bool:
        """Whether a client wants a filter."""
        return client in self._clients and federated(topic_filter) in self._clients[client].filters

    def expire(self, wall_s: float) -> None:
        """Forget clients that left long ago."""
        for client, row in list(self._clients.items()):
            if row.left_s and wall_s - row.left_s > self._interest_s:
                self.counts["expired_clients"] += 1
                self._forget(client)

    def replace(self, client: str, filters: Mapping[str, int]) -> None:
        """Note that a client wants these filters, and no others."""
        row = self._clients.get(client)
        for topic_filter in [each for each in row.filters if each not in filters] if row is not None else ():
            self.unsubscribed(client, topic_filter)
        for topic_filter, qos in filters.items():
            if row is None or row.filters.get(topic_filter) != qos:
                self.subscribed(client, topic_filter, qos)

    def is_own(self, client: str) -> bool:
        """Whether a client is the agent itself, or another one at this broker."""
        return client in self._own or client in self._agents

    def filters_of(self, client: str) -> Mapping[str, int]:
        """Return what a client wants."""
        row = self._clients.get(client)
        return {} if row is None else row.filters

    def clients(self) -> list[str]:
        """Return who is known."""
        return list(self._clients)

    def take_change(self) -> InterestChanged | None:
        """Return what changed since the last call."""
        added, removed = {}, []
        for topic_filter in sorted(self._touched):
            qos = max(self._holders.get(topic_filter, {}).values(), default=None)
            told = self._told.get(topic_filter)
            if qos is None:
                if told is not None:
                    del self._told[topic_filter]
                    removed.append(topic_filter)
            elif qos != told:
                self._told[topic_filter] = added[topic_filter] = qos
        self._touched.clear()
        return InterestChanged(added, tuple(removed)) if added or removed else None

    def take_rows(self) -> list[Write]:
        """Return the rows to write since the last call."""
        writes: list[Write] = []
        for client in sorted(self._dirty):
            row = self._clients.get(client)
            key = client.encode()
            is_over = row is None or not row.filters
            writes.append(
                Delete(INTEREST_KIND, key) if is_over else Put(INTEREST_KIND, key, msgspec.msgpack.encode(row))
            )
        self._dirty.clear()
        return writes

    def _forget(self, client: str) -> None:
        row = self._clients.pop(client)
        for topic_filter in row.filters:
            self._drop(client, topic_filter)
        self._dirty.add(client)

    def _hold(self, client: str, topic_filter: str, qos: int) -> None:
        self._holders.setdefault(topic_filter, {})[client] = qos
        self._touched.add(topic_filter)

    def _drop(self, client: str, topic_filter: str) -> None:
        holders = self._holders.get(topic_filter, {})
        holders.pop(client, None)
        if not holders:
            self._holders.pop(topic_filter, None)
        self._touched.add(topic_filter)
