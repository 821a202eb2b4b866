"""Mosquitto's acl_file: its documented examples, its order, and files that give no right."""

import os
from pathlib import Path

import pytest

from access.files import AccessFileError
from access.rules.acl_file import AclFile, parse_acl_file, read_acl_file
from access.rules.rules import Action, CompiledRules, Grant, Subject

PATH = Path("acl")

# mosquitto.conf(5) and the commented example that Mosquitto ships, in one file.
DOCUMENTED = b"""\
# This affects access control for clients with no username.
topic read $SYS/#
topic public/+
topic deny public/closed

# This only affects clients with username "roger".
user roger
topic foo/bar
topic read plant/#
topic write cmd/+/set
topic deny plant/secret
topic readwrite two words
topic read pattern/roger/closed
# A name with spaces
user anna maria
topic own/#

# This affects all clients.
pattern write $SYS/broker/connection/%c/state
pattern write sensor/%u/data
pattern deny pattern/%u/closed
pattern readwrite pattern/%u/+
"""

# user, client ID, topic, may read, may write
DECIDED = [
    ("", "c", "$SYS/broker/uptime", True, False),
    ("", "c", "public/a", True, True),
    ("", "c", "public/closed", False, False),
    ("", "c", "foo/bar", False, False),
    ("roger", "c", "$SYS/broker/uptime", False, False),
    ("roger", "c", "public/a", False, False),
    ("roger", "c", "foo/bar", True, True),
    ("roger", "c", "plant/a/b", True, False),
    ("roger", "c", "plant", True, False),
    ("roger", "c", "plant/secret", False, False),
    ("roger", "c", "cmd/x/set", False, True),
    ("roger", "c", "cmd/x/y/set", False, False),
    ("roger", "c", "two words", True, True),
    ("anna maria", "c", "own/x", True, True),
    ("anna", "c", "own/x", False, False),
    ("roger", "c", "sensor/roger/data", False, True),
    ("roger", "c", "sensor/anna/data", False, False),
    ("nobody", "c", "sensor/nobody/data", False, True),
    ("nobody", "c", "public/a", False, False),
    ("roger", "c", "$SYS/broker/connection/c/state", False, True),
    ("roger", "c", "$SYS/broker/connection/d/state", False, False),
    ("anna maria", "c", "pattern/anna maria/x", True, True),
    ("anna maria", "c", "pattern/anna maria/closed", False, False),
    ("roger", "c", "pattern/roger/closed", True, False),  # the section decides before the denying pattern
    ("+", "c", "sensor/roger/data", False, False),
    ("#", "c", "pattern/roger/x", False, False),
    ("roger", "+", "$SYS/broker/connection/c/state", False, False),
    ("roger", "+", "sensor/roger/data", False, False),  # patterns do not apply to such a client
    ("roger", "+", "foo/bar", True, True),
]


def policy_of(file: AclFile, user: str, client_id: str) -> CompiledRules:
    return CompiledRules(file.tiers(user, client_id))


@pytest.mark.parametrize(("user", "client_id", "topic", "read", "write"), DECIDED)
def test_documented_examples(user: str, client_id: str, topic: str, read: bool, write: bool) -> None:
    policy, subject = policy_of(parse_acl_file(PATH, DOCUMENTED), user, client_id), Subject(client_id, user)
    assert policy.decide(Action.RECEIVE, topic, subject) is read
    for action in (Action.PUBLISH, Action.RETAIN, Action.WILL):
        assert policy.decide(action, topic, subject) is write


def test_a_subscription_is_partial_where_reads_are_filtered() -> None:
    """Mosquitto grants it; the readable part is delivered."""
    subject = Subject("c", "roger")
    policy = policy_of(parse_acl_file(PATH, DOCUMENTED), "roger", "c")
    granted = {
        name: policy.grant(name, subject) for name in ("plant/#", "plant/a/#", "#", "nothing", "$share/g/plant/a")
    }
    assert granted == {
        "plant/#": Grant.PARTIAL,
        "plant/a/#": Grant.GRANTED,
        "#": Grant.PARTIAL,
        "nothing": Grant.REFUSED,
        "$share/g/plant/a": Grant.GRANTED,
    }


@pytest.mark.parametrize(
    "content",
    [
        b"topic a/b\r\nuser u\r\ntopic c\r\n",
        b"  topic  a/b  \n\n   \nuser   u  \ntopic c",
        b"#topic x\ntopic readwrite a/b\n#\nuser u\ntopic readwrite   c\n",
    ],
)
def test_acl_file_ignores_spaces_and_line_ends(content: bytes) -> None:
    assert parse_acl_file(PATH, content) == parse_acl_file(PATH, b"topic a/b\nuser u\ntopic c\n")


def test_placeholders_are_letters_behind_topic() -> None:
    """Mosquitto substitutes in patterns only."""
    file = parse_acl_file(PATH, b"topic %c/${username}\n")
    assert CompiledRules(file.tiers("", "c")).decide(Action.PUBLISH, "%c/${username}", Subject("c", ""))
    assert not CompiledRules(file.tiers("", "c")).decide(Action.PUBLISH, "c/", Subject("c", ""))


# content, line of the error, a part of it
BAD = {
    "empty": (b"", 0, "no rule"),
    "comments": (b"# topic a\n\n#\n", 0, "no rule"),
    "user only": (b"user a\n", 0, "no rule"),
    "byte order mark": (b"\xef\xbb\xbftopic a\n", 1, "byte order mark"),
    "NUL": (b"topic a\ntopic b\0\n", 2, "control character"),
    "CR": (b"topic a\rtopic b\n", 1, "control character"),
    "no UTF-8": (b"topic a\ntopic \xff\n", 2, "no UTF-8"),
    "unknown word": (b"topic a\ntopics b\n", 2, "none of user"),
    "comment behind a space": (b"topic a\n # b\n", 2, "none of user"),
    "capital": (b"Topic a\n", 1, "none of user"),
    "unknown access": (b"topic allow a\n", 1, "none of read"),
    "words without access": (b"topic a b\n", 1, "none of read"),
    "no topic": (b"topic a\ntopic \n", 2, "no topic"),
    "no user": (b"topic a\nuser\n", 2, "no user name"),
    "doubled user": (b"user a\ntopic a\nuser b\ntopic b\nuser a\ntopic c\n", 5, "line 1"),
    "tab": (b"topic\ta\n", 1, "tab"),
    "tab in a topic": (b"topic read\ta\n", 1, "tab"),
    "wildcard": (b"topic read a/#/b\n", 1, "last level"),
    "half a level": (b"topic read a+\n", 1, "whole level"),
    "placeholder beside text": (b"pattern read dev-%c/x\n", 1, "whole level"),
    "unknown placeholder": (b"pattern read ${user}/x\n", 1, "level 1"),
    "group": (b"topic read $share/g/a\n", 1, "$share"),
    "one good line": (b"topic read #\nnonsense\n", 2, "none of user"),
    "long user": (b"user " + b"u" * 65_536 + b"\ntopic a\n", 1, "longer"),
    "deep": (b"topic " + b"a/" * 200 + b"\n", 1, "levels"),
}


@pytest.mark.parametrize(("content", "line", "part"), BAD.values(), ids=BAD)
def test_a_bad_file_gives_no_rule(tmp_path: Path, content: bytes, line: int, part: str) -> None:
    """Check C3: an empty file grants nothing."""
    path = tmp_path / "acl"
    path.write_bytes(content)
    with pytest.raises(AccessFileError) as caught:
        read_acl_file(path)
    error = caught.value
    assert part in error.text and error.line == line
    where = f"{path}:{line}: " if line else f"{path}: "
    assert error.message == where + error.text and error.message.isprintable() and len(error.text) < 200


def test_no_usable_file(tmp_path: Path) -> None:
    """Missing, a folder, a pipe, an endless device, a gigabyte: refused, without waiting and without reading."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "large"):
        with pytest.raises(AccessFileError) as caught:
            read_acl_file(path)
        assert caught.value.message.startswith(f"{path}: ") and caught.value.message.isprintable()


def test_bounds_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("access.rules.acl_file.RULES_MAX", 3)
    parse_acl_file(PATH, b"topic a\n" * 3)
    with pytest.raises(AccessFileError, match="acl:4: is rule 4"):
        parse_acl_file(PATH, b"topic a\n" * 4)
    monkeypatch.setattr("access.rules.rules.VISITS_MAX", 3)
    with pytest.raises(AccessFileError, match="acl:1: one decision"):
        parse_acl_file(PATH, b"user x\ntopic +/+/+/+\n")
