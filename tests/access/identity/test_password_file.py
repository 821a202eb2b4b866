"""Mosquitto's password file: accepted or refused as a whole (checks C3, C4)."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.files import AccessFileError
from access.identity.password_file import parse_password_file, read_password_file
from access.identity.passwords import verify
from tests.access.identity.test_passwords import KNOWN
from tests.patience import PATIENCE_S

GOOD = KNOWN["sha512"][0]
FILE = Path("passwd")


def test_lines_comments_and_ends_of_windows() -> None:
    """Names with filter characters, spaces and other scripts are valid."""
    names = ["alice", "+", "#x", "$SYS/#", "a b", "用户", "x" * 5000]
    content = "# users\r\n\r\n" + "".join(f"{name}:{GOOD}\r\n" for name in names if name[0] != "#")
    users = parse_password_file(FILE, content.encode())
    assert list(users) == [name for name in names if name[0] != "#"]
    assert verify(users["alice"], b"abc")
    assert parse_password_file(FILE, f"alice:{GOOD}".encode()) == {"alice": users["alice"]}


@pytest.mark.parametrize(
    ("content", "where", "text"),
    [
        (b"", "passwd: ", "names no user"),
        (b"# only\n\n# comments\n", "passwd: ", "names no user"),
        (f"alice:{GOOD}\nbob\n".encode(), "passwd:2: ", "no colon"),
        (f"alice:{GOOD}\nbob:\n".encode(), "passwd:2: ", "no hash"),
        (f"alice:{GOOD}\nbob:secret\n".encode(), "passwd:2: ", "no hash"),
        (f":{GOOD}\n".encode(), "passwd:1: ", "is empty"),
        (f"alice:{GOOD}\nalice:{GOOD}\n".encode(), "passwd:2: ", "second time"),
        (f"alice:{GOOD}:x\n".encode(), "passwd:1: ", "base64"),
        (f"alice: {GOOD}\n".encode(), "passwd:1: ", "no hash"),
        (f"alice:{GOOD} \n".encode(), "passwd:1: ", "base64"),
        (f" \nalice:{GOOD}".encode(), "passwd:1: ", "no colon"),
        (f"alice:{GOOD}\0\n".encode(), "passwd:1: ", "control"),
        (f"\ufeffalice:{GOOD}\n".encode(), "passwd:1: ", "byte order"),
        (f"alice:{GOOD}\rbob:{GOOD}\n".encode(), "passwd:1: ", "control"),
        (f"e\u0301:{GOOD}\n".encode(), "passwd:1: ", "normal form"),
        (b"\xff:" + GOOD.encode(), "passwd:1: ", "no UTF-8"),
        (f"{'x' * 65_536}:{GOOD}".encode(), "passwd:1: ", "too long"),
        (b"a:$argon2id$v=19$m=100000000,t=1,p=1$c29tZXNhbHQ$c29tZXNhbHRzb21lc2FsdA", "passwd:1: ", "memory"),
    ],
)
def test_one_bad_line_refuses_the_file(content: bytes, where: str, text: str) -> None:
    """The error has file and line, and quotes no hash and no password."""
    with pytest.raises(AccessFileError, match=text) as error:
        parse_password_file(FILE, content)
    assert error.value.message.startswith(where)
    assert "secret" not in error.value.message and GOOD[5:20] not in error.value.message


PIECES = st.sampled_from(
    [
        "alice",
        "bob",
        ":",
        GOOD,
        f"alice:{GOOD}",
        f"bob:{GOOD}",
        "\n",
        "\r\n",
        "\r",
        "\0",
        "#",
        "$",
        " ",
        "\x0b",
        "\u2028",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_never_more_users_than_valid_lines(pieces: list[str]) -> None:
    """For any combination, each user has its own line with the complete hash."""
    text = "".join(pieces)
    try:
        users = parse_password_file(FILE, text.encode())
    except AccessFileError:
        return
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    assert len(users) == sum(1 for line in lines if line.endswith(f":{GOOD}") and not line.startswith("#"))
    assert all(f"{name}:{GOOD}" in lines for name in users)


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
def test_a_file_made_by_mosquitto_passwd(tmp_path: Path) -> None:
    """The formats of the installed version, each verified here."""
    path = tmp_path / "passwd"
    made: list[str] = []
    for name, flags in (
        ("six", ["-H", "sha512"]),
        ("seven", ["-H", "sha512-pbkdf2"]),
        ("argon", ["-H", "argon2id"]),
        ("own", []),
    ):
        create = [] if path.exists() else ["-c"]
        command = ["mosquitto_passwd", *flags, *create, "-b", str(path), name, f"{name} pässword"]
        if subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0:
            made.append(name)  # an older program does not support argon2id
    path.chmod(0o600)
    assert {"six", "seven", "own"} <= set(made)
    users = read_password_file(path)
    assert list(users) == made
    for name in made:
        assert verify(users[name], f"{name} pässword".encode())
        assert not verify(users[name], b"wrong")


def test_a_file_that_everybody_reads(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{GOOD}\n")
    path.chmod(0o644)
    with pytest.raises(AccessFileError, match="open to every user"):
        read_password_file(path)
