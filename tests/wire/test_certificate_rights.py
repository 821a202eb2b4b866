"""Rights of a stolen certificate of each tier: the table of docs/security.md, checked against the rules of links."""

from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stratamq.certificate_rights import RECEIVERS, SENDERS, certificate_rights, insert_rights
from tests.golden.examples import example
from wire.links.admission import admit, check_member
from wire.links.allowed import CELLS, ROLE, fault_of, link_tiers, role_fault_of
from wire.links.roster import Roster
from wire.messages.cluster_map import ClusterMap, NodeEntry, NodeState
from wire.messages.hello import (
    TIER_EDGE,
    TIER_GATEWAY,
    TIER_OPERATOR,
    TIER_ROUTER,
    TIER_STORAGE,
    LinkError,
    NodeIdentity,
    PeerKey,
)
from wire.messages.policy import AskCredentials

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
PAIRS = [pair for pair in product(SENDERS, RECEIVERS) if any(certificate_rights(*pair))]
NODES = (TIER_EDGE, TIER_STORAGE)


def the_map() -> ClusterMap:
    """Return a map with two nodes of each tier, one alive and one dead."""
    nodes = {}
    for tier in (TIER_EDGE, TIER_STORAGE, TIER_ROUTER):
        nodes[f"{tier}-1"] = NodeEntry(f"{tier}-1", tier, 5, "h:1", state=NodeState.ACTIVE)
        nodes[f"{tier}-2"] = NodeEntry(f"{tier}-2", tier, 5, "h:1", state=NodeState.DEAD)
    return ClusterMap("c", 1, nodes)


def roster_of(receiver: str) -> Roster:
    if receiver == TIER_ROUTER:
        return Roster(the_map, lambda: {"router-1"}, at_router=True)
    return Roster(the_map)


def sample(kind: type) -> Any:
    """Return a message of a type."""
    return msgspec.convert(example(kind, full=False), kind)


def takes_link(receiver: str, peer: PeerKey) -> bool:
    """Return whether a node accepts the link of a peer that dialled it."""
    mine = NodeIdentity("c", "me", receiver, 1)
    try:
        check_member(mine, peer, None if receiver == TIER_ROUTER else roster_of(receiver), dialled=False)
        admit(mine, peer, None, None, dialled=False)
    except LinkError:
        return False
    return True


@pytest.mark.parametrize(("sender", "receiver"), PAIRS)
@pytest.mark.parametrize("holder", ["never registered", "left", "dead", "a later incarnation"])
def test_certificate_alone_has_the_documented_rights(sender: str, receiver: str, holder: str) -> None:
    """An edge that never registered read password records, the policy and retained messages."""
    peer = {
        "never registered": PeerKey(f"{sender}-9", sender, 5),
        "left": PeerKey(f"{sender}-8", sender, 5),
        "dead": PeerKey(f"{sender}-2", sender, 5),
        "a later incarnation": PeerKey(f"{sender}-1", sender, 99),
    }[holder]
    if sender == TIER_ROUTER and holder == "a later incarnation":
        pytest.skip("a router of the group that has started again speaks as one: the page says so")
    alone, _ = certificate_rights(sender, receiver)
    if not takes_link(receiver, peer):
        assert not alone, (sender, receiver)
        return
    for message in CELLS:
        forged = sample(message)
        passes = not fault_of(peer, receiver, forged) and not role_fault_of(peer, forged, roster_of(receiver))
        assert message.__name__ in alone or not passes, message


@pytest.mark.parametrize(("sender", "receiver"), PAIRS)
def test_member_node_is_not_refused_by_role(sender: str, receiver: str) -> None:
    peer = PeerKey(f"{sender}-1", sender, 5)
    alone, in_role = certificate_rights(sender, receiver)
    for message in CELLS:
        if message.__name__ in (*alone, *in_role):
            assert role_fault_of(peer, sample(message), roster_of(receiver)) == ""
    assert sender in link_tiers(receiver)


def test_unregistered_node_gets_no_link_to_other_nodes() -> None:
    """So its frames have no effect either: PUBLISH, PUSH, REPLICATE and their replies."""
    for sender, receiver in product(NODES, (TIER_STORAGE, TIER_EDGE)):
        assert not any(takes_link(receiver, PeerKey(*who)) for who in _strangers(sender)), (sender, receiver)
    assert takes_link(TIER_STORAGE, PeerKey("edge-1", TIER_EDGE, 5))
    assert takes_link(TIER_EDGE, PeerKey("edge-1", TIER_EDGE, 5))
    assert all(takes_link(TIER_ROUTER, PeerKey(*who)) for sender in NODES for who in _strangers(sender))


def _strangers(tier: str) -> list[tuple[str, str, int]]:
    return [(f"{tier}-9", tier, 5), (f"{tier}-2", tier, 5), (f"{tier}-1", tier, 4), (f"{tier}-1", tier, 99)]


def test_role_refusal_is_counted_with_its_reason() -> None:
    message = sample(AskCredentials)
    assert role_fault_of(PeerKey("edge-9", TIER_EDGE, 5), message, roster_of(TIER_ROUTER)) == ROLE


def test_security_page_has_every_tier_and_the_current_table() -> None:
    text = PAGE.read_text()
    assert insert_rights(PAGE) == text
    section = text[text.index("## What a stolen certificate of each tier can do") :]
    for row in ("edge", "storage node", "router of no Raft group", "router of the group", "operator", "gateway"):
        assert f"\n| {row}" in section, row
    for row in ("federation agent", "gossip key", "client's certificate"):
        assert f"\n| {row}" in section, row
    assert "the certificate of a node that left is a node's until it is revoked" in section
    assert {TIER_OPERATOR, TIER_GATEWAY} < {*SENDERS}
