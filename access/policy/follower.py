"""A node's side of the policy stream: it asks a router for the view, applies its steps, and asks another if it lags.

A view or a step of a lower epoch than the node's own changes nothing: rights that were taken would come back. What is
received is not yet in force: the owner judges its clients by it first, and says so in its heartbeats. Sans-IO.
Rules: docs/adr/0034, rules 2 and 4.
"""

from collections.abc import Callable

from access.policy.pages import PolicyPage, PolicyReader
from access.policy.step import PolicyStep, decode_step
from access.policy.view import PolicyView
from wire.messages.control import Control
from wire.messages.policy import FollowPolicy, PolicyPaged, PolicyStepped

__all__ = ["PolicyFollower"]

LAG_S = 0.5  # behind the leader's epoch for this long: whoever tells us the policy is cut off from the leader
ANSWER_S = 2.0  # for what was asked for, of a router that lives
RETRY_S = 0.25
READS_APART_S = 8.0  # at most between two readings of a whole view, when one contradicts another again and again
READS_CALM_S = 10.0  # without one: the next may begin soon again


class PolicyFollower:
    """The view of the policy, and where its next step comes from.

    Args:
        send: Sends a control message to a router; False when that is not possible now.
        on_step: Called behind each step, with the view moved already.
        on_view: Called with another whole view, which does not say what it takes: all are to be judged anew.
        count: Counts an event by name.
        is_believed: Returns whether a router is one of the cluster; another one is not asked.
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
        self.following = ""  # the router that tells the steps; none while this node is to ask one
        self._send = send
        self._on_step = on_step
        self._on_view = on_view
        self._count = count
        self._is_believed = is_believed
        self._reader = PolicyReader()
        self._routers: list[str] = []
        self._leader = ""
        self._turn = 0
        self._next_try = float("-inf")
        self._answer_by = float("inf")
        self._behind_since = float("inf")
        self._contradicted: int | None = None  # the view is no state of the log, as the leader said at this epoch of it
        self._reads_apart_s = RETRY_S
        self._refused_at = float("-inf")

    @property
    def received(self) -> int:
        """Return the epoch of the view."""
        return self.view.epoch

    # --- links and time

    def router_up(self, node: str, now: float) -> None:
        """A link to a router stands."""
        if node not in self._routers:
            self._routers.append(node)
        if self.following == node:  # over a former connection: the router forgot that
            self._follow_again(now)
        if not self.following:
            self._next_try = now

    def router_down(self, node: str, now: float) -> None:
        """The link to a router is gone: what it sent of a view is worth nothing at another one."""
        if node in self._routers:
            self._routers.remove(node)
        if self._leader == node:
            self._leader = ""
        if self.following == node:
            self._follow_again(now)

    def step(self, now: float) -> None:
        """Read a slice of a view that came, and ask for the policy as far as it is due."""
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
            self._answer_by = now + ANSWER_S

    def next_deadline(self) -> float:
        """Return when ``step`` has something to do."""
        if self._reader.is_whole:
            return 0.0
        return self._answer_by if self.following else self._next_try if self._routers else float("inf")

    # --- messages

    def handle(self, now: float, node: str, message: Control) -> bool:
        """Take a router's message; False if it is not for this part. What a router says unasked changes nothing."""
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
        """Read the whole view: the leader says that this one is no state of its log, which is at this epoch."""
        if self._contradicted is None:
            self._contradicted = epoch
            self._refused(now)

    def wanted(self, now: float, epoch: int, leader: str) -> None:
        """Ask the leader itself where it has had a higher epoch for longer than a step takes."""
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
        if self._is_no_news(page):  # also an answer that says so without a byte
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
            self._answer_by = now + ANSWER_S
            self._send(self.following, FollowPolicy(self.view.epoch, *wanted, digest=self.view.digest))

    def _adopt(self, view: PolicyView | None) -> None:
        if view is None or (view.epoch, view.digest) == (self.view.epoch, self.view.digest):
            return
        if view.epoch > self.view.epoch or self._contradicted is not None:
            self.view = view
            self._behind_since, self._contradicted = float("inf"), None
            self._on_view(view)

    def _is_no_news(self, page: PolicyPaged) -> bool:
        return page.epoch <= self.view.epoch and (self._contradicted is None or not page.size)

    def _stepped(self, now: float, data: bytes) -> None:
        try:
            step = decode_step(data)
            reads = self._reader.is_reading
            if reads and not self._reader.keep(step):
                raise ValueError("too many steps wait for a view")
            if step.epoch == self.view.epoch + 1:
                self.view.apply(step)
            elif step.epoch > self.view.epoch and not reads:
                raise ValueError("a step is missing")
            else:
                return
        except ValueError:
            self._refused(now)
            return
        if not reads:
            self._answer_by = float("inf")
        self._behind_since = float("inf")
        self._on_step(step)

    def _refused(self, now: float) -> None:
        """Count what cannot be taken, and ask again in a while: a router that sends such things must cost little."""
        self._count("policy_refused")
        if now - self._refused_at > READS_CALM_S:
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
        """Return the next router in turn, the leader where one of them stayed behind it; "" if none is believed."""
        routers = [router for router in self._routers if self._is_believed(router)]
        self._turn += 1
        if self._leader in routers and self._turn > 1:
            return self._leader
        return routers[self._turn % len(routers)] if routers else ""
