"""Orders that routers forward to this node and that its process executes: reloads, one at a time."""

from collections.abc import Awaitable, Callable

from wire.messages.orders import NodeOrdered, OrderNode
from wire.node.reload import Reloaded

__all__ = ["Ordered"]

UNDER_WAY_MAX = 8  # running orders; more are refused
ERROR_CHARS_MAX = 2_000


class Ordered:
    """Orders to one node.

    Args:
        reload: Reads all settings and files again; True: only reports the difference.
        answer: Sends a reply to a router.
        spawn: Starts a task of the service.
    """

    def __init__(
        self,
        reload: Callable[[bool], Awaitable[Reloaded]],
        answer: Callable[[str, NodeOrdered], None],
        spawn: Callable[[Callable[[str, OrderNode], Awaitable[None]], str, OrderNode], None],
    ) -> None:
        self._reload = reload
        self._answer = answer
        self._spawn = spawn
        self._under_way = 0

    def take(self, router: str, order: OrderNode) -> None:
        """Execute an order, or refuse it; the router gets a reply in either case."""
        if order.verb != "reload":
            self._answer(router, NodeOrdered(order.request, error="this node carries out no such order"))
        elif self._under_way >= UNDER_WAY_MAX:
            self._answer(router, NodeOrdered(order.request, error=f"{UNDER_WAY_MAX} orders are under way: ask again"))
        else:
            self._under_way += 1
            self._spawn(self._carry_out, router, order)

    async def _carry_out(self, router: str, order: OrderNode) -> None:
        try:
            outcome = await self._reload(order.dry_run)
        finally:
            self._under_way -= 1
        error = "" if outcome.ok else "; ".join(outcome.lines)[:ERROR_CHARS_MAX]
        self._answer(router, NodeOrdered(order.request, lines=list(outcome.lines), error=error))
