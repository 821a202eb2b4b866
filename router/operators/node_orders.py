"""Operators' orders to single nodes: forwarded over the nodes' links, their answers collected in one reply.

| an order | state | transition |
|---|---|---|
| tried (TRIED_FIRST) | nodes without an answer | one refused: reply; all accepted or ``TRY_S`` passed: forward |
| forwarded | nodes without an answer, answers so far | all answered, or ``ORDER_S`` passed: reply |

Any router forwards orders, since they change neither map nor policy. The reply names nodes without an answer: they may
have executed the order. If one node refuses a tried order, no node has started it. Sans-IO.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from access.operators.commands import Operator
from access.operators.orders import refusal_of
from wire.messages.control import Control
from wire.messages.operators import Admin, AdminReply
from wire.messages.orders import NodeOrdered, OrderNode

__all__ = ["NodeOrders", "Orders"]

FAILED = 1
PARTIAL = 3
NOT_READY = 4
ORDER_S = 8.0  # below the command line's timeout
TRY_S = 2.0
TRIED_FIRST = ("trace start",)  # commands that one node may refuse for lack of capacity
OPEN_MAX = 64  # orders with outstanding answers
NAMED_MAX = 5  # nodes in a line of text
ACTOR_MAX = 256  # characters of an operator's name in an order

Orders = OrderNode | NodeOrdered


@dataclass(slots=True)
class _Open:
    requester: str
    question: Admin
    until: float
    try_until: float
    nodes: Sequence[str]
    order: OrderNode
    awaited: set[str]
    answers: dict[str, NodeOrdered] = field(default_factory=dict)
    tries: bool = False

    def due(self) -> float:
        """Return the timeout of the current state."""
        return self.try_until if self.tries else self.until


class NodeOrders:
    """Forwarded orders of one router, and orders to itself.

    Args:
        send_message: Sends a message to a node.
    """

    def __init__(self, send_message: Callable[[str, Control], None]) -> None:
        self._send_message = send_message
        self._number = 0
        self._open: dict[int, _Open] = {}
        self._taken: list[tuple[str, OrderNode, str]] = []

    def forward(
        self,
        now: float,
        requester: str,
        by: Operator,
        question: Admin,
        nodes: Sequence[str],
        subject: str,
        *,
        dry_run: bool,
    ) -> None:
        """Send an order to nodes for an operator, and reply when they have answered."""
        if not nodes:
            self._send_message(
                requester, AdminReply(question.request, False, None, "no such node is alive: see `node list`", FAILED)
            )
            return
        if len(self._open) >= OPEN_MAX:
            text = f"{OPEN_MAX} orders wait for nodes: ask again"
            self._send_message(requester, AdminReply(question.request, False, None, text, NOT_READY))
            return
        order = OrderNode(0, question.verb, subject, dry_run, by.name[:ACTOR_MAX], by.role.name.lower())
        opened = _Open(requester, question, now + ORDER_S, now + TRY_S, nodes, order, set())
        self._send(opened, tries=question.verb in TRIED_FIRST and not dry_run)

    def _send(self, opened: _Open, *, tries: bool) -> None:
        """Send the order, or a dry run of it, to all nodes under a new number."""
        self._number += 1
        opened.tries, opened.awaited, opened.answers = tries, set(opened.nodes), {}
        self._open[self._number] = opened
        for node in opened.nodes:
            order = structs.replace(opened.order, request=self._number)
            if tries:
                order.dry_run = True
            self._send_message(node, order)

    def take(self, node: str, message: Orders) -> None:
        """Process an order to this router, or a node's answer to a forwarded one."""
        if isinstance(message, OrderNode):
            refusal = refusal_of(message)
            if refusal:
                self._send_message(node, NodeOrdered(message.request, error=refusal))
            self._taken.append((node, message, refusal))
            return
        order = self._open.get(message.request)
        if order is None or node not in order.awaited:
            return  # late, or from a node without this order
        order.awaited.discard(node)
        order.answers[node] = message
        if not order.awaited:
            self._answered(message.request)

    def take_for_process(self) -> list[tuple[str, OrderNode, str]]:
        """Remove and return this iteration's orders to this router: (forwarding router, order, refusal or "").

        Each gets an audit record. A refused one is answered already and must not be executed.
        """
        taken, self._taken = self._taken, []
        return taken

    def step(self, now: float) -> None:
        """Reply to orders that timed out, and forward orders whose trial ended."""
        for number in [number for number, order in self._open.items() if now >= order.due()]:
            self._answered(number)

    def next_deadline(self) -> float:
        """Return when ``step`` has to be called."""
        return min((order.due() for order in self._open.values()), default=float("inf"))

    def _answered(self, number: int) -> None:
        """Forward a trial that no node refused, otherwise reply."""
        order = self._open.pop(number)
        if order.tries and not any(answer.error for answer in order.answers.values()):
            self._send(order, tries=False)
        else:
            self._reply(order)

    def _reply(self, order: _Open) -> None:
        silent = sorted(order.awaited)
        rows = [
            {
                "node": node,
                "done": not answer.error and not order.tries,
                "count": answer.count,
                "lines": answer.lines,
                "error": answer.error,
            }
            for node, answer in sorted(order.answers.items())
        ]
        reply = AdminReply(order.question.request, True, {"nodes": rows, "waits_for": silent})
        wrong: dict[str, list[str]] = {}  # error -> nodes
        for node, answer in sorted(order.answers.items()):
            if answer.error:
                wrong.setdefault(answer.error, []).append(node)
        if wrong:
            lines = [f"{_join_names(nodes)}: {error}" for error, nodes in wrong.items()]
            reply.ok, reply.exit_code, reply.error = False, FAILED, "\n".join(lines[:NAMED_MAX])
        elif silent:
            reply.ok, reply.exit_code = False, PARTIAL
            reply.error = f"no answer within {ORDER_S:g} s from {_join_names(silent)}: done there or not"
        self._send_message(order.requester, reply)


def _join_names(nodes: Sequence[str]) -> str:
    """Return node names for a line of text, shortened."""
    more = len(nodes) - NAMED_MAX
    return ", ".join(nodes[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
