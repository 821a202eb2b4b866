"""A node's side of the policy stream: requests the view, applies its steps, and changes the router if it lags.

A view or a step below the node's epoch is ignored, because it would restore removed rights. Received changes are not
yet in force: the owner first re-authorizes its clients, then acknowledges them in heartbeats. Sans-IO. Rules:
docs/adr/0034, rules 2 and 4.
"""

from collections.abc import Callable

from access.policy.pages import PolicyPage, PolicyReader
from access.policy.step import PolicyStep, decode_step
from access.policy.view import PolicyView
from wire.messages.control import Control
from wire.messages.policy import FollowPolicy, PolicyPaged, PolicyStepped

__all__ = ["PolicyFollower"]

LAG_S = 0.5  # after this time behind the leader's epoch, the followed router is considered cut off from the leader
RESPONSE_S = 2.0  # for a response of a live router
RETRY_S = 0.25
READS_APART_S = 8.0  # maximum delay between reads of a whole view, while views contradict each other
CALM_S = 10.0  # without a contradiction: resets the delay


class PolicyFollower:
    """The view of the policy, and the router that sends its steps.

    Args:
        send: Sends a control message to a router; False if that is not possible now.
        on_step: Called after each step, with the updated view.
        on_view: Called with a new whole view, which does not list removed rights: all clients must be re-authorized.
        count: Counts an event by name.
        is_believed: Returns whether a router belongs to the cluster; others are not asked.
    """

    def __init__(
        self,
        send: Callable[[str, Control], bool],
        on_step: Callable[[PolicyStep], None],
        on_view: Callable[[PolicyView], None],
        count: Callable[[str], None],
        is_believed: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.view = PolicyView()
        self.following = ""  # router that sends the steps; "" while none is chosen
        self._send = send
        self._on_step = on_step
        self._on_view = on_view
        self._count = count
        self._is_believed = is_believed
        self._reader = PolicyReader()
        self._routers: list[str] = []
        self._leader = ""
        self._next_index = 0
        self._next_try = float("-inf")
        self._answer_by = float("inf")
        self._behind_since = float("inf")
        # leader's epoch at which it reported that the view does not match its log
        self._contradicted: int | None = None
        self._reads_apart_s = RETRY_S
        self._refused_at = float("-inf")

    @property
    def received(self) -> int:
        """The epoch of the view."""
        return self.view.epoch

    # --- links and time

    def router_up(self, node: str, now: float) -> None:
        """A link to a router is connected."""
        if node not in self._routers:
            self._routers.append(node)
        if self.following == node:  # over a former connection: the router lost that state
            self._follow_again(now)
        if not self.following:
            self._next_try = now

    def router_down(self, node: str, now: float) -> None:
        """The link to a router is closed: its pages do not continue at another one."""
        if node in self._routers:
            self._routers.remove(node)
        if self._leader == node:
            self._leader = ""
        if self.following == node:
            self._follow_again(now)

    def step(self, now: float) -> None:
        """Read a slice of a received view, and send a due request."""
        if self._reader.is_whole:
            try:
                self._adopt(self._reader.advance())
            except ValueError:
                self._refused(now)
        if now >= self._answer_by:
            self._follow_again(now)
        if self.following or now < self._next_try or not self._routers:
            return
        self._next_try = now + RETRY_S
        router = self._router()
        if router and self._send(router, FollowPolicy(self.view.epoch, digest=self.view.digest)):
            self.following = router
            self._answer_by = now + RESPONSE_S

    def next_deadline(self) -> float:
        """Return the time of the next ``step``."""
        if self._reader.is_whole:
            return 0.0
        return self._answer_by if self.following else self._next_try if self._routers else float("inf")

    # --- messages

    def handle(self, now: float, node: str, message: Control) -> bool:
        """Process a router's message; False if it is of another kind. Unrequested messages are ignored."""
        if not isinstance(message, PolicyPaged | PolicyStepped):
            return False
        if node != self.following:
            self._count("answers_unknown")
        elif isinstance(message, PolicyPaged):
            self._page(now, message)
        else:
            self._stepped(now, message.step)
        return True

    def contradicted(self, now: float, epoch: int) -> None:
        """Read the whole view again: the leader reports at this epoch that the view does not match its log."""
        if self._contradicted is None:
            self._contradicted = epoch
            self._refused(now)

    def wanted(self, now: float, epoch: int, leader: str) -> None:
        """Switch to the leader if it has had a higher epoch for longer than a step takes."""
        self._leader = leader
        if epoch <= self.view.epoch:
            self._behind_since = float("inf")
        elif self._behind_since == float("inf"):
            self._behind_since = now
        elif now - self._behind_since > LAG_S and self.following != leader:
            self._count("policy_lagged")
            self._follow_again(now)

    def _page(self, now: float, page: PolicyPaged) -> None:
        self._answer_by = float("inf")
        if self._has_no_change(page):  # also a response without data that says so
            self._reader.forget()
            return
        if self._contradicted is not None and page.epoch < self._contradicted:
            self._refused(now)
            return
        part = PolicyPage(page.epoch, page.offset, page.size, page.checksum, page.data)
        try:
            view = self._reader.take(part, self.view.epoch if self._contradicted is None else self._contradicted)
        except ValueError:
            self._refused(now)
            return
        if view is not None:
            self._adopt(view)
        elif (wanted := self._reader.wanted) is not None and self.following:
            self._answer_by = now + RESPONSE_S
            self._send(self.following, FollowPolicy(self.view.epoch, *wanted, digest=self.view.digest))

    def _adopt(self, view: PolicyView | None) -> None:
        if view is None or (view.epoch, view.digest) == (self.view.epoch, self.view.digest):
            return
        if view.epoch > self.view.epoch or self._contradicted is not None:
            self.view = view
            self._behind_since, self._contradicted = float("inf"), None
            self._on_view(view)

    def _has_no_change(self, page: PolicyPaged) -> bool:
        return page.epoch <= self.view.epoch and (self._contradicted is None or not page.size)

    def _stepped(self, now: float, data: bytes) -> None:
        try:
            step = decode_step(data)
            is_reading = self._reader.is_reading
            if is_reading and not self._reader.keep(step):
                raise ValueError("too many steps wait for a view")
            if step.epoch == self.view.epoch + 1:
                self.view.apply(step)
            elif step.epoch > self.view.epoch and not is_reading:
                raise ValueError("a step is missing")
            else:
                return
        except ValueError:
            self._refused(now)
            return
        if not is_reading:
            self._answer_by = float("inf")
        self._behind_since = float("inf")
        self._on_step(step)

    def _refused(self, now: float) -> None:
        """Count an invalid message and ask again later: such a router must cause little work."""
        self._count("policy_refused")
        if now - self._refused_at > CALM_S:
            self._reads_apart_s = RETRY_S
        self._refused_at = now
        self._follow_again(now + self._reads_apart_s)
        self._reads_apart_s = min(READS_APART_S, 2 * self._reads_apart_s)

    def _follow_again(self, at: float) -> None:
        self._reader.forget()
        self.following = ""
        self._answer_by = self._behind_since = float("inf")
        self._next_try = at

    def _router(self) -> str:
        """Return the next router in rotation, or the leader if a router lagged; "" if none is believed."""
        routers = [router for router in self._routers if self._is_believed(router)]
        self._next_index += 1
        if self._leader in routers and self._next_index > 1:
            return self._leader
        return routers[self._next_index % len(routers)] if routers else ""
