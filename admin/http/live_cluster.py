"""The cluster as the HTTP service asks it: links that come back, the map of now, and verbs that find the leader.

A link that failed is tried again at the next question. Looks and pages are ``admin/queries.py``'s.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from access.operators.commands import VERBS
from admin import queries
from admin.http.problems import Problem
from admin.links import NodeLinks
from conf.errors import ExitCode, UserError
from wire.messages.hello import TIER_ROUTER
from wire.messages.operators import AdminReply

__all__ = ["LiveCluster"]

READ_S = 5.0
CHANGE_S = 25.0  # a verb that takes rights away waits up to 20 s for nodes
ELECTION_S = 3.0
ASK_AGAIN_S = 0.2
MAP_S = 1.0  # how old the map may be


class LiveCluster:
    """One cluster.

    Args:
        links: To its nodes.
        routers: host:port of routers, to begin with.
    """

    def __init__(self, links: NodeLinks, routers: Sequence[str]) -> None:
        self.links = links
        self._routers = tuple(routers)
        self._map_at = -MAP_S
        self._leader = ""
        self._reading = trio.Lock()

    async def follow(self) -> None:
        """Have a map that is at most a second old.

        Raises:
            Problem: No router sends one.
        """
        if trio.current_time() - self._map_at < MAP_S and self.links.map.cluster:
            return
        async with self._reading:
            if trio.current_time() - self._map_at < MAP_S and self.links.map.cluster:
                return
            known = [entry.address for entry in self.links.map.live(TIER_ROUTER)]
            addresses = [*dict.fromkeys((*known, *self._routers))]
            try:
                await self.links.read_map(addresses)
            except UserError as error:
                raise Problem(503, "no_router", error.message.split("\n")[0], "start a router", 1.0) from None
            self._map_at = trio.current_time()

    async def for_queries(self, role: str, total_s: float, actor: str = "") -> queries.Cluster:
        """Return the cluster as ``admin/queries.py`` takes it, for a caller of that role.

        Raises:
            Problem: No router sends its map.
        """
        await self.follow()
        self.links.forget_failed()
        return queries.Cluster(self.links, total_s, actor, role)

    async def ask(self, verb: str, arguments: Mapping[str, Any], actor: str = "", role: str = "") -> AdminReply:
        """Ask the leader for a verb; while one is elected, ask again for some seconds.

        Each repeat has the identifier of the first question, so that it is carried out once.
        """
        await self.follow()
        self.links.forget_failed()
        order = secrets.token_hex(16)
        changes = VERBS[verb].changes or verb == "policy status"
        repeated = False
        reply = AdminReply(0, False, None, "no router is known", ExitCode.NOT_READY)
        with trio.move_on_after(ELECTION_S + (CHANGE_S if changes else READ_S)):
            until = trio.current_time() + ELECTION_S
            while True:
                for router in self._in_order():
                    reply = await self.links.order(
                        router,
                        verb,
                        arguments,
                        CHANGE_S if changes else READ_S,
                        order=order,
                        repeated=repeated,
                        actor=actor,
                        role=role,
                    )
                    if reply.exit_code != ExitCode.NOT_READY:
                        self._leader = router
                        return reply
                    repeated = repeated or not isinstance(reply.result, dict)  # it may have taken the order
                if trio.current_time() >= until:
                    return reply
                await trio.sleep(ASK_AGAIN_S)
        return reply

    async def order(
        self, node: str, verb: str, arguments: Mapping[str, Any], actor: str = "", role: str = ""
    ) -> AdminReply:
        """Ask one node for a verb of its own.

        Raises:
            Problem: There is no such node, or it is none of the verb's tier.
        """
        await self.follow()
        self.links.forget_failed()
        entry = self.links.map.nodes.get(node)
        if entry is None or entry.tier != VERBS[verb].tier:
            text = f"no {VERBS[verb].tier} node {node[:64]!r} in this cluster"
            raise Problem(404, "not_found", text, "GET /api/v1/nodes names them")
        return await self.links.order(
            node, verb, arguments, CHANGE_S if VERBS[verb].changes else READ_S, actor=actor, role=role
        )

    def _in_order(self) -> list[str]:
        """Return the routers, the one that led last first."""
        names = sorted(entry.node for entry in self.links.map.live(TIER_ROUTER))
        return sorted(names, key=lambda name: name != self._leader)
