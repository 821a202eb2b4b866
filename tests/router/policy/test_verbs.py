"""Verbs about the policy as commands: each changing verb has one, and nothing is widened on the way."""

from typing import Any

import pytest

from access.operators.commands import VERBS, Operator, OperatorRole, judge
from access.policy.machine import PolicyMachine
from router.policy.policy_commands import CHANGING
from wire.messages.operators import Admin

NOW = 1_800_000_000.0
ROOMS = ("user ", "role ", "group ", "ban ", "revoke", "unrevoke", "token ")


def command(verb: str, now_utc: float = NOW, **arguments: Any) -> Any:
    _, judged = judge(Admin(1, verb, arguments), Operator(OperatorRole.ADMIN, "ann"), "router")
    return CHANGING[verb](judged, now_utc)


def test_every_changing_verb_of_the_policy_has_a_command() -> None:
    """And no reading one."""
    assert set(CHANGING) == {verb for verb, row in VERBS.items() if row.changes and verb.startswith(ROOMS)}


def test_the_machine_takes_what_the_verbs_make() -> None:
    """A life of a user, a role, a group and a ban."""
    machine = PolicyMachine()
    for verb, arguments in (
        ("role put", {"role": "r", "rules": [{"allow": True, "actions": 3, "filter": "a/#", "qos_max": 1}]}),
        ("group put", {"group": "g", "roles": ["r"]}),
        ("user add", {"user": "u", "roles": ["r"]}),
        ("user change", {"user": "u", "groups": ["g"]}),
        ("user disable", {"user": "u"}),
        ("ban add", {"kind": "address", "value": "10.0.0.1", "for_s": 60.0}),
        ("ban del", {"kind": "address", "value": "10.0.0.1"}),
        ("revoke", {"kind": "serial", "value": "1f", "issuer": "ab" * 32}),
        ("unrevoke", {"kind": "serial", "value": "1f", "issuer": "ab" * 32}),
        ("token create", {"name": "t", "role": "viewer", "digest": "0a" * 32, "for_s": 60.0}),
        ("token revoke", {"name": "t"}),
        ("user delete", {"user": "u"}),
        ("group delete", {"group": "g"}),
        ("role delete", {"role": "r"}),
    ):
        outcome = machine.apply(command(verb, **arguments))
        assert outcome.step is not None and not outcome.refusal, (verb, outcome.refusal)


def test_what_is_not_given_stays() -> None:
    """A change of roles takes no groups away, and gives none."""
    changed = command("user change", user="u", roles=[])
    assert (changed.roles, changed.groups, changed.limits) == ((), None, None)


def test_a_ban_ends_when_it_was_asked_to() -> None:
    """Without ``for_s`` it lasts; a clock that tells nothing never makes a short one, or one for good."""
    assert command("ban add", kind="user", value="u").ban.until_utc == 0
    assert command("ban add", kind="user", value="u", for_s=60.0).ban.until_utc == NOW + 60
    for clock in (float("nan"), float("inf"), -1e9, 1e13):
        with pytest.raises(ValueError, match="clock"):
            command("ban add", clock, kind="user", value="u", for_s=60.0)


def test_a_ban_is_taken_back_in_any_spelling() -> None:
    """Both verbs use the one spelling of the value."""
    added = command("ban add", kind="address", value="::0001")
    assert added.ban.value == command("ban del", kind="address", value="::1").value
    with pytest.raises(ValueError, match="no IP address"):
        command("ban add", kind="address", value="10.0.0.0/8")
