"""Operators' tokens in the policy: created once, listed without their digest, invalid from one committed step on."""

import msgspec
import pytest

from access.operators import arguments as given
from access.policy import bounds
from access.policy.commands import AddToken, DeleteToken, Prune
from access.policy.machine import PolicyMachine
from access.policy.records import Token
from router.policy.policy_answers import READING

DIGEST = "0a" * 32
OTHER = "0b" * 32


def machine_with(*tokens: Token) -> PolicyMachine:
    machine = PolicyMachine()
    for token in tokens:
        assert machine.apply(AddToken(token)).step is not None
    return machine


def test_a_token_is_found_by_its_digest_and_void_once_it_is_deleted() -> None:
    """The result has no digest; an existing name cannot be reused."""
    machine = machine_with(Token("ci", "operator", DIGEST, 90.0, 10.0), Token("grafana", "viewer", OTHER))
    found = READING["token check"](given.TokenCheck(DIGEST), machine)
    assert found == {"token": "ci", "role": "operator", "until_utc": 90.0}
    listed = READING["token list"](given.List(), machine)["tokens"]
    assert listed[0] == {
        "token": "ci",
        "role": "operator",
        "made_at": "1970-01-01T00:00:10.000Z",
        "until": "1970-01-01T00:01:30.000Z",
    }
    assert (listed[1]["made_at"], listed[1]["until"]) == (None, None)
    assert "is there already" in machine.apply(AddToken(Token("ci", "admin", OTHER))).refusal
    assert machine.apply(DeleteToken("ci")).step is not None
    with pytest.raises(ValueError, match="no such token"):
        READING["token check"](given.TokenCheck(DIGEST), machine)
    assert [row["token"] for row in READING["token list"](given.List(), machine)["tokens"]] == ["grafana"]


def test_a_snapshot_keeps_tokens_and_one_of_before_has_none() -> None:
    """A router of a release without tokens sends seven fields."""
    machine = machine_with(Token("ci", "operator", DIGEST))
    again = PolicyMachine()
    again.restore(b"".join(part if isinstance(part, bytes) else b"".join(part) for part in machine.capture()))
    assert again.snapshot() == machine.snapshot()
    state = msgspec.msgpack.decode(machine.snapshot())
    again.restore(msgspec.msgpack.encode(state[:7]))
    assert len(again.tables.tokens) == 0 and again.epoch == machine.epoch


@pytest.mark.parametrize(
    "token",
    [
        Token("", "viewer", DIGEST),
        Token("x" * 65, "viewer", DIGEST),
        Token("a\nb", "viewer", DIGEST),
        Token("a", "root", DIGEST),  # type: ignore[arg-type]
        Token("a", "viewer", DIGEST[:-1]),
        Token("a", "viewer", DIGEST.upper()),
        Token("a", "viewer", DIGEST, float("inf")),
        Token("a", "viewer", DIGEST, 0.0, -1.0),
    ],
)
def test_a_token_out_of_its_ranges_is_refused(token: Token) -> None:
    """Also if a hostile router wrote it to the log."""
    assert machine_with().apply(AddToken(token)).refusal


def test_tokens_are_bounded_and_ended_ones_are_removed() -> None:
    """One more than the bound is refused; pruning makes space."""
    tokens = [Token(f"t{at}", "viewer", DIGEST, 5.0) for at in range(bounds.TOKENS_MAX)]
    machine = machine_with(*tokens)
    assert "revoke one first" in machine.apply(AddToken(Token("one more", "viewer", DIGEST))).refusal
    machine.apply(Prune(6.0))
    assert len(machine.tables.tokens) < bounds.TOKENS_MAX
