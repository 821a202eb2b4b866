"""The table of verbs: every current verb, the matrix of roles and tiers, and hostile names and arguments."""

from typing import Any

import msgspec
import pytest

from access.operators.commands import (
    SHOWN,
    VERBS,
    Operator,
    OperatorRole,
    Refusal,
    audit_arguments,
    judge,
    operator_of,
    speaker,
)
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin

SALT = "c2FsdHNhbHRzYWx0c2FsdA"
RECORD = "$argon2id$v=19${}$" + SALT + "$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"
GOOD: dict[str, Any] = {
    "listener": "plain",
    "node": "r1",
    "name": "plant",
    "partition": "7",
    "prefix": "plant",
    "depth": 2,
    "key": "a2V5",
    "key_id": "ab12",
    "root": "/x",
    "folder": "/x/y",
    "now_ms": 5,
    "partitions": [1],
    "user": "ann",
    "role": "device",
    "rules": [{"allow": True, "actions": 3, "filter": "a/%c/#"}],
    "group": "plant",
    "kind": "user",
    "value": "ann",
    "client_id": "c",
    "topic": "a/b",
    "topics": ["a/b"],
    "digest": "0a" * 32,
    "trace": "t",
    "pattern": "a/#",
}
ADMINS = """
cluster forget, cluster join, cluster leave, ring recover, ring delegate, ring undelegate, membership keys install,
membership keys use, membership keys remove, store aside remove, user add, user change, user password, user disable,
user enable, user delete, role put, role delete, group put, group delete, unrevoke, token create,
token revoke, token check, session delete, session expire, retained clear, queue purge
"""
OPERATORS = """
cluster transfer, node drain, node undrain, ring add, ring drain, ring remove, ring rebalance, ring pause, ring resume,
ring abort, store export, store export cancel, ban add, ban del, revoke, client kick, msg send, client drain, reload,
listener pause, listener resume,
trace start, trace stop
"""


def listed(text: str) -> set[str]:
    return {verb.strip() for verb in text.replace("\n", " ").split(",")}


def question(verb: str, **more: Any) -> Admin:
    fields = VERBS[verb].arguments
    required = [field.name for field in msgspec.structs.fields(fields) if field.required]
    arguments = {name: GOOD[name] for name in required} | more
    if verb in ("revoke", "unrevoke"):
        arguments |= {"kind": "serial"}
    if verb == "trace start":
        arguments |= {"kind": "topic"}
    if verb == "token create":
        arguments |= {"role": "viewer"}
    return Admin(1, verb, arguments)


@pytest.mark.parametrize("tier", ["router", "storage", "edge"])
@pytest.mark.parametrize("role", [None, *OperatorRole])
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_matrix_of_verbs_roles_and_tiers(verb: str, role: OperatorRole | None, tier: str) -> None:
    """A verb runs for its role and above, at its tier only; the refusal names the role."""
    wanted = (
        OperatorRole.ADMIN
        if verb in listed(ADMINS)
        else OperatorRole.OPERATOR
        if verb in listed(OPERATORS)
        else OperatorRole.VIEWER
    )
    assert VERBS[verb].role is wanted
    operator = Operator(role, "ann") if role is not None else None
    if tier == VERBS[verb].tier and role is not None and role >= wanted:
        row, arguments = judge(question(verb), operator, tier)
        assert row is VERBS[verb] and isinstance(arguments, row.arguments)
        return
    with pytest.raises(Refusal) as caught:
        judge(question(verb), operator, tier)
    if tier == VERBS[verb].tier and role is not None:
        assert wanted.name.lower() in str(caught.value) and "ann" in str(caught.value)


def test_a_verb_that_changes_is_no_viewers() -> None:
    """Each verb in the lists exists."""
    assert listed(ADMINS) | listed(OPERATORS) <= VERBS.keys()
    assert all(row.role > OperatorRole.VIEWER for row in VERBS.values() if row.changes)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("no such verb", {}),
        ("user add", {}),
        ("user add", {"user": ""}),
        ("user add", {"user": "x" * 257}),
        ("user add", {"user": "x", "roles": ["r"] * 65}),
        ("user add", {"user": "x", "password": "hunter2"}),
        ("user add", {"user": "x", "record": "hunter2"}),
        ("user add", {"user": "x", "record": "$argon2id$v=19$m=1,t=1,p=1$ab$cd\n"}),
        ("user add", {"user": "x", "record": RECORD.format("m=8,t=1,p=1")}),
        ("user add", {"user": "x", "record": RECORD.format("m=19456,t=1,p=1")}),
        ("user add", {"user": "x", "record": RECORD.format("m=100000000,t=1,p=1")}),
        ("user add", {"user": "x", "record": RECORD.format("m=262144,t=4,p=1")}),
        ("user add", {"user": "x", "record": RECORD.format("m=19456,t=2,p=1")[:-43]}),
        ("user password", {"user": "x", "record": RECORD.format("m=19456,t=2,p=1,x=1")}),
        ("user password", {"user": "x", "record": RECORD.format("m=8,t=1,p=1")}),
        ("user add", {"user": 7}),
        ("user add", {"user": "x", "limits": {"sessions": 3}}),  # no edge reads it
        ("user change", {"user": "x", "limits": {"daily_bytes_max": -1}}),
        ("group put", {"group": "x", "limits": {"": 1}}),
        ("role put", {"role": "r", "rules": [{"allow": True, "actions": 64, "filter": "a"}]}),
        ("role put", {"role": "r", "rules": [[[[[]]]]]}),
        ("ban add", {"kind": "planet", "value": "x"}),
        ("ban add", {"kind": "user", "value": "x", "for_s": -1}),
        ("ban add", {"kind": "user", "value": "x", "for_s": float("nan")}),
        ("ban add", {"kind": "user", "value": "x", "for_s": float("inf")}),
        ("user\nadd", {}),
    ],
)
def test_a_hostile_question_is_refused_in_one_line(verb: str, arguments: dict[str, object]) -> None:
    """Out of range, of another type, too deep, with a line end; a weak or invalid password record."""
    with pytest.raises(Refusal) as caught:
        judge(Admin(1, verb, arguments), Operator(OperatorRole.ADMIN, "ann"), "router")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400
    assert "hunter2" not in str(caught.value)


def test_judge_checks_role_before_arguments() -> None:
    """An unauthorized caller learns nothing about the arguments."""
    with pytest.raises(Refusal, match="wants the role admin"):
        judge(Admin(1, "user add", {"user": 7}), Operator(OperatorRole.VIEWER, "ann"), "router")


@pytest.mark.parametrize(
    ("node", "tier", "operator"),
    [
        ("admin:ann/cli-1", "operator", Operator(OperatorRole.ADMIN, "ann")),
        ("viewer:a.b_c-1/cli-1", "operator", Operator(OperatorRole.VIEWER, "a.b_c-1")),
        ("operator:ann/admin:bob/x", "operator", Operator(OperatorRole.OPERATOR, "ann")),
        ("admin:ann/cli-1", "edge", None),
        ("admin:ann/cli-1", "router", None),
        ("ann/cli-1", "operator", None),
        ("admin/ann:cli-1", "operator", None),
        ("ADMIN:ann/cli-1", "operator", None),
        ("admin:/cli-1", "operator", None),
        ("admin:ann", "operator", None),
        ("", "operator", None),
    ],
)
def test_the_operator_of_a_link(node: str, tier: str, operator: Operator | None) -> None:
    """The name from admission, of an operator's link only."""
    assert operator_of(PeerKey(node, tier, 1)) == operator
    assert operator_of(None) is None


def test_the_audit_shows_no_secret() -> None:
    """Records, verifiers and keys are omitted, and so is each unlisted argument."""
    secret = RECORD.format("m=19456,t=2,p=1")
    verifier = "SCRAM-SHA-256$4096:cGxhbnRlZA$a:b"
    _, arguments = judge(
        question("user add", record=secret, verifier=verifier, roles=["r"]), Operator(OperatorRole.ADMIN, "a"), "router"
    )
    shown = audit_arguments(arguments)
    assert (
        shown["user"] == "ann"
        and shown["roles"] == '["r"]'
        and SALT not in repr(shown)
        and "argon2id" not in repr(shown)
    )
    _, arguments = judge(question("membership keys install"), Operator(OperatorRole.ADMIN, "a"), "router")
    assert audit_arguments(arguments) == {}
    fields = {field.name for row in VERBS.values() for field in msgspec.structs.fields(row.arguments)}
    assert fields - SHOWN == {"record", "verifier", "key", "digest", "payload"}
    _, arguments = judge(question("role put"), Operator(OperatorRole.ADMIN, "a"), "router")
    assert "a/%c/#" in str(audit_arguments(arguments)["rules"])


def test_speaker_has_at_most_role_of_service() -> None:
    """The lower role applies; the audit log has both names."""
    admin, viewer = Operator(OperatorRole.ADMIN, "service"), Operator(OperatorRole.VIEWER, "service")
    asked = question("user delete")
    asked.actor, asked.role = "ann", "viewer"
    assert speaker(asked, admin) == Operator(OperatorRole.VIEWER, "ann by service")
    with pytest.raises(Refusal, match="wants the role admin"):
        judge(asked, admin, "router")
    asked.role = "admin"
    assert judge(asked, admin, "router")[0] is VERBS["user delete"]
    for role in ("admin", "emperor"):
        asked.role = role
        with pytest.raises(Refusal, match="wants the role admin"):
            judge(asked, viewer, "router")
    assert speaker(asked, None) is None
