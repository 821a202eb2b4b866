"""Sender rules, each removed from a whole cluster, and the hostile seed that detects it.

The hostile nodes are those of ``tests/simulation/unregistered_process.py``; their checker has its own list of
messages that an unregistered node may send.
"""

from typing import Any

import pytest

from edge.cluster import peer_table
from tests.mutants.seeded import Patch, SeededBug
from tests.simulation.simulation import Options, run_seed
from wire.links import allowed, link_table, roster
from wire.links.allowed import CELLS, Sender, SenderRule
from wire.links.roster import Roster
from wire.messages.hello import TIER_EDGE, TIER_ROUTER, TIER_STORAGE
from wire.node import lease_holder

__all__ = ["HOSTILE_SEEDS", "MEMBERS_MESSAGES", "SEED", "without_role"]

SEED = 3_001
BUDGET_S = 20.0

# Messages to routers that only registered edges or storage nodes may send.
MEMBERS_MESSAGES = tuple(
    message
    for message, cell in CELLS.items()
    if cell.sender is Sender.MEMBER and cell.tiers & {(TIER_EDGE, TIER_ROUTER), (TIER_STORAGE, TIER_ROUTER)}
)


def without_role(message: type) -> Patch:
    """Return a patch that lets every holder of a certificate send a message."""
    return lambda patch: patch.setitem(CELLS, message, CELLS[message]._replace(sender=Sender.CERTIFIED))


def _everybody_is_a_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "is_member", lambda *_: True)


def _dead_are_registered(patch: pytest.MonkeyPatch) -> None:
    def is_registered(self: Any, peer: Any) -> bool:
        entry = vars(self)["_map"]().nodes.get(peer.node)
        return entry is not None and entry.incarnation == peer.incarnation

    patch.setattr(Roster, "is_registered", is_registered)


def _every_router_is_of_the_map(patch: pytest.MonkeyPatch) -> None:
    for module in (roster, lease_holder):
        patch.setattr(module, "is_router", lambda _, peer: peer.tier == TIER_ROUTER)


def _every_router_is_of_the_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "is_router", lambda _, peer: peer.tier == TIER_ROUTER)


def _links_of_everybody(patch: pytest.MonkeyPatch) -> None:
    for module in (link_table, peer_table):
        patch.setattr(module, "check_member", lambda *_, **__: None)


def _introduced_as_another(patch: pytest.MonkeyPatch) -> None:
    for checks in vars(allowed)["_CHECKS"].values():
        for message in [each for each in checks if CELLS[each].rule is SenderRule.OWN_INCARNATION]:
            patch.setitem(checks, message, None)


def _hostile_seed() -> None:
    result = run_seed(SEED, Options(seconds=4.0, hostile=True))
    assert not result.failures, result.failures[0]


def _bug(name: str, where: str, patch: Patch) -> SeededBug:
    return SeededBug(name, where, patch, _hostile_seed, f"hostile seed {SEED}", BUDGET_S)


HOSTILE_SEEDS: tuple[SeededBug, ...] = (
    _bug("an unregistered node is a member", "wire/links/roster.py Roster.is_member", _everybody_is_a_member),
    _bug("a dead incarnation is registered", "wire/links/roster.py Roster.is_registered", _dead_are_registered),
    _bug("any router is one of the map", "wire/links/roster.py is_router", _every_router_is_of_the_map),
    _bug("any router is one of the group", "wire/links/roster.py Roster.is_router", _every_router_is_of_the_group),
    _bug("any certificate opens a link", "wire/links/admission.py check_member", _links_of_everybody),
    _bug("a node registers another", "wire/links/allowed.py Rule.OWN_INCARNATION", _introduced_as_another),
)
