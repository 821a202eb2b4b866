"""Limits of ``[edge]`` that a reload changes while the edge runs: which, and what goes by others from then on.

Connections stay. What CONNACK told a client holds until it goes; a client's other bounds follow when the sweep looks at
it, as those of its listener do. What is queued or counted beyond a new limit is kept, and nothing more is added. Other
settings of ``[edge]`` are read at the start only. Decision: docs/adr/0215-limits-of-an-edge-follow-a-reload.md.
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
OF_TOPICS = ("topic_levels_max", "topic_bytes_max")


class Bounded(Protocol):
    """A part that made something of the node's limits: buckets, tables."""

    def bound(self) -> None:
        """Go by the node's limits of now."""


class BoundedLoop(Protocol):
    """The loop's own numbers."""

    def bound_by(self, limits: HotLimits) -> None:
        """Go by these limits from now on."""

    def drop_routes(self) -> None:
        """Forget each topic's Route."""


class LiveLimits:
    """A part of a reload: the limits of one edge.

    Args:
        settings: Those that the edge was started with.
        node: Has the limits in force.
        loop: Likewise, its own.
        memory: Bounds what is held.
        rights: Bounds clients.
        parts: Those that made something of the limits.
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
        """Return the settings of the edge; their ranges are judged already."""
        return config.edge  # type: ignore[no-any-return]

    def current(self) -> EdgeSettings:
        """Return the settings in force."""
        return self._held

    def difference(self, loaded: EdgeSettings) -> list[str]:
        """Return nothing: the settings say it all."""
        del loaded
        return []

    def put(self, loaded: EdgeSettings) -> None:
        """Go by these limits from now on."""
        former, self._held = self._held, loaded
        changed = [name for name in LIVE if getattr(loaded, name) != getattr(former, name)]
        if not changed:
            return
        limits = edge_limits(loaded)
        self._node.bound_by(limits)
        self._loop.bound_by(hot_limits(loaded))
        self._memory.bound(limits.memory_max)
        for part in self._parts:
            part.bound()
        if any(name in changed for name in OF_TOPICS):
            self._loop.drop_routes()  # a topic that has one is not looked at again
        self._rights.bound_by(limits)
        self._node.wake()
        self._kick()
