"""`stratamq audit verify | tail`: whole files, broken ones, and what is no audit."""

import json
from pathlib import Path

import pytest

from access.operators.audit_chain import AuditRecord
from access.operators.audit_file import AuditFile
from stratamq.cli.main import main

LINES = 6


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """An audit of six lines."""
    file = AuditFile(tmp_path / "audit.jsonl")
    for number in range(LINES):
        file.append([AuditRecord("verb", "done", actor=f"ann-{number}", reason="\x1b[2J\nforged")], float(number))
    file.close()
    return tmp_path / "audit.jsonl"


def test_a_whole_chain_over_two_files(audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files are checked as one chain, in their order; the sum of the last line is shown."""
    lines = audit.read_bytes().splitlines(keepends=True)
    older, newer = audit.with_name("older"), audit.with_name("newer")
    older.write_bytes(b"".join(lines[:4]))
    newer.write_bytes(b"".join(lines[4:]))
    assert main(["audit", "verify", str(older), str(newer), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(file["first"], file["last"]) for file in shown["files"]] == [(1, 4), (5, 6)]
    assert shown["whole"] and shown["files"][1]["sum"] == json.loads(lines[-1])["sum"]
    assert main(["audit", "verify", str(newer)]) == 0  # older files may be elsewhere
    assert main(["audit", "verify", str(newer), str(older)]) == 1
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["changed", "taken out", "moved", "cut off", "long", "binary"])
def test_a_break_is_named_with_its_line(audit: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    """NIST: detect. Exit code 1, one line with file and number."""
    lines = audit.read_bytes().splitlines(keepends=True)
    if change == "changed":
        lines[2] = lines[2].replace(b"ann-2", b"eve-2")
    elif change == "taken out":
        del lines[2]
    elif change == "moved":
        lines[2], lines[3] = lines[3], lines[2]
    elif change == "cut off":
        lines = [*lines[:2], lines[2][:-20]]
    elif change == "long":
        lines[2] = b"x" * (1 << 20)
    else:
        lines[2] = b"\0\xff\x1b[2J\n"
    audit.write_bytes(b"".join(lines))
    assert main(["audit", "verify", str(audit)]) == 1
    error = capsys.readouterr().err
    assert f"{audit}, line 3: " in error and error.count("\n") == 1 and error[:-1].isprintable()


@pytest.mark.parametrize("thing", ["nothing", "folder"])
@pytest.mark.parametrize("verb", ["verify", "tail"])
def test_audit_of_non_file_fails_with_one_line(
    tmp_path: Path, verb: str, thing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, exit code 1."""
    path = tmp_path / thing
    if thing == "folder":
        path.mkdir()
    assert main(["audit", verb, str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_last_lines_move_no_cursor(audit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NIST: protect. A forged line, or a stranger's name in a true one, ends no line and reaches no terminal."""
    with audit.open("ab") as file:
        file.write(b"\x1b[2J\xe2\x80\xae evil\r\n")
    assert main(["audit", "tail", str(audit), "-n", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 3 and shown.replace("\n", "").isprintable() and "ann-5" in shown and "evil" in shown
