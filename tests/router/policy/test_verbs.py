"""Requests about the policy as commands: each changing one has a command, without additional rights."""

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


def test_every_changing_request_has_a_command() -> None:
    """No reading request has one."""
    assert set(CHANGING) == {verb for verb, row in VERBS.items() if row.changes and verb.startswith(ROOMS)}


def test_machine_accepts_the_commands_of_requests() -> None:
    """Creation to deletion of a user, a role, a group and a ban."""
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


def test_omitted_fields_stay_unchanged() -> None:
    """A change of roles neither adds nor removes groups."""
    changed = command("user change", user="u", roles=[])
    assert (changed.roles, changed.groups, changed.limits) == ((), None, None)


def test_ban_ends_at_the_requested_time() -> None:
    """Without ``for_s`` it is permanent; an invalid clock makes neither a short nor a permanent one."""
    assert command("ban add", kind="user", value="u").ban.until_utc == 0
    assert command("ban add", kind="user", value="u", for_s=60.0).ban.until_utc == NOW + 60
    for clock in (float("nan"), float("inf"), -1e9, 1e13):
        with pytest.raises(ValueError, match="clock"):
            command("ban add", clock, kind="user", value="u", for_s=60.0)


def test_ban_is_removed_in_any_spelling() -> None:
    """Both requests normalize the value."""
    added = command("ban add", kind="address", value="::0001")
    assert added.ban.value == command("ban del", kind="address", value="::1").value
    with pytest.raises(ValueError, match="no IP address"):
        command("ban add", kind="address", value="10.0.0.0/8")
