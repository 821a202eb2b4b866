"""A rotated audit log is one chain, also after kills during the rotation."""

import os
from pathlib import Path

import pytest

from access.operators.audit_chain import AuditRecord, Head, verify
from access.operators.audit_file import AuditFile, AuditFileError, read_lines

RECORD = AuditRecord("verb", "done", actor="ann")


def files(folder: Path) -> list[Path]:
    """Return the files of an audit log, oldest first."""
    return [*sorted(folder.glob("audit.*.*")), folder / "audit.jsonl"]


def check(folder: Path) -> int:
    """Return the number of the last line, if all files are one chain."""
    head: Head | None = Head(0, "0" * 64)
    for path in files(folder):
        verdict = verify(read_lines(path), head)
        assert not verdict.broken_line, (path, verdict)
        head = verdict.head
    assert head is not None
    return head.sequence


def test_files_are_put_aside_and_the_chain_goes_on(tmp_path: Path) -> None:
    """Each is readable for the group, none grows far above its bound, and a restart continues the last."""
    for _ in range(2):
        file = AuditFile(tmp_path / "audit.jsonl", 0, 1_000)
        for _ in range(10):
            file.append([RECORD], 1.0)
        file.close()
    assert check(tmp_path) == 20
    assert len(files(tmp_path)) > 3
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o640}
    assert all(path.stat().st_size < 1_300 for path in files(tmp_path))


@pytest.mark.parametrize("left", ["an empty file", "no file"])
def test_a_death_between_two_files_breaks_no_chain(tmp_path: Path, left: str) -> None:
    """The next process finds the end in the rotated file."""
    file = AuditFile(tmp_path / "audit.jsonl", 0, 1)
    file.append([RECORD], 1.0)
    file.close()
    assert (tmp_path / "audit.jsonl").stat().st_size == 0
    if left == "no file":
        (tmp_path / "audit.jsonl").unlink()
    again = AuditFile(tmp_path / "audit.jsonl", 0, 10_000)
    assert again.head.sequence == 1
    again.append([RECORD], 2.0)
    again.close()
    assert check(tmp_path) == 2


def test_a_damaged_file_aside_begins_no_other_chain(tmp_path: Path) -> None:
    """Numbers do not restart at 1 because the older file was truncated."""
    file = AuditFile(tmp_path / "audit.jsonl", 0, 1)
    file.append([RECORD], 1.0)
    file.close()
    aside = files(tmp_path)[0]
    os.truncate(aside, aside.stat().st_size - 5)
    with pytest.raises(AuditFileError, match="its last line"):
        AuditFile(tmp_path / "audit.jsonl")
    aside.write_bytes(b"")
    with pytest.raises(AuditFileError, match="its last line"):
        AuditFile(tmp_path / "audit.jsonl")


def test_a_name_that_is_taken_is_never_written_over(tmp_path: Path) -> None:
    """The lines stay in place, and the file is continued."""
    taken = tmp_path / f"audit.jsonl.{1:019}"
    file = AuditFile(tmp_path / "audit.jsonl", 0, 1)
    taken.write_bytes(b"somebody's\n")
    file.append([RECORD], 1.0)
    assert taken.read_bytes() == b"somebody's\n" and file.head.sequence == 1
    assert (tmp_path / "audit.jsonl").stat().st_size > 0
    file.close()


def test_another_process_is_kept_out_after_a_rotation(tmp_path: Path) -> None:
    """The new file is locked like the old one."""
    file = AuditFile(tmp_path / "audit.jsonl", 0, 1)
    file.append([RECORD], 1.0)
    with pytest.raises(AuditFileError, match="held by another process"):
        AuditFile(tmp_path / "audit.jsonl")
    file.close()


def test_a_death_while_the_file_has_two_names_keeps_no_node_from_its_audit(tmp_path: Path) -> None:
    """The file was linked to its new name, and the process was killed before it removed the first name."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 0)
    file.append([RECORD], 1.0)
    file.close()
    os.link(path, tmp_path / f"audit.jsonl.{1:019}")
    again = AuditFile(path, 0, 1)
    again.append([RECORD], 2.0)
    again.close()
    assert check(tmp_path) == 2
    assert [len(list(read_lines(each))) for each in files(tmp_path)] == [2, 0]


@pytest.mark.parametrize("name", ["copy", f"audit.jsonl.{7:019}"])
def test_another_name_of_the_file_is_refused_still(tmp_path: Path, name: str) -> None:
    """Only the name that a rotation of these very lines would give is removed."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 0)
    file.append([RECORD], 1.0)
    file.close()
    os.link(path, tmp_path / name)
    with pytest.raises(AuditFileError, match="no file of its own name alone"):
        AuditFile(path, 0)
    assert (tmp_path / name).exists()


def test_a_rotation_that_fails_leaves_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk accepts the second name, but keeps the first: the file continues, and a restart completes it."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 0, 1)
    unlink = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self == path:
            raise OSError(5, "Input/output error")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    file.append([RECORD], 1.0)
    file.close()
    assert files(tmp_path) == [path] and path.stat().st_nlink == 1
    monkeypatch.undo()
    AuditFile(path, 0).close()
    assert check(tmp_path) == 1
