"""Gossip beside a node's service: it starts if there is a key, and its failure does not affect the node.

The service receives dead members as hints; the status page shows every member's state. A failure (no key, a port in
use) is logged and ends only gossip: no guarantee of the broker needs it. The protocol modules are imported after the
start, one at a time: they do not delay the node's start, and its clients wait only for one import. A second thread
would make every system call slower (in glibc, permanently).
"""

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
from msgspec import structs

from conf.events import say
from wire.node.process import NodeProcess

if TYPE_CHECKING:
    from membership.gossip import Gossip
    from membership.metadata import NodeMetadata
    from membership.settings import MembershipSettings

__all__ = ["BelievedState", "NodeGossip", "is_news"]

logger = logging.getLogger("stratamq.membership")

INCARNATION_MAX = 2**46 - 1
# In the order of dependencies, so that each step is short.
MODULES = ("profiles", "metadata", "events", "keyring", "member_states", "swim", "settings", "discovery", "gossip")
START_AFTER_S = 2.0  # the imports must not compete with the node's start and its first clients
POLL_S = 0.5  # interval of reading the local load
SEND_INTERVAL_S = 2.0  # interval of sending changed values; a load change of a tenth is sent at once
LOAD_STEP = 0.1
LOAD_MIN = 0.03  # smaller changes are ignored: each transmission is 15 or more packets, and work at every member


class BelievedState(NamedTuple):
    """One member's state and load in gossip."""

    state: str
    clients: int | None  # None: serves none, or did not report it
    load: float


def is_news(sent_clients: int | None, sent_load: float, clients: int, load: float, since_s: float) -> bool:
    """Return whether to send the current values, given the last sent ones and their age."""
    moved = abs(load - sent_load)
    changed = clients != sent_clients or moved >= LOAD_MIN
    return moved >= LOAD_STEP or (changed and since_s >= SEND_INTERVAL_S)


class NodeGossip:
    """One node's membership.

    Args:
        process: Of the node.
        settings: Of the package ``membership``; None, or without a key: gossip does not start.
        on_dead: Receives the name of a member that gossip considers dead.
        figures: Returns (clients, load) of an edge; called every ``POLL_S``.
    """

    def __init__(
        self,
        process: NodeProcess,
        settings: "MembershipSettings | None",
        *,
        on_dead: Callable[[str], None] = lambda _: None,
        figures: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self._process = process
        self._settings = settings
        self._on_dead = on_dead
        self._figures = figures
        self.gossip: Gossip | None = None
        process.metrics.gauge("gossip_members", "Members by state, as gossip sees them.", self._states, ("state",))
        process.metrics.pool("gossip_exchanges", lambda: {} if self.gossip is None else self.gossip.exchanges_ended)
        process.metrics.counter("gossip_events_total", "Events of gossip by name.", self._counters, ("event",))

    @property
    def enabled(self) -> bool:
        """True if a key is configured."""
        settings = self._settings
        return settings is not None and (settings.key_file is not None or settings.key_fd is not None)

    def believes(self) -> dict[str, BelievedState]:
        """Return each member's state and reported load."""
        members = [] if self.gossip is None else self.gossip.members()
        return {
            member.name: BelievedState(member.state, member.metadata.clients, member.metadata.load)
            for member in members
        }

    def _states(self) -> dict[tuple[str, ...], float]:
        states = dict.fromkeys(("alive", "suspect", "dead", "left"), 0.0)
        if self.gossip is not None:
            states.update(self.gossip.states())
        return {(state,): float(count) for state, count in states.items()}

    def _counters(self) -> dict[tuple[str, ...], float]:
        counters = {} if self.gossip is None else self.gossip.counters()
        return {(name,): float(count) for name, count in counters.items() if name != "local_health"}

    async def run(self, link_address: str, listeners: Mapping[str, str] | None = None) -> None:
        """Run gossip until cancelled; returns at once without a key, and after a failure.

        Args:
            link_address: The node's address for other nodes, unless the configuration has one.
            listeners: Addresses of an edge for clients, by listener.
        """
        if not self.enabled:
            return
        try:
            await self._run(link_address, listeners or {})
        except Exception as error:  # any failure: the node continues without gossip
            self.gossip = None
            say(logger, "gossip.ended", why=error)

    async def _run(self, link_address: str, listeners: Mapping[str, str]) -> None:
        node, identity = self._process.config.node, self._process.identity
        modules: dict[str, Any] = {}
        await trio.sleep(START_AFTER_S)
        for name in MODULES:
            modules[name] = importlib.import_module(f"membership.{name}")
            await trio.lowlevel.checkpoint()
        metadata = modules[
            "metadata"
        ].NodeMetadata(
            node.id,
            identity.tier,
            min(identity.incarnation, INCARNATION_MAX),
            {"links": link} if (link := node.advertise or link_address) else {},  # a gateway accepts no links
            node.zone[:32],
            float(node.weight),
        )
        metadata, left_out = modules["metadata"].with_addresses(metadata, listeners)
        if left_out:
            say(logger, "gossip.no_room", left_out_nodes=", ".join(left_out))
        gossip: Gossip = modules["gossip"].Gossip(self._settings, metadata, give_way=self._process.give_way)
        events = modules["events"]
        async with trio.open_nursery() as nursery:
            await nursery.start(gossip.run)
            self.gossip = gossip
            if self._figures is not None:
                nursery.start_soon(self._publish, gossip, metadata, self._figures)
            async for event in gossip.events:
                if isinstance(event, events.NodeLeave):
                    self._on_dead(event.member.name)
                elif isinstance(event, events.Superseded):
                    say(logger, "gossip.name_taken", peer=node.id)

    async def _publish(
        self, gossip: "Gossip", metadata: "NodeMetadata", figures: Callable[[], tuple[int, float]]
    ) -> None:
        """Send the number of clients and the load to the other members."""
        sent_at = -SEND_INTERVAL_S
        while True:
            clients, load = figures()
            now = trio.current_time()
            if is_news(metadata.clients, metadata.load, clients, load, now - sent_at):
                metadata, sent_at = structs.replace(metadata, clients=clients, load=round(load, 2)), now
                gossip.update_metadata(metadata)
            await trio.sleep(POLL_S)
