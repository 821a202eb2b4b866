"""Limits of ``[edge]`` that a reload changes while the edge runs.

Connections stay. Limits announced in CONNACK keep their values until the disconnect; the sweep applies a client's other
bounds, as those of its listener. State beyond a new limit is kept, but does not grow. Other settings of ``[edge]`` are
read at the start only. Decision: docs/adr/0215-limits-of-an-edge-follow-a-reload.md.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from conf.settings import EdgeSettings
from edge.clients.memory_guard import MemoryGuard
from edge.limits_of_settings import edge_limits, hot_limits
from edge.loop.options import HotLimits
from edge.node.node import EdgeNode
from edge.rights.client_rights import ClientRights

__all__ = ["LIVE", "LiveLimits"]

LIVE = (
    "connect_timeout_s",
    "connect_packet_timeout_s",
    "keep_alive_max_s",
    "receive_maximum",
    "receive_excess_messages_max",
    "receive_excess_bytes_max",
    "receive_excess_wait_s",
    "topic_alias_maximum",
    "maximum_packet_size",
    "session_expiry_max_s",
    "topic_levels_max",
    "topic_bytes_max",
    "client_id_bytes_max",
    "filters_per_session_max",
    "filters_per_packet_max",
    "share_join_rate_max",
    "user_property_bytes_max",
    "user_properties_max",
    "retained_per_subscribe_max",
    "retained_hold_s",
    "retained_rate_max",
    "outbound_window_max",
    "output_buffer_bytes_max",
    "output_buffer_bytes_low",
    "lagging_after_ms",
    "pending_messages_max",
    "pending_bytes_max",
    "connections_max",
    "session_rate",
    "session_burst",
    "connect_rate_max",
    "publish_rate_max",
    "unauthenticated_bytes_max",
    "memory_max",
    "routes_bytes_max",
    "outbox_bytes_max",
    "failed_logins_max",
    "flapping_ends_max",
    "takeovers_max",
    "will_rate_max",
    "packet_timeout_s",
    "packet_rate_min",
    "read_ahead_bytes_max",
)
TOPIC_LIMITS = ("topic_levels_max", "topic_bytes_max")


class Bounded(Protocol):
    """A part with state derived from the node's limits: buckets, tables."""

    def bound(self) -> None:
        """Apply the node's current limits."""


class BoundedLoop(Protocol):
    """The limits of the loop."""

    def bound_by(self, limits: HotLimits) -> None:
        """Apply these limits."""

    def drop_routes(self) -> None:
        """Remove each topic's Route."""


class LiveLimits:
    """A part of a reload: the limits of one edge.

    Args:
        settings: Those of the start.
        node: Has the limits in force.
        loop: Likewise, its own.
        memory: Bounds the clients' memory.
        rights: Bounds clients.
        parts: Parts with state derived from the limits.
        kick: Wakes the loop.
    """

    settings: Sequence[str] = tuple(f"edge.{name}" for name in LIVE)

    def __init__(
        self,
        settings: EdgeSettings,
        node: EdgeNode,
        loop: BoundedLoop,
        memory: MemoryGuard,
        rights: ClientRights,
        parts: Sequence[Bounded],
        kick: Callable[[], None],
    ) -> None:
        self._held = settings
        self._node = node
        self._loop = loop
        self._memory = memory
        self._rights = rights
        self._parts = parts
        self._kick = kick

    def load(self, config: Any) -> EdgeSettings:
        """Return the settings of the edge; their ranges are validated already."""
        return config.edge  # type: ignore[no-any-return]

    def current(self) -> EdgeSettings:
        """Return the settings in force."""
        return self._held

    def difference(self, loaded: EdgeSettings) -> list[str]:
        """Return no further differences: the settings contain all of them."""
        del loaded
        return []

    def put(self, loaded: EdgeSettings) -> None:
        """Apply other limits."""
        previous, self._held = self._held, loaded
        changed = [name for name in LIVE if getattr(loaded, name) != getattr(previous, name)]
        if not changed:
            return
        limits = edge_limits(loaded)
        self._node.bound_by(limits)
        self._loop.bound_by(hot_limits(loaded))
        self._memory.bound(limits.memory_max)
        for part in self._parts:
            part.bound()
        if any(name in changed for name in TOPIC_LIMITS):
            self._loop.drop_routes()  # a topic with a Route is not validated again
        self._rights.bound_by(limits)
        self._node.wake()
        self._kick()
