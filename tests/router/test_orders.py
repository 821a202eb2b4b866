"""An operator's order is applied once, for any number of repeats at any router."""

import pytest

from router.core import RouterCore
from router.events import Applied, ProposalFailed, RoleChanged
from router.map.commands import Bootstrap, Command, Delegate, ForgetNode, Order, RegisterNode, encode_command
from router.map.machine import MapMachine
from router.map.orders import ORDERS_MAX
from router.settings import RouterLimits
from stratamq.cli.node_requests import leader_address
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.node.events import FrameArrived

OPERATOR = PeerKey("admin:ann/cli-1", "operator", 1)
ROUTER = NodeEntry("r1", "router", 1, "h:1")


class Group:
    """Two routers with one log, and the results of proposals."""

    def __init__(self) -> None:
        self.cores = {name: RouterCore(NodeEntry(name, "router", 1, "h:1"), RouterLimits()) for name in ("r1", "r2")}
        self.log: list[bytes] = []
        self.commit(*(encode_command(command) for command in (Bootstrap("c", 4, 4, 1, 1, 2.0), RegisterNode(ROUTER))))
        self.replies: list[AdminReply] = []
        self.lead("r1")

    def lead(self, leader: str) -> None:
        for name, core in self.cores.items():
            core.handle(0.0, [RoleChanged(name == leader, leader)])

    def send_order(self, router: str, verb: str, order: str, **arguments: object) -> list[Command]:
        """Send an order; return the router's proposals."""
        message = encode_control(Admin(1, verb, dict(arguments), order))
        ready = self.cores[router].handle(0.0, [FrameArrived(OPERATOR, FrameKind.CONTROL, message)])
        self.take(ready.sends)
        return [proposal.command for proposal in ready.proposals if isinstance(proposal.command, Order)]

    def commit(self, *entries: bytes) -> None:
        """Commit entries, which each router applies."""
        for data in entries:
            self.log.append(data)
            for core in self.cores.values():
                self.take(core.handle(0.0, [Applied(data)]).sends)

    def take(self, sends: list[tuple[str, int, bytes]]) -> None:
        for node, _, data in sends:
            message = decode_control(data)
            if node == OPERATOR.node and isinstance(message, AdminReply):
                self.replies.append(message)


def test_repeat_at_the_next_leader_gets_the_first_result() -> None:
    """The first leader committed the order and failed before it answered."""
    group = Group()
    (command,) = group.send_order("r1", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.commit(encode_command(command))
    first = group.replies.pop()
    epoch = group.cores["r2"].machine.map.epoch
    group.lead("r2")
    assert group.send_order("r2", "ring delegate", "one", prefix="plant", depth=2, pin="") == []
    assert group.replies == [first] and first.ok
    assert group.cores["r2"].machine.map.epoch == epoch


def test_two_proposals_of_one_order_apply_once() -> None:
    """The next leader proposed it before it knew the first: the log decides."""
    group = Group()
    one = group.send_order("r1", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.lead("r2")
    two = group.send_order("r2", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.commit(encode_command(one[0]))
    epoch = group.cores["r1"].machine.map.epoch
    group.commit(encode_command(two[0]))
    assert len({core.machine.map.epoch for core in group.cores.values()} | {epoch}) == 1
    assert [reply.result for reply in group.replies] == [{"map_epoch": epoch, "rebalance": None}] * len(group.replies)


def test_repeat_of_an_applied_order_is_not_refused() -> None:
    """A second `undelegate` would find no delegation: the repeat returns the first success."""
    group = Group()
    for verb, order, arguments in (
        ("ring delegate", "one", {"prefix": "plant", "depth": 2}),
        ("ring undelegate", "two", {"prefix": "plant"}),
    ):
        group.commit(*map(encode_command, group.send_order("r1", verb, order, **arguments)))
    group.lead("r2")
    group.replies.clear()
    assert group.send_order("r2", "ring undelegate", "two", prefix="plant") == []
    assert group.send_order("r2", "ring undelegate", "three", prefix="plant") == []
    assert [reply.ok for reply in group.replies] == [True, False]
    assert "no delegation" in group.replies[1].error


def test_uncommitted_order_is_applied_when_repeated() -> None:
    """Its proposer lost leadership before the commit."""
    group = Group()
    group.send_order("r1", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.take(group.cores["r1"].handle(0.0, [ProposalFailed(2, "r2")]).sends)
    group.lead("r2")
    commands = group.send_order("r2", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.commit(*map(encode_command, commands))
    assert group.replies[-1].ok and group.cores["r2"].machine.map.delegations


def test_orders_are_bounded_and_part_of_the_snapshot() -> None:
    """Every router drops the same oldest one; so does one that starts from a snapshot."""
    machine = MapMachine()
    machine.apply(Bootstrap("c", 4, 4, 1, 1, 2.0))
    for number in range(ORDERS_MAX + 3):
        machine.apply(Order(f"order-{number}", ForgetNode("nobody")))
    assert len(machine.orders.known) == ORDERS_MAX
    other = MapMachine()
    other.restore(machine.snapshot())
    assert list(other.orders.known) == list(machine.orders.known)
    repeated = Order("order-5", Delegate("plant", 2))
    assert other.apply(repeated) == machine.apply(repeated)
    assert "unknown node" in machine.apply(repeated).refusal and not machine.map.delegations


def test_a_follower_names_the_leader_in_node_list() -> None:
    """Only the leader knows leases; the command line queries it next. The leader's own answer has the nodes only."""
    group = Group()
    for router in group.cores:
        group.send_order(router, "node list", "")
    led, followed = (reply.result for reply in group.replies)
    assert isinstance(led, dict) and isinstance(followed, dict)
    assert list(led) == ["nodes"] and led["nodes"][0]["lease_s"] is not None
    assert followed["nodes"][0]["lease_s"] is None and leader_address(followed) == "h:1"


@pytest.mark.parametrize("identifier", ["x" * 65, "é" * 40])
def test_out_of_range_identifier_is_refused_and_not_stored(identifier: str) -> None:
    """Otherwise a hostile operator could fill the routers' memory."""
    machine = MapMachine()
    machine.apply(Bootstrap("c", 4, 4, 1, 1, 2.0))
    assert "too long" in machine.apply(Order(identifier, Delegate("plant", 2))).refusal
    assert not machine.orders.known and not machine.map.delegations
