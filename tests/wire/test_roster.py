"""Accepted roles of routers and registered nodes, by the map and by the Raft group."""

import logging

import pytest

from wire.links.allowed import ROLE, is_early_stream, role_fault_of
from wire.links.refusals import EARLY_S, Refusals
from wire.links.roster import Roster, is_router
from wire.messages.cluster_map import ClusterMap, MapDelta, NodeEntry, NodeState
from wire.messages.control import Control
from wire.messages.hello import PeerKey
from wire.messages.nodes import HeartbeatReply, MapStep, Moved, RegisterRequest
from wire.messages.orders import OrderNode

R1, R9 = PeerKey("r1", "router", 5), PeerKey("r9", "router", 5)


def a_map(**states: str) -> ClusterMap:
    """Return a map of nodes at incarnation 5; the first letter is the tier."""
    tiers = {"r": "router", "s": "storage", "e": "edge"}
    entries = {name: NodeEntry(name, tiers[name[0]], 5, "h:1", state=state) for name, state in states.items()}
    return ClusterMap("c", 1, entries)


@pytest.mark.parametrize(
    ("nodes", "peer", "believed"),
    [
        ({}, R9, True),  # before the first map: this node dialled it
        ({"e1": NodeState.ACTIVE}, R9, True),  # the first routers register by this map
        ({"r1": NodeState.ACTIVE}, R1, True),
        ({"r1": NodeState.DRAINING}, R1, True),
        ({"r1": NodeState.ACTIVE}, R9, False),  # of a spare, a removed or a stolen one
        ({"r1": NodeState.ACTIVE, "r9": NodeState.DEAD}, R9, False),
        ({"r1": NodeState.ACTIVE, "r9": NodeState.DEAD}, R9._replace(incarnation=6), False),
        ({"r1": NodeState.ACTIVE}, R1._replace(incarnation=6), True),  # restarted: its own steps update the map
        ({"r1": NodeState.ACTIVE}, R1._replace(incarnation=4), False),
        ({"r1": NodeState.DEAD}, R1._replace(incarnation=6), True),  # all stopped in order, and restart
        ({"r1": NodeState.ACTIVE}, PeerKey("r1", "storage", 5), False),
        ({}, PeerKey("s1", "storage", 5), False),
    ],
)
def test_roster_accepts_a_router_that_is_alive_in_the_map(nodes: dict[str, str], peer: PeerKey, believed: bool) -> None:
    assert is_router(a_map(**nodes), peer) is believed
    assert Roster(lambda: a_map(**nodes)).is_router(peer) is believed


@pytest.mark.parametrize(("group", "believed"), [(("r1", "r2"), False), (("r1", "r9"), True), ((), False)])
def test_roster_of_a_router_accepts_members_of_its_raft_group(group: tuple[str, ...], believed: bool) -> None:
    """The log has the members, the map only registered routers; a joining router accepts none yet."""
    roster = Roster(lambda: a_map(r1=NodeState.ACTIVE, r9=NodeState.ACTIVE), lambda: group)
    assert roster.is_router(R9) is believed


@pytest.mark.parametrize(
    ("nodes", "said", "level"),
    [
        ({"r1": NodeState.ACTIVE}, MapStep(MapDelta(2)), logging.DEBUG),  # r9 was followed, and registers next
        ({"r1": NodeState.ACTIVE, "r9": NodeState.DEAD}, MapStep(MapDelta(2)), logging.WARNING),
        ({"r1": NodeState.ACTIVE}, Moved(0, "shard", 0, 0), logging.WARNING),
    ],
)
def test_roster_unregistered_router_is_refused_without_a_warning(
    nodes: dict[str, str], said: Control, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start of three routers logged `refused MapStep of router` without a fault."""
    caplog.set_level(logging.DEBUG)
    roster, counts = Roster(lambda: a_map(**nodes)), list[str]()
    assert role_fault_of(R9, said, roster) == ROLE
    Refusals(counts.append).refuse(1.0, R9, "x", ROLE, early=is_early_stream(R9, said, roster))
    assert (counts, [record.levelno for record in caplog.records]) == (["refused_role"], [level])


def test_refusals_warn_of_an_unregistered_router_after_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """An unregistered router that keeps sending maps may hold a stolen certificate."""
    caplog.set_level(logging.DEBUG)
    counts: list[str] = []
    refusals = Refusals(counts.append)
    for now in (1.0, 1.0 + EARLY_S - 0.1, 1.0 + EARLY_S):
        refusals.refuse(now, R9, "MapStep", ROLE, early=True)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.DEBUG, logging.WARNING]
    assert counts == ["refused_role"] * 3


@pytest.mark.parametrize(
    ("peer", "registered"),
    [
        (PeerKey("e1", "edge", 5), True),
        (PeerKey("e1", "edge", 6), False),
        (PeerKey("e1", "storage", 5), False),
        (PeerKey("e2", "edge", 5), False),  # dead
        (PeerKey("e9", "edge", 5), False),
    ],
)
def test_roster_registered_node_is_the_live_incarnation(peer: PeerKey, registered: bool) -> None:
    assert Roster(lambda: a_map(e1=NodeState.ACTIVE, e2=NodeState.DEAD)).is_registered(peer) is registered


def test_roster_every_router_message_requires_the_router_role() -> None:
    """Registration answers too: another router of the group would have registered it."""
    roster = Roster(lambda: a_map(r1=NodeState.ACTIVE, s1=NodeState.ACTIVE), at_router=True)
    entry = NodeEntry("r9", "router", 5, "h:1")
    said: list[Control] = [
        HeartbeatReply(1, 0.0, 1.0, 0, "r9"), OrderNode(1, "reload"), RegisterRequest(1, entry), Moved(0, "shard", 0,
        1),
    ]  # fmt: skip
    assert [role_fault_of(R9, message, roster) for message in said] == [ROLE] * 4
    assert [role_fault_of(R1, message, roster) for message in said] == [""] * 4
    assert role_fault_of(PeerKey("e9", "edge", 5), RegisterRequest(1, entry), roster) == ""
    moved = Moved(1, "partition", 0, 1)
    assert role_fault_of(PeerKey("s9", "storage", 5), moved, roster) == ROLE
    assert role_fault_of(PeerKey("s1", "storage", 5), moved, roster) == ""
