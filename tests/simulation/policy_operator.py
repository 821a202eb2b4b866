"""An operator of the simulation: one command at a time to the leading router, repeated as by the command line.

``stratamq/cli/node_requests.py`` and ``wire/links/request.py`` do this with trio: connect, HELLO, request, read, close.
A committed but unsettled command continues with ``policy status``.
"""

import random
from typing import Any

from access.operators.commands import tier_of
from tests.simulation.link_process import CLUSTER
from tests.simulation.network import Endpoint
from tests.simulation.process import Process, World
from tests.simulation.program import Change, sleep
from wire.links.link import LinkCore
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_OPERATOR, HelloReader, LinkError, NodeIdentity, encode_hello
from wire.messages.operators import Admin, AdminReply

__all__ = ["PARTIAL_MAX_S", "Operator"]

PARTIAL, NOT_READY = 3, 4
AGAIN_S = 0.25
WAIT_S = 25.0  # timeout of one answer, above the router's
PARTIAL_MAX_S = 22.0  # until a partial answer, including the network
HASTY_S = 3.0  # of an operator that aborts and retries


class _Exchange:
    """One request on one link."""

    def __init__(self, change: Change, identity: NodeIdentity, question: Admin) -> None:
        self.change, self.identity, self.question = change, identity, question
        self.end: Endpoint | None = None
        self.reply: AdminReply | None = None
        self.over = False
        self._hello: HelloReader | None = HelloReader()
        self._core = LinkCore()

    def connected(self, end: Endpoint | None) -> None:
        if end is None or self.over:
            self.over = True
            if end is not None:
                end.close()
        else:
            self.end = end
            end.notify = self._read
            end.send(encode_hello(self.identity))
        self.change.notify()

    def _read(self) -> None:
        end = self.end
        if end is None or self.over:
            return
        data = end.read()
        try:
            self._take(end, data)
        except LinkError:
            self.over = True
        self.over = self.over or self.reply is not None or end.reset or (end.eof and not end.inbox)
        self.change.notify()

    def _take(self, end: Endpoint, data: bytes) -> None:
        if self._hello is not None:
            if self._hello.receive(data) is None:
                return
            data, self._hello = self._hello.rest, None
            self._core.connected(0)
            self._core.send(FrameKind.CONTROL, encode_control(self.question))
            end.send(self._core.take_output())
        for frame in self._core.receive(data):
            reply = decode_control(frame.payload) if frame.kind == FrameKind.CONTROL else None
            if isinstance(reply, AdminReply) and reply.request == self.question.request:
                self.reply = reply

    def close(self) -> None:
        self.over = True
        if self.end is not None:
            self.end.close()


class Operator(Process):
    """One operator at its own host."""

    def __init__(self, world: World, host: str, routers: list[str], rng: random.Random, *, hasty: bool = True) -> None:
        super().__init__(world, host)
        self._hasty = hasty
        self.up = True
        self.refusals: list[str] = []
        self.settled = 0
        self.partial = 0
        self.longest_s = 0.0  # longest answer time
        self._routers = routers
        self._rng = rng
        self._change = Change(world.scheduler)
        self._asked = 0

    async def settle(self, verb: str, **arguments: Any) -> bool:
        """Send a command, and return when it is settled; False if it was refused."""
        order = self._rng.randbytes(16).hex()
        reply = await self._ask(verb, arguments, order)
        while reply.exit_code == PARTIAL:
            self.partial += 1
            result = reply.result
            assert isinstance(result, dict) and result["waits_for"]
            reply = await self._ask("policy status", {"epoch": result["policy_epoch"]}, "")
        if not reply.ok:
            self.refusals.append(f"{verb} {arguments}: {reply.error}")
        else:
            assert isinstance(reply.result, dict) and reply.result["settled"]
            self.settled += 1
        return reply.ok

    async def _ask(self, verb: str, arguments: dict[str, Any], order: str) -> AdminReply:
        """Send to each router until a leader answers."""
        question = Admin(1, verb, arguments, order)
        assert tier_of(verb) == "router"
        while True:
            for router in self._routers:
                reply = await self._exchange(f"{router}:1", question)
                if reply is not None and reply.exit_code != NOT_READY:
                    return reply
                result = reply.result if reply is not None else None
                question.repeated |= not (isinstance(result, dict) and "leads" in result)
            await sleep(AGAIN_S)

    async def _exchange(self, address: str, question: Admin) -> AdminReply | None:
        self._asked += 1
        identity = NodeIdentity(CLUSTER, f"cli-{self.host}-{self._asked}", TIER_OPERATOR, self._asked, "")
        exchange = _Exchange(self._change, identity, question)
        began = self.world.scheduler.now
        wait_s = HASTY_S if self._hasty and self._rng.random() < 0.2 else WAIT_S
        self.world.network.connect(self.host, address, wait_s, exchange.connected)
        await self._change.until(lambda: exchange.over, wait_s)
        exchange.close()
        if exchange.reply is not None:
            self.longest_s = max(self.longest_s, self.world.scheduler.now - began)
        return exchange.reply
