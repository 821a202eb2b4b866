"""An operator's order is carried out once, however often and at whichever router it is given."""

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
    """Two routers, one log, and what becomes of proposals."""

    def __init__(self) -> None:
        self.cores = {name: RouterCore(NodeEntry(name, "router", 1, "h:1"), RouterLimits()) for name in ("r1", "r2")}
        self.log: list[bytes] = []
        self.commit(*(encode_command(command) for command in (Bootstrap("c", 4, 4, 1, 1, 2.0), RegisterNode(ROUTER))))
        self.replies: list[AdminReply] = []
        self.lead("r1")

    def lead(self, leader: str) -> None:
        for name, core in self.cores.items():
            core.handle(0.0, [RoleChanged(name == leader, leader)])

    def ask(self, router: str, verb: str, order: str, **arguments: object) -> list[Command]:
        """Give an order; return what the router proposes."""
        message = encode_control(Admin(1, verb, dict(arguments), order))
        ready = self.cores[router].handle(0.0, [FrameArrived(OPERATOR, FrameKind.CONTROL, message)])
        self.take(ready.sends)
        return [proposal.command for proposal in ready.proposals if isinstance(proposal.command, Order)]

    def commit(self, *entries: bytes) -> None:
        """Commit entries; each router applies them."""
        for data in entries:
            self.log.append(data)
            for core in self.cores.values():
                self.take(core.handle(0.0, [Applied(data)]).sends)

    def take(self, sends: list[tuple[str, int, bytes]]) -> None:
        for node, _, data in sends:
            message = decode_control(data)
            if node == OPERATOR.node and isinstance(message, AdminReply):
                self.replies.append(message)


def test_a_repeat_at_the_next_leader_gets_the_first_outcome() -> None:
    """The first one committed it and was lost before it answered."""
    group = Group()
    (command,) = group.ask("r1", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.commit(encode_command(command))
    first = group.replies.pop()
    epoch = group.cores["r2"].machine.map.epoch
    group.lead("r2")
    assert group.ask("r2", "ring delegate", "one", prefix="plant", depth=2, pin="") == []
    assert group.replies == [first] and first.ok
    assert group.cores["r2"].machine.map.epoch == epoch


def test_two_proposals_of_one_order_are_one() -> None:
    """The next leader proposed it before it knew of the first: the log decides."""
    group = Group()
    one = group.ask("r1", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.lead("r2")
    two = group.ask("r2", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.commit(encode_command(one[0]))
    epoch = group.cores["r1"].machine.map.epoch
    group.commit(encode_command(two[0]))
    assert len({core.machine.map.epoch for core in group.cores.values()} | {epoch}) == 1
    assert [reply.result for reply in group.replies] == [{"map_epoch": epoch, "rebalance": None}] * len(group.replies)


def test_an_order_that_was_done_is_not_refused_for_being_done() -> None:
    """A second `undelegate` would find nothing: the repeat of the first one says that it went well."""
    group = Group()
    for verb, order, arguments in (
        ("ring delegate", "one", {"prefix": "plant", "depth": 2}),
        ("ring undelegate", "two", {"prefix": "plant"}),
    ):
        group.commit(*map(encode_command, group.ask("r1", verb, order, **arguments)))
    group.lead("r2")
    group.replies.clear()
    assert group.ask("r2", "ring undelegate", "two", prefix="plant") == []
    assert group.ask("r2", "ring undelegate", "three", prefix="plant") == []
    assert [reply.ok for reply in group.replies] == [True, False]
    assert "no delegation" in group.replies[1].error


def test_what_was_not_committed_is_carried_out_when_it_comes_again() -> None:
    """Its proposer lost the lead before a majority had it."""
    group = Group()
    group.ask("r1", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.take(group.cores["r1"].handle(0.0, [ProposalFailed(2, "r2")]).sends)
    group.lead("r2")
    commands = group.ask("r2", "ring delegate", "one", prefix="plant", depth=2, pin="")
    group.commit(*map(encode_command, commands))
    assert group.replies[-1].ok and group.cores["r2"].machine.map.delegations


def test_orders_are_bounded_and_part_of_the_snapshot() -> None:
    """The oldest is forgotten, by every router alike; one that begins with a snapshot knows the same."""
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
    """Only the leader knows leases; the command line goes on to it. The leader's own answer is the nodes alone."""
    group = Group()
    for router in group.cores:
        group.ask(router, "node list", "")
    led, followed = (reply.result for reply in group.replies)
    assert isinstance(led, dict) and isinstance(followed, dict)
    assert list(led) == ["nodes"] and led["nodes"][0]["lease_s"] is not None
    assert followed["nodes"][0]["lease_s"] is None and leader_address(followed) == "h:1"


@pytest.mark.parametrize("identifier", ["x" * 65, "é" * 40])
def test_an_identifier_out_of_its_bounds_is_refused_and_not_kept(identifier: str) -> None:
    """A hostile operator's memory is not ours."""
    machine = MapMachine()
    machine.apply(Bootstrap("c", 4, 4, 1, 1, 2.0))
    assert "too long" in machine.apply(Order(identifier, Delegate("plant", 2))).refusal
    assert not machine.orders.known and not machine.map.delegations
