"""Gossip beside a node's service: started when there is a key, never in its way, and never believed too much.

Decides nothing. The service hears of members that gossip holds dead, as a hint; the status page sees every member's
state. What fails here (no key, a port in use) is logged and ends gossip alone: no promise of the broker needs it.
The protocol is imported when it starts, a module at a time: a node's start does not pay for it, its clients do not
wait for all of it at once, and the process stays without a second thread, which would make every system call dearer
(in glibc, for good).
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
# In the order in which they need each other, so that each step is short.
MODULES = ("profiles", "metadata", "events", "keyring", "member_states", "swim", "settings", "discovery", "gossip")
START_AFTER_S = 2.0  # the node comes up first, and its first clients: the imports would compete with both
LOOK_S = 0.5  # at our own figures
TOLD_S = 2.0  # what has changed is told this often, and at once a load that has changed by a tenth
LOAD_STEP = 0.1
LOAD_HEEDED = 0.03  # below it a load is the same: each telling is fifteen packets and more, and work at every member


class BelievedState(NamedTuple):
    """One member as gossip sees it."""

    state: str
    clients: int | None  # None: serves none, or told none
    load: float


def is_news(told_clients: int | None, told_load: float, clients: int, load: float, since_s: float) -> bool:
    """Return whether others are told these figures, so long after they were told those."""
    moved = abs(load - told_load)
    changed = clients != told_clients or moved >= LOAD_HEEDED
    return moved >= LOAD_STEP or (changed and since_s >= TOLD_S)


class NodeGossip:
    """One node's membership.

    Args:
        process: Of the node.
        settings: Room ``membership``; None, or without a key, and nothing is started.
        on_dead: Told the name of a member that gossip holds dead.
        figures: Returns (clients, load) of an edge; called every ``LOOK_S``.
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
        """True if the configuration names a key."""
        settings = self._settings
        return settings is not None and (settings.key_file is not None or settings.key_fd is not None)

    def believes(self) -> dict[str, BelievedState]:
        """Return each member's state, and how loaded it says to be."""
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
        """Gossip until cancelled; returns at once when there is no key, and when gossip cannot go on.

        Args:
            link_address: Where other nodes reach this one, unless the configuration names it.
            listeners: Where clients reach an edge, by listener.
        """
        if not self.enabled:
            return
        try:
            await self._run(link_address, listeners or {})
        except Exception as error:  # whatever it is: the node goes on without gossip
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
            {"links": link} if (link := node.advertise or link_address) else {},  # a gateway listens for none
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
                nursery.start_soon(self._tell, gossip, metadata, self._figures)
            async for event in gossip.events:
                if isinstance(event, events.NodeLeave):
                    self._on_dead(event.member.name)
                elif isinstance(event, events.Superseded):
                    say(logger, "gossip.name_taken", peer=node.id)

    async def _tell(self, gossip: "Gossip", metadata: "NodeMetadata", figures: Callable[[], tuple[int, float]]) -> None:
        """Tell the others how many clients there are, and how loaded we are."""
        told_at = -TOLD_S
        while True:
            clients, load = figures()
            now = trio.current_time()
            if is_news(metadata.clients, metadata.load, clients, load, now - told_at):
                metadata, told_at = structs.replace(metadata, clients=clients, load=round(load, 2)), now
                gossip.update_metadata(metadata)
            await trio.sleep(LOOK_S)
