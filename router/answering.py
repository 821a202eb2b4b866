"""Operators' requests at a router: answered directly, proposed as commands, or passed to the router's process."""

from collections.abc import Callable

from access.operators.commands import Refusal, operator_of, speaker
from router.map.commands import Command
from router.map.proposals import ProposalOrigin
from router.operators.for_nodes import NodeOrderRequest
from router.operators.node_orders import NodeOrders
from router.operators.queries import NOT_READY, PolicyQuery, ProposedChange, RouterView, decide, refused
from router.policy.forgetting import refusal_to_forget
from router.policy.policy_service import Leadership, PolicyService
from router.queries.operators import RouterOperators
from wire.messages.control import Control
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.messages.queries import Query

__all__ = ["RequestHandler"]


class RequestHandler:
    """Requests of one router's operators.

    Args:
        view: Router state that operators may read.
        policy: Answers requests about users, rights and bans.
        orders: Passes orders on to nodes.
        propose: Proposes a command to Raft, with the node that waits for it.
        send_message: Sends a message to a node.
        count: Counts an event by name.
        utc: Seconds since the epoch, by this machine's clock.
    """

    def __init__(
        self,
        view: RouterView,
        policy: PolicyService,
        orders: NodeOrders,
        propose: Callable[[Command, ProposalOrigin], None],
        send_message: Callable[[str, Control], None],
        count: Callable[[str], None],
        utc: Callable[[], float],
    ) -> None:
        self._view = view
        self._policy = policy
        self._orders = orders
        self._propose = propose
        self._send_message = send_message
        self._count = count
        self._for_process: list[tuple[str, Admin]] = []
        self.operators = RouterOperators(view.node, lambda: view.shards, lambda: view.machine.map, send_message, utc)

    def process_request(self, node: str, peer: PeerKey | None, question: Admin | Query) -> None:
        """Process a request that arrived over the link of ``peer``."""
        view = self._view
        if isinstance(question, Query):
            self.operators.take(view.now, node, peer, question)
            return
        try:
            decision = decide(question, operator_of(peer), view)
        except Refusal as refusal:
            self._count("verbs_refused")
            self.operators.journal.note("refused", "verb", detail=f"{question.verb[:64]} of {node}: {refusal}")
            decision = refused(question, view.node, refusal)
        if isinstance(decision, AdminReply):
            self._send_message(node, decision)
        elif isinstance(decision, ProposedChange):
            self._change(node, question, decision.command)
        elif isinstance(decision, NodeOrderRequest):
            nodes, subject = decision.nodes, decision.subject
            by = speaker(question, operator_of(peer))
            assert by is not None  # decide() authorized the request
            self._orders.forward(view.now, node, by, question, nodes, subject, dry_run=decision.dry_run)
        elif isinstance(decision, PolicyQuery):
            leads = Leadership(view.leads, view.node, view.leader)
            self._policy.process_request(view.now, node, question, decision.arguments, leads)
        else:
            self._for_process.append((node, question))

    def _change(self, node: str, question: Admin, command: Command) -> None:
        view = self._view
        too_early = refusal_to_forget(view.now, command, view.machine.map, self._policy.waits)
        if too_early:
            self._send_message(node, AdminReply(question.request, False, None, too_early, NOT_READY))
        else:
            self._propose(command, ProposalOrigin(node, question.request, question))

    def take_for_process(self) -> list[tuple[str, Admin]]:
        """Return (node, request) pairs that the router's process answers."""
        questions, self._for_process = self._for_process, []
        return questions
