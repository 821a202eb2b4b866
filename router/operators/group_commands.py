"""Requests that the router's process answers: members of the Raft group, gossip members, and gossip keys.

``cluster join`` adds a router that waits with ``router.join = true``: a learner until it is caught up, then a voter.
``cluster leave`` removes one; a leader transfers leadership first. Each step is one entry of the group's log. An
interrupted command can be repeated. Source: Ongaro's thesis, chapter 4.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from access.operators.commands import Refusal, arguments_of
from router.map.not_leading import does_not_lead
from router.raft.events import ChangeMembership
from router.raft.node import NotLeader, RaftNode, Unavailable
from wire.clock import boot_time
from wire.messages.hello import TIER_ROUTER
from wire.messages.operators import Admin, AdminReply

if TYPE_CHECKING:
    from membership.node_gossip import NodeGossip

__all__ = ["GroupCommands"]

FAILED = 1
USAGE = 2
CAUGHT_UP_S = 8.0  # for a learner, and for the election of another leader; below the command line's timeout
POLL_S = 0.1
NO_GOSSIP = "gossip does not run here: set membership.key_file, or look into the log"
LATER = frozenset({"change_in_progress", "no_entry_of_term_committed", "learner_behind", "learner_silent"})


class GroupCommands:
    """Commands that one router executes for its Raft group and gossip."""

    def __init__(self, node: str, raft: RaftNode, gossip: "NodeGossip") -> None:
        self._node = node
        self._raft = raft
        self._gossip = gossip
        self._verbs: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "cluster join": self._join,
            "cluster leave": self._leave,
            "cluster transfer": self._transfer,
            "membership list": self._members,
        }

    async def answer(self, question: Admin) -> AdminReply:
        """Execute a request; return its reply in all cases."""
        try:
            arguments = arguments_of(question, TIER_ROUTER)
            if question.verb.startswith("membership keys "):
                return await self._keys(question.request, question.verb.rpartition(" ")[2], arguments)
            if question.repeated and self._is_done(question.verb, arguments):
                return AdminReply(question.request, True, self._group())
            return AdminReply(question.request, True, await self._verbs[question.verb](arguments))
        except NotLeader as error:
            return does_not_lead(question, self._node, error.leader_hint or "")
        except Unavailable as error:
            text = f"{question.verb}: {str(error).replace('_', ' ')}; `stratamq cluster status` shows the group"
            return AdminReply(question.request, False, None, text, FAILED)
        except Refusal as error:
            return AdminReply(question.request, False, None, str(error), USAGE)
        except ValueError as error:
            return AdminReply(question.request, False, None, f"{question.verb}: {error}", FAILED)

    # --- the group

    def _group(self) -> dict[str, Any]:
        configuration = self._raft.configuration
        return {"voters": sorted(configuration.voters), "learners": sorted(configuration.learners)}

    def _is_done(self, verb: str, arguments: dict[str, Any]) -> bool:
        """Return whether the group is already as ordered, by an order whose answer was lost."""
        configuration, node = self._raft.configuration, arguments["node"]
        if verb == "cluster join":
            return node in configuration.voters and node not in self._raft.core.foreign_disks
        if verb == "cluster leave":
            return self._raft.is_leader and node not in (*configuration.voters, *configuration.learners)
        return self._raft.is_leader and node == self._node

    async def _change(self, action: Any, node: str) -> None:
        """Make one membership change; retry while the obstacle is temporary."""
        until = trio.current_time() + CAUGHT_UP_S
        while True:
            try:
                await self._raft.change_membership(ChangeMembership(action, node))
            except Unavailable as error:
                if str(error) not in LATER or trio.current_time() >= until:
                    raise
                await trio.sleep(POLL_S)
            else:
                return

    async def _join(self, arguments: dict[str, Any]) -> dict[str, Any]:
        node = arguments["node"]
        configuration = self._raft.configuration
        if node in configuration.voters and node in self._raft.core.foreign_disks:
            await self._change("replace", node)  # it returned with an empty disk
        elif node in configuration.voters:
            raise ValueError(f"{node} is a voter already")
        elif node not in configuration.learners:
            await self._change("add_learner", node)
        try:
            await self._change("promote", node)
        except Unavailable as error:
            if node in self._raft.configuration.voters:
                return self._group()  # the leader promoted it already
            raise ValueError(
                f"{node} is a learner, not yet a voter ({str(error).replace('_', ' ')}): "
                "is it running with router.join = true? Then give the command again"
            ) from None
        return self._group()

    async def _leave(self, arguments: dict[str, Any]) -> dict[str, Any]:
        node = arguments["node"]
        configuration = self._raft.configuration
        if node not in configuration.voters and node not in configuration.learners:
            raise ValueError(f"{node} is not in the group: {', '.join(sorted(configuration.voters))}")
        if set(configuration.voters) == {node}:
            raise ValueError(f"{node} is the last router of the group: add another one first")
        if node == self._node and self._raft.is_leader:
            await self._transfer({"node": ""})
            raise NotLeader(self._raft.leader_hint)  # the command line continues at the new leader
        await self._change("remove", node)
        return self._group()

    async def _transfer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        to = arguments["node"]
        others = [name for name in sorted(self._raft.configuration.voters) if name != self._node]
        if to and to not in others:
            raise ValueError(f"{to} is not another voter: {', '.join(others) or 'there is none'}")
        for name in [to] if to else others:
            await self._raft.transfer_leadership(name)
            with trio.move_on_after(CAUGHT_UP_S / 4):
                while self._raft.is_leader or self._raft.leader_hint is None:
                    await trio.sleep(POLL_S)
            if not self._raft.is_leader:
                return {"leader": self._raft.leader_hint or "", **self._group()}
        raise ValueError("nobody took over: the other routers are behind or not reached; look at `cluster status`")

    # --- gossip

    async def _members(self, _: dict[str, Any]) -> dict[str, Any]:
        if self._gossip.gossip is None:
            raise ValueError(NO_GOSSIP)
        now = boot_time()  # gossip's clock
        return {
            "members": [
                {
                    "member": member.name,
                    "state": member.state,
                    "since_s": round(now - member.since, 1),
                    "tier": member.metadata.tier,
                    "address": "{}:{}".format(*member.address),
                    "incarnation": member.metadata.process_incarnation,
                    "zone": member.metadata.zone,
                    "asked": member.is_self,
                }
                for member in sorted(self._gossip.gossip.members(), key=lambda member: member.name)
            ]
        }

    async def _keys(self, request: int, step: str, arguments: dict[str, Any]) -> AdminReply:
        if self._gossip.gossip is None:
            return AdminReply(request, False, None, NO_GOSSIP, FAILED)
        import base64

        from membership.admin import rotate_keys

        key = base64.b64decode(arguments.get("key", ""), validate=True)
        key_id = bytes.fromhex(arguments.get("key_id", ""))
        force = arguments.get("force", False)
        report = await rotate_keys(self._gossip.gossip, step, key=key, key_id=key_id, force=force)  # type: ignore[arg-type]
        result = {
            "operation": report.operation,
            "key_id": report.key_id,
            "complete": report.complete,
            "members": [
                {
                    "member": member.name,
                    "state": member.state,
                    "ok": member.ok,
                    "keys": list(member.key_ids),
                    "persisted": member.persisted,
                    "detail": member.detail,
                }
                for member in report.members
            ],
        }
        error = report.refused or (f"not everywhere: {', '.join(report.failed)}; ask again" if report.failed else "")
        return AdminReply(request, report.complete, result, error, 0 if report.complete else FAILED)
