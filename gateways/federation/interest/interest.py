"""Interest of a broker's clients: filters by client with expiry, and the rows that store them.

Shared by the adapters, which translate the broker's output into ``subscribed``, ``unsubscribed``, ``connected`` and
``disconnected``. Pure logic; the caller commits ``take_rows`` with the acknowledgement of its input.
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

__all__ = ["INTEREST_KIND", "NO_CLIENT", "Adapter", "Interest", "to_federated"]

INTEREST_KIND = "interest"
FILTER_CHARACTERS_MAX = 65_535
AGENTS_MAX = 64  # remembered other agents at the same broker
MARKER = re.compile(re.escape(MARKER_PREFIX) + r"[A-Za-z0-9._-]+/marker")  # subscribed only by agents
NO_CLIENT = "\0"  # prefix of names for a file or a list; invalid in client identifiers [MQTT-1.5.4-2]


class Adapter(Protocol):
    """One kind of broker."""

    @property
    def filters(self) -> tuple[str, ...]:
        """Topics of the broker that report interest."""

    @property
    def interest(self) -> Interest:
        """The known interest."""

    def accepts(self, topic: str) -> bool:
        """Whether a message is for this adapter."""

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Handle one message."""

    def disconnected(self, wall_s: float) -> None:
        """Record that the agent lost its broker connection."""

    def reconnected(self, wall_s: float, is_present: bool) -> bool:
        """Record the reconnection; return whether messages may have been missed, which is reported."""


class _Row(msgspec.Struct, array_like=True):
    """Filters of one client.

    Attributes:
      filters: Each with its highest QoS.
      is_persistent: Its session outlives its connection; True while unknown.
      disconnected_s: Wall clock of its disconnection; 0 while connected.
    """

    filters: dict[str, int]
    is_persistent: bool = True
    disconnected_s: float = 0.0


def to_federated(topic_filter: str) -> str:
    """Return the federated filter of a subscription; "" if it is invalid or never federated."""
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

    A client that subscribes to an agent's marker is another agent at the same broker, whose captures are no interest.
    Otherwise two such agents would keep each other's filters alive.

    Args:
      own: Client identifiers of the agent itself, which do not count.
      interest_s: How long a client with a persistent session counts after its disconnection.
      filters_max: Bound of filters; further ones are counted and not federated.

    Attributes:
      counts: Events, by name.
    """

    def __init__(self, own: Iterable[str] = (), interest_s: float = 604_800.0, filters_max: int = 10_000) -> None:
        self.counts: Counter[str] = Counter()
        self._own, self._interest_s, self._filters_max = frozenset(own), interest_s, filters_max
        self._clients: dict[str, _Row] = {}
        self._clients_by_filter: dict[str, dict[str, int]] = {}  # filter -> client -> QoS
        self._reported: dict[str, int] = {}
        self._changed_filters: set[str] = set()  # filters
        self._changed_clients: set[str] = set()  # clients
        self._agents: set[str] = set()

    def __len__(self) -> int:
        """Return the number of wanted filters."""
        return len(self._clients_by_filter)

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the rows of a former process.

        Raises:
          ValueError: A row is invalid.
        """
        for key, value in rows:
            try:
                row = msgspec.msgpack.decode(value, type=_Row)
            except msgspec.MsgspecError as error:
                raise ValueError(f"a row of interest cannot be read: {error}") from None
            client = key.decode()
            self._clients[client] = row
            for topic_filter, qos in row.filters.items():
                self._add(client, topic_filter, qos)

    def subscribed(self, client: str, topic_filter: str, qos: int) -> None:
        """Record a subscription."""
        if client in self._own:
            return
        if client not in self._agents and len(self._agents) < AGENTS_MAX and MARKER.fullmatch(topic_filter):
            self._agents.add(client)
            self.session_ended(client)
        if client in self._agents:
            self.counts["another_agent"] += 1
            return
        topic_filter = to_federated(topic_filter)
        if not topic_filter:
            self.counts["not_federated"] += 1
            return
        if topic_filter not in self._clients_by_filter and len(self._clients_by_filter) >= self._filters_max:
            self.counts["too_many_filters"] += 1
            return
        row = self._clients.setdefault(client, _Row({}))
        row.filters[topic_filter] = qos
        row.disconnected_s = 0.0
        self._add(client, topic_filter, qos)
        self._changed_clients.add(client)

    def unsubscribed(self, client: str, topic_filter: str) -> None:
        """Record the end of a subscription."""
        row = self._clients.get(client)
        topic_filter = to_federated(topic_filter)
        if row is None or row.filters.pop(topic_filter, None) is None:
            return
        self._remove(client, topic_filter)
        self._changed_clients.add(client)

    def connected(self, client: str, is_persistent: bool) -> None:
        """Record a connection; a clean start ends the client's former subscriptions."""
        row = self._clients.get(client)
        if client in self._own or (row is None and is_persistent):
            return
        row = self._clients.setdefault(client, _Row({}))
        if not is_persistent:
            for topic_filter in list(row.filters):
                self._remove(client, topic_filter)
            row.filters.clear()
            self._changed_clients.add(client)
        elif row.disconnected_s:
            self._changed_clients.add(client)
        row.is_persistent, row.disconnected_s = is_persistent, 0.0

    def assume_persistent(self, client: str) -> None:
        """Assume that a client's session outlives this connection."""
        self._clients[client].is_persistent = True

    def disconnected(self, wall_s: float, client: str) -> None:
        """Record a disconnection."""
        row = self._clients.get(client)
        if row is None:
            return
        if row.is_persistent and row.filters:
            row.disconnected_s = wall_s
            self._changed_clients.add(client)
        else:
            self._forget(client)

    def session_ended(self, client: str) -> None:
        """Record the end of a session."""
        if client in self._clients:
            self._forget(client)

    def record_gap(self, wall_s: float) -> None:
        """Record possibly missed events: no filter is removed, and unconfirmed clients expire later."""
        self.counts["interest_gap"] += 1
        for client, row in self._clients.items():
            if client.startswith(NO_CLIENT):
                continue
            row.is_persistent = True
            if not row.disconnected_s and row.filters:
                row.disconnected_s = wall_s
                self._changed_clients.add(client)

    def is_known(self, client: str) -> bool:
        """Whether a client is connected or has a session."""
        return client in self._clients

    def has(self, client: str, topic_filter: str) -> bool:
        """Whether a client has a filter."""
        return client in self._clients and to_federated(topic_filter) in self._clients[client].filters

    def expire(self, wall_s: float) -> None:
        """Remove clients that disconnected long ago."""
        for client, row in list(self._clients.items()):
            if row.disconnected_s and wall_s - row.disconnected_s > self._interest_s:
                self.counts["expired_clients"] += 1
                self._forget(client)

    def replace(self, client: str, filters: Mapping[str, int]) -> None:
        """Replace the filters of a client."""
        row = self._clients.get(client)
        for topic_filter in [each for each in row.filters if each not in filters] if row is not None else ():
            self.unsubscribed(client, topic_filter)
        for topic_filter, qos in filters.items():
            if row is None or row.filters.get(topic_filter) != qos:
                self.subscribed(client, topic_filter, qos)

    def is_own(self, client: str) -> bool:
        """Whether a client is the agent itself, or another agent at this broker."""
        return client in self._own or client in self._agents

    def get_filters(self, client: str) -> Mapping[str, int]:
        """Return the filters of a client."""
        row = self._clients.get(client)
        return {} if row is None else row.filters

    def clients(self) -> list[str]:
        """Return the known clients."""
        return list(self._clients)

    def take_change(self) -> InterestChanged | None:
        """Return the changes since the last call."""
        added, removed = {}, []
        for topic_filter in sorted(self._changed_filters):
            qos = max(self._clients_by_filter.get(topic_filter, {}).values(), default=None)
            reported = self._reported.get(topic_filter)
            if qos is None:
                if reported is not None:
                    del self._reported[topic_filter]
                    removed.append(topic_filter)
            elif qos != reported:
                self._reported[topic_filter] = added[topic_filter] = qos
        self._changed_filters.clear()
        return InterestChanged(added, tuple(removed)) if added or removed else None

    def take_rows(self) -> list[Write]:
        """Return the rows to write since the last call."""
        writes: list[Write] = []
        for client in sorted(self._changed_clients):
            row = self._clients.get(client)
            key = client.encode()
            is_empty = row is None or not row.filters
            writes.append(
                Delete(INTEREST_KIND, key) if is_empty else Put(INTEREST_KIND, key, msgspec.msgpack.encode(row))
            )
        self._changed_clients.clear()
        return writes

    def _forget(self, client: str) -> None:
        row = self._clients.pop(client)
        for topic_filter in row.filters:
            self._remove(client, topic_filter)
        self._changed_clients.add(client)

    def _add(self, client: str, topic_filter: str, qos: int) -> None:
        self._clients_by_filter.setdefault(topic_filter, {})[client] = qos
        self._changed_filters.add(topic_filter)

    def _remove(self, client: str, topic_filter: str) -> None:
        clients = self._clients_by_filter.get(topic_filter, {})
        clients.pop(client, None)
        if not clients:
            self._clients_by_filter.pop(topic_filter, None)
        self._changed_filters.add(topic_filter)
