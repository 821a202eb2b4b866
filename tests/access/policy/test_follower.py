"""A node follows the policy of a real stream: whole, step by step, never backwards, and never at a lagging router."""

from access.limits.bans import Ban
from access.policy.commands import AddBan, DeleteBan
from access.policy.follower import LAG_S, RESPONSE_S, RETRY_S, PolicyFollower
from access.policy.machine import PolicyMachine
from access.policy.step import PolicyStep
from access.policy.view import PolicyView
from router.policy.policy_stream import PolicyStream
from wire.messages.control import Control, decode_control
from wire.messages.policy import FollowPolicy, PolicyPaged, PolicyStepped

PAGE = 100


class Router:
    """A machine and its stream, as in a router."""

    def __init__(self, bans: int = 0) -> None:
        self.machine = PolicyMachine()
        self.stream = PolicyStream(PAGE)
        for number in range(bans):
            self.ban(number)

    def ban(self, number: int) -> list[Control]:
        return self._apply(AddBan(Ban("user", f"u{number}")))

    def lift(self, number: int) -> list[Control]:
        return self._apply(DeleteBan("user", f"u{number}"))

    def _apply(self, command: AddBan | DeleteBan) -> list[Control]:
        outcome = self.machine.apply(command)
        assert outcome.step is not None
        return [decode_control(data) for _, data in self.stream.step(outcome.step)]

    def answers(self, now: float, message: FollowPolicy) -> list[Control]:
        responses = self.stream.follow(now, "e1", 1, message, self.machine)
        return [decode_control(one) if isinstance(one, bytes) else one for one in responses]


class Node:
    """A follower, with its sent and received messages."""

    def __init__(self, **routers: Router) -> None:
        self.routers = routers
        self.sent: list[tuple[str, FollowPolicy]] = []
        self.steps: list[PolicyStep] = []
        self.views: list[PolicyView] = []
        self.counts: list[str] = []
        self.follower = PolicyFollower(self._send, self.steps.append, self.views.append, self.counts.append)
        for name in routers:
            self.follower.router_up(name, 0.0)

    def _send(self, to: str, message: Control) -> bool:
        assert isinstance(message, FollowPolicy)
        self.sent.append((to, message))
        return True

    def run(self, now: float) -> None:
        """Send requests, and process every response."""
        self.follower.step(now)
        while self.sent:
            to, message = self.sent.pop(0)
            for answer in self.routers[to].answers(now, message):
                assert self.follower.handle(now, to, answer)


def test_a_node_reads_a_whole_view_in_pages_and_then_follows_steps() -> None:
    router = Router(bans=300)
    node = Node(r1=router)
    node.run(0.0)
    assert node.follower.received == 300 and len(node.views) == 1 and not node.steps
    for message in router.lift(7):
        assert node.follower.handle(0.1, "r1", message)
    assert node.follower.received == 301 and [step.epoch for step in node.steps] == [301]


def test_a_node_that_is_a_little_behind_gets_the_steps_alone() -> None:
    router = Router(bans=3)
    node = Node(r1=router)
    node.run(0.0)
    node.follower.router_down("r1", 1.0)
    router.ban(10)
    router.lift(2)
    node.follower.router_up("r1", 2.0)
    count = len(node.views)
    node.run(2.0)
    assert node.follower.received == 5 and len(node.views) == count


def test_follower_ignores_lagging_router() -> None:
    """B5: a lower epoch, whole or as a step, is ignored."""
    ahead, lags = Router(bans=5), Router(bans=2)
    node = Node(r1=ahead)
    node.run(0.0)
    before = node.follower.view
    for answer in lags.answers(1.0, FollowPolicy(0)):
        node.follower.handle(1.0, "r1", answer)
    for answer in lags.lift(1):
        node.follower.handle(1.0, "r1", answer)
    assert node.follower.view is before and node.follower.received == 5


def test_a_node_leaves_a_router_that_stays_behind_the_leader() -> None:
    """C7: the leader has a higher epoch for longer than a step takes."""
    node = Node(r1=Router(bans=2), r2=Router(bans=4))
    node.run(0.0)
    first = node.follower.following
    leader = "r2" if first == "r1" else "r1"
    epoch = node.follower.received + 1
    node.follower.wanted(1.0, epoch, leader)
    assert node.follower.following == first
    node.follower.wanted(1.0 + LAG_S * 1.5, epoch, leader)
    node.follower.step(1.0 + LAG_S * 1.5)
    assert node.follower.following == leader and "policy_lagged" in node.counts


def test_follower_invalid_message_is_counted_and_retried_later() -> None:
    for wrong in (PolicyStepped(b"\xc1"), PolicyPaged(9, 0, 3, 0, b"abc")):
        router = Router(bans=2)
        node = Node(r1=router)
        node.run(0.0)
        node.follower.handle(1.0, "r1", wrong)
        assert node.counts == ["policy_refused"] and node.follower.received == 2
        assert node.follower.next_deadline() == 1.0 + RETRY_S
        router.ban(5)
        node.run(1.0 + RETRY_S)
        assert node.follower.received == 3


def test_follower_silent_router_is_replaced_after_timeout() -> None:
    node = Node(r1=Router())
    node.follower.step(0.0)
    assert len(node.sent) == 1 and node.follower.next_deadline() == RESPONSE_S
    node.follower.step(RESPONSE_S)
    assert len(node.sent) == 2


def test_follower_asks_no_unbelieved_router() -> None:
    """A router that left the cluster, still in the seeds, was asked for the policy."""
    asked: list[str] = []
    believed = {"r1"}

    def send(router: str, _: Control) -> bool:
        asked.append(router)
        return True

    def ignore(_: object) -> None:
        """Ignore."""

    follower = PolicyFollower(send, ignore, ignore, ignore, believed.__contains__)
    follower.router_up("r8", 0.0)
    follower.step(0.0)
    assert not asked and follower.next_deadline() > 0.0
    follower.router_up("r1", 1.0)
    for second in range(1, 20):
        follower.step(float(second))
    assert set(asked) == {"r1"}


def test_a_step_on_another_policy_is_not_applied() -> None:
    """Its epoch fits, the digest before it does not: the whole view is read."""
    router, forger = Router(bans=2), Router()
    node = Node(r1=router)
    node.run(0.0)
    forger.answers(0.1, FollowPolicy(0))
    forger.ban(7)
    forger.ban(8)
    for message in forger.ban(9):
        node.follower.handle(0.5, "r1", message)
    assert node.follower.received == 2 and node.counts == ["policy_refused"]


def test_a_view_that_contradicts_the_log_is_replaced_by_one_of_the_same_epoch() -> None:
    """P9: by its epoch it would be accepted as the policy of the log."""
    router, forger = Router(bans=2), Router()
    node = Node(r1=forger)
    forger.ban(7)
    forger.ban(8)
    node.run(0.0)
    assert node.follower.received == 2 and node.follower.view.digest != router.machine.digest
    node.routers["r1"] = router
    node.follower.contradicted(1.0, 2)
    node.run(1.0 + RETRY_S)
    assert node.follower.view.digest == router.machine.digest and len(node.views) == 1


def test_follower_ignores_other_routers() -> None:
    """Another router of the cluster sends a fitting step and a whole view, unrequested."""
    node = Node(r1=Router(1), r2=Router(1))
    node.run(0.0)
    followed = node.follower.following
    other = "r2" if followed == "r1" else "r1"
    view, steps = node.follower.view, len(node.steps)
    (step,) = node.routers[followed].ban(7)
    node.routers[other].ban(8)
    node.routers[other].ban(9)
    forged = node.routers[other].answers(1.0, FollowPolicy(0))
    for message in (step, *forged):
        assert node.follower.handle(1.0, other, message)
    assert node.follower.view is view and view.epoch == 1 and len(node.steps) == steps
    assert node.counts == ["answers_unknown"] * (1 + len(forged))
    assert node.follower.handle(1.0, followed, step) and len(node.steps) == steps + 1
