"""The cluster connection of the HTTP service: links that reconnect, a current map, and verbs sent to the leader.

A failed link is retried at the next query. ``admin/queries.py`` runs queries.
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
CHANGE_S = 25.0  # a verb that revokes rights waits up to 20 s for nodes
ELECTION_S = 3.0
ASK_AGAIN_S = 0.2
MAP_S = 1.0  # maximum age of the map


class LiveCluster:
    """One cluster.

    Args:
        links: To its nodes.
        routers: host:port of the initial routers.
    """

    def __init__(self, links: NodeLinks, routers: Sequence[str]) -> None:
        self.links = links
        self._routers = tuple(routers)
        self._map_at = -MAP_S
        self._leader = ""
        self._reading = trio.Lock()

    async def follow(self) -> None:
        """Update the map if it is older than a second.

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
        """Return the cluster for ``admin/queries.py``, with the caller's role.

        Raises:
            Problem: No router sends its map.
        """
        await self.follow()
        self.links.forget_failed()
        return queries.Cluster(self.links, total_s, actor, role)

    async def ask(self, verb: str, arguments: Mapping[str, Any], actor: str = "", role: str = "") -> AdminReply:
        """Send a verb to the leader; retry for some seconds during an election.

        Each retry has the identifier of the first request, so the verb runs once.
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
                    repeated = repeated or not isinstance(reply.result, dict)  # it may have received the request
                if trio.current_time() >= until:
                    return reply
                await trio.sleep(ASK_AGAIN_S)
        return reply

    async def order(
        self, node: str, verb: str, arguments: Mapping[str, Any], actor: str = "", role: str = ""
    ) -> AdminReply:
        """Send a verb to one node.

        Raises:
            Problem: The node does not exist, or has not the verb's tier.
        """
        await self.follow()
        self.links.forget_failed()
        entry = self.links.map.nodes.get(node)
        if entry is None or entry.tier != VERBS[verb].tier:
            text = f"no {VERBS[verb].tier} node {node[:64]!r} in this cluster"
            raise Problem(404, "not_found", text, "GET /api/v1/nodes lists them")
        return await self.links.order(
            node, verb, arguments, CHANGE_S if VERBS[verb].changes else READ_S, actor=actor, role=role
        )

    def _in_order(self) -> list[str]:
        """Return the routers, the last leader first."""
        names = sorted(entry.node for entry in self.links.map.live(TIER_ROUTER))
        return sorted(names, key=lambda name: name != self._leader)
