"""A role that commands can create can be compiled, and decides as given."""

import pytest

from access.policy.commands import DeleteRole, PutRole
from access.policy.machine import PolicyMachine
from access.policy.records import RoleRecord, RuleRecord
from access.policy.role_tiers import tiers_of
from access.policy.view import PolicyView
from access.rules.rules import Action, CompiledRules
from access.rules.subject import Subject

ANN = Subject("c", "ann")


def test_roles_of_a_higher_priority_decide_first() -> None:
    allow, deny = RuleRecord(True, int(Action.PUBLISH), "a/#"), RuleRecord(False, int(Action.PUBLISH), "a/#")
    low, high = RoleRecord("low", (deny,)), RoleRecord("high", (allow,), 5)
    assert CompiledRules(tiers_of([low, high])).decide(Action.PUBLISH, "a/b", ANN)
    assert not CompiledRules(tiers_of([low, RoleRecord("high", (allow,))])).decide(Action.PUBLISH, "a/b", ANN)
    assert not CompiledRules(tiers_of([])).decide(Action.PUBLISH, "a/b", ANN)


def test_placeholders_are_levels_of_the_client() -> None:
    policy = CompiledRules(tiers_of([RoleRecord("own", (RuleRecord(True, 3, "d/%u/#"),))]))
    assert policy.decide(Action.PUBLISH, "d/ann/x", ANN)
    assert not policy.decide(Action.PUBLISH, "d/bob/x", ANN)


@pytest.mark.parametrize(
    "rules",
    [
        (RuleRecord(True, 1, "a/#/b"),),
        (RuleRecord(True, 2, "$share/g/a"),),
        (RuleRecord(True, 33, "g"),),
        (RuleRecord(True, 32, "g/h"),),
        (RuleRecord(True, 32, "#"),),
        (RuleRecord(True, 1, "a", network="10.0.0.0/99"),),
        (RuleRecord(True, 1, "/".join("+" * 200)),),
        tuple(RuleRecord(True, 1, "/".join(("+" if bit == "1" else "a") for bit in f"{n:010b}")) for n in range(1024)),
    ],
)
def test_a_role_that_cannot_be_compiled_is_refused(rules: tuple[RuleRecord, ...]) -> None:
    """Before it is written to the log, and again if a log has it."""
    machine = PolicyMachine()
    assert machine.suppose(PutRole("r", rules)).refusal
    assert machine.apply(PutRole("r", rules)).refusal and machine.epoch == 0


@pytest.mark.parametrize("priority", [-1_001, 1_001, 1 << 70])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    assert "priority" in PolicyMachine().apply(PutRole("r", (), priority)).refusal


def test_the_priority_of_a_role_survives_a_snapshot() -> None:
    machine, other = PolicyMachine(), PolicyMachine()
    machine.apply(PutRole("r", (RuleRecord(True, 32, "+"),), -7))
    other.restore(machine.snapshot())
    role = other.tables.roles.get("r")
    assert role is not None and role.priority == -7


def test_a_view_gives_the_tiers_of_the_roles_that_it_has() -> None:
    machine, view = PolicyMachine(), PolicyView()
    for command in (
        PutRole("a", (RuleRecord(True, 1, "a/#"),)),
        PutRole("g", (RuleRecord(True, 32, "+"),)),
        DeleteRole("g"),
    ):
        step = machine.apply(command).step
        assert step is not None
        view.apply(step)
        assert view.groups_named == ("g" in machine.tables.roles)
    assert CompiledRules(view.tiers(["a", "g", "unknown"])).decide(Action.PUBLISH, "a/b", ANN)
    assert view.tiers(["g"]) == ()
