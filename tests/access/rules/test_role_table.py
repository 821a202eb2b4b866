"""Roles in TOML, and files that give no right."""

from pathlib import Path

import pytest

from access.files import AccessFileError
from access.rules.role_table import parse_role_table, read_role_table
from access.rules.rules import Action, CompiledRules, Grant, Subject

PATH = Path("roles.toml")
EXAMPLE = b"""\
[roles.sensor]
publish = ["plant/%u/#"]
subscribe = ["cmd/%c/#"]
deny = ["plant/+/secret"]
qos_max = 1
retain = false

[roles.reader]
subscribe = ["plant/#"]
will = false

[roles.blocked]
deny = ["#"]
priority = 10

[roles.worker]
subscribe = ["jobs"]
share = ["workers", "%u"]

[groups.staff]
roles = ["reader"]

[users.anna]
roles = ["sensor"]
groups = ["staff"]

[users.bert]
roles = ["sensor", "blocked"]
"""


def test_the_example() -> None:
    table = parse_role_table(PATH, EXAMPLE)
    assert table.groups_named
    assert table.roles("anna") == ("reader", "sensor")
    anna, subject = CompiledRules(table.tiers(table.roles("anna")), table.groups_named), Subject("c", "anna")
    assert anna.decide(Action.PUBLISH, "plant/anna/x", subject, 1)
    assert not anna.decide(Action.PUBLISH, "plant/anna/x", subject, 2)
    assert not anna.decide(Action.RETAIN, "plant/anna/x", subject)
    assert anna.decide(Action.WILL, "plant/anna/x", subject)
    assert not anna.decide(Action.PUBLISH, "plant/bert/x", subject)
    # The deny of one role wins over the allow of another.
    assert not anna.decide(Action.RECEIVE, "plant/1/secret", subject)
    assert anna.grant("plant/#", subject) is Grant.PARTIAL
    assert anna.grant("cmd/c/x", subject, 1) is Grant.GRANTED
    assert anna.grant("cmd/c/x", subject, 2) is Grant.REFUSED
    assert anna.grant("$share/workers/plant/1", subject) is Grant.REFUSED


def test_a_higher_priority_decides_first() -> None:
    table = parse_role_table(PATH, EXAMPLE)
    bert = CompiledRules(table.tiers(table.roles("bert")))
    assert not bert.decide(Action.PUBLISH, "plant/bert/x", Subject("c", "bert"))


def test_groups_of_subscribers() -> None:
    table = parse_role_table(PATH, EXAMPLE)
    worker, subject = CompiledRules(table.tiers(table.roles("w", ["worker"]))), Subject("c", "w")
    granted = {group: worker.grant(f"$share/{group}/jobs", subject) for group in ("workers", "w", "other")}
    assert granted == {"workers": Grant.GRANTED, "w": Grant.GRANTED, "other": Grant.REFUSED}


def test_role_table_unknown_names_grant_nothing() -> None:
    """Roles of a token may be unknown here; an anonymous client is not a user of the file."""
    table = parse_role_table(PATH, EXAMPLE + b'[users."%u"]\nroles = ["reader"]\n')
    assert table.roles("nobody") == table.roles("") == ()
    assert table.roles("nobody", ["admin"], ["wheel"]) == ()
    assert table.roles("nobody", ["reader"], ["staff"]) == ("reader",)
    assert table.tiers(["admin"]) == ()
    assert not CompiledRules(table.tiers(())).decide(Action.PUBLISH, "a", Subject("c", ""))


# content, line of the error, a part of it
BAD = {
    "empty": (b"", 0, "has no role"),
    "comments": (b"# [roles.x]\n", 0, "has no role"),
    "users only": (b"[users.a]\n", 0, "has no role"),
    "no TOML": (b"[roles.a]\npublish = [\n", 2, "no TOML"),
    "byte order mark": (b"\xef\xbb\xbf[roles.a]\n", 1, "no TOML"),
    "NUL": (b'[roles.a]\npublish = ["\0"]\n', 2, "no TOML"),
    "no UTF-8": (b'[roles.a]\npublish = ["\xff"]\n', 2, "no UTF-8"),
    "nested": (b"a = " + b"[" * 100_000, 0, "no TOML"),
    "long number": (b"a = " + b"1" * 100_000, 0, "no TOML"),
    "doubled role": (b"[roles.a]\n[roles.a]\n", 2, "no TOML"),
    "doubled key": (b'[roles.a]\npublish = ["a"]\npublish = ["#"]\n', 3, "no TOML"),
    "unknown table": (b"[roles.a]\n[role.b]\n", 2, "role: unknown word; did you mean roles?"),
    "unknown word": (b'[roles.a]\npublsh = ["a"]\n', 2, "roles.a.publsh: unknown word; did you mean publish?"),
    "unknown word of a user": (b'[roles.a]\n[users.u]\nrole = ["a"]\n', 3, "users.u.role: unknown word; did you mean"),
    "text for a list": (b'[roles.a]\npublish = "a"\n', 2, "roles.a.publish: "),
    "number for a text": (b"[roles.a]\npublish = [1]\n", 2, "roles.a.publish[0]: "),
    "text for true": (b'[roles.a]\nretain = "false"\n', 2, "roles.a.retain: "),
    "qos": (b"[roles.a]\nqos_max = 3\n", 2, "roles.a.qos_max: "),
    "huge number": (b"[roles.a]\npriority = 100000000000000000000000\n", 2, "roles.a.priority: "),
    "wrong filter": (b'[roles.a]\npublish = ["b", "a/#/b"]\n', 2, "roles.a.publish[1]: "),
    "empty filter": (b'[roles.a]\npublish = [""]\n', 2, "roles.a.publish[0]: "),
    "half a placeholder": (b'[roles.a]\ndeny = ["x%u"]\n', 2, "roles.a.deny[0]: "),
    "share of a filter": (b'[roles.a]\nshare = ["a/b"]\n', 2, "roles.a.share[0]: "),
    "network": (b'[roles.a]\npublish = ["b"]\nnetwork = "lan"\n', 2, "roles.a.publish[0]: no network"),
    "unknown role": (
        b'[roles.alpha]\n[users.u]\nroles = ["alpa"]\n',
        3,
        "users.u.roles[0]: no such name; did you mean",
    ),
    "unknown group": (b'[roles.a]\n[users.u]\ngroups = ["x"]\n', 3, "users.u.groups[0]: no such name"),
    "role twice": (b'[roles.a]\n[groups.g]\nroles = ["a", "a"]\n', 3, "groups.g.roles[1]: the name stands there twice"),
    "user without a name": (b'[roles.a]\n[users.""]\n', 2, "users."),
    "control character": (b'[roles.a]\n[roles."x\\u001b[2J"]\npub = []\n', 3, "unknown word"),
    "too many": (b'[roles.a]\npublish = ["a", "a", "a", "a"]\n', 1, "above 3 rules"),
}


@pytest.mark.parametrize(("content", "line", "part"), BAD.values(), ids=BAD)
def test_a_bad_file_gives_no_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, line: int, part: str
) -> None:
    """One line with file, number and key; no rule of the file applies."""
    monkeypatch.setattr("access.rules.role_table.RULES_MAX", 3)
    path = tmp_path / "roles.toml"
    path.write_bytes(content)
    with pytest.raises(AccessFileError) as caught:
        read_role_table(path)
    error = caught.value
    assert part in error.text
    assert error.line == line
    assert error.message.startswith(f"{path}:") and error.message.isprintable() and len(error.text) < 300


def test_no_usable_file(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    for path in (tmp_path / "none", tmp_path, tmp_path / "large"):
        with pytest.raises(AccessFileError) as caught:
            read_role_table(path)
        assert caught.value.message.startswith(f"{path}: ")
