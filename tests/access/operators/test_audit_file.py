"""The audit log file on a real disk: mode, links, locks, incomplete lines, and a full disk."""

import errno
import os
import stat
from pathlib import Path

import pytest

from access.operators import audit_file
from access.operators.audit_chain import AuditRecord, verify
from access.operators.audit_file import AuditFile, AuditFileError, read_lines

RECORD = AuditRecord("verb", "done", actor="ann", verb="user add")


def test_lines_are_on_the_disk_and_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Mode 0640 under any umask of the process."""
    path = tmp_path / "audit.jsonl"
    before = os.umask(0o077)
    try:
        for start in range(3):
            audit = AuditFile(path)
            audit.append([RECORD] * 5, float(start))
            audit.append([], float(start))
            audit.close()
    finally:
        os.umask(before)
    verdict = verify(read_lines(path))
    assert (verdict.lines, verdict.broken_line) == (15, 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_audit_file_foreign_file_is_refused(tmp_path: Path) -> None:
    """A link to another file, a second name, a folder, a pipe, bits for others, and a missing folder."""
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    target.chmod(0o600)
    (tmp_path / "first").touch(0o600)
    os.link(tmp_path / "first", tmp_path / "second")
    (tmp_path / "empty").touch(0o600)
    (tmp_path / "to empty").symlink_to(tmp_path / "empty")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "open").touch(0o600)
    (tmp_path / "open").chmod(0o644)
    for name in ("link", "to empty", "dangling", "second", "folder", "pipe", "open", "missing/audit"):
        with pytest.raises(AuditFileError) as caught:
            AuditFile(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)
    assert target.read_text() == "precious" and not (tmp_path / "made").exists()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two chains in one file would break each other."""
    audit = AuditFile(tmp_path / "audit")
    with pytest.raises(AuditFileError, match="held by another process"):
        AuditFile(tmp_path / "audit")
    audit.close()
    AuditFile(tmp_path / "audit").close()


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_audit_file_incomplete_line_is_removed_and_recorded(tmp_path: Path, kept: int) -> None:
    """After a power loss during a write: it was never acknowledged, and the chain stays valid."""
    path = tmp_path / "audit"
    audit = AuditFile(path)
    audit.append([RECORD] * 4, 1.0)
    audit.close()
    lines = list(read_lines(path))
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][:-7])
    audit = AuditFile(path)
    assert audit.torn is not None and audit.torn.arguments["bytes"] == len(lines[kept]) - 7
    audit.append([audit.torn, RECORD], 2.0)
    audit.close()
    verdict = verify(read_lines(path))
    assert (verdict.lines, verdict.broken_line) == (kept + 2, 0)


@pytest.mark.parametrize("end", [b"rubbish\n", b"{}\n", b"\n", b"x" * 600_000])
def test_audit_file_changed_chain_is_not_continued(tmp_path: Path, end: bytes) -> None:
    """The next line would appear to continue the changed content."""
    path = tmp_path / "audit"
    audit = AuditFile(path)
    audit.append([RECORD], 1.0)
    audit.close()
    before = path.read_bytes()
    path.write_bytes(before + end)
    with pytest.raises(AuditFileError, match="move it away"):
        AuditFile(path)
    assert path.read_bytes() == before + end


def test_audit_file_full_disk_refuses_changes(tmp_path: Path) -> None:
    """The file system must have the required space, not only that of the next line."""
    audit = AuditFile(tmp_path / "audit", room_bytes_min=1 << 62)
    assert "make room" in audit.refusal()
    audit.close()
    audit = AuditFile(tmp_path / "audit", room_bytes_min=0)
    assert audit.refusal() == ""
    audit.close()


def test_a_write_that_fails_leaves_no_part_and_refuses_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full during a batch, and cannot even truncate; then there is space again."""
    path = tmp_path / "audit"
    audit = AuditFile(path, room_bytes_min=0)
    audit.append([RECORD], 1.0)
    write, cut = os.write, os.ftruncate

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) > 100:
            return write(descriptor, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stuck(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    class Disk:
        O_RDWR = os.O_RDWR

        def __getattr__(self, name: str) -> object:
            return {"write": full, "ftruncate": self.cut}.get(name) or getattr(os, name)

        cut = staticmethod(stuck)

    monkeypatch.setattr(audit_file, "os", Disk())
    with pytest.raises(AuditFileError, match="No space"):
        audit.append([RECORD] * 3, 2.0)
    assert "No space" in audit.refusal() and len(list(read_lines(path))) > 1
    monkeypatch.setattr(Disk, "cut", staticmethod(cut))
    with pytest.raises(AuditFileError, match="No space"):
        audit.append([RECORD], 2.0)
    monkeypatch.setattr(audit_file, "os", os)
    assert verify(read_lines(path)).lines == 1
    audit.close()
    path.unlink()


def test_a_part_that_could_not_be_cut_is_cut_before_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write failed, and so did the truncation; then the disk works again."""
    path = tmp_path / "audit"
    audit = AuditFile(path, room_bytes_min=0)
    audit.append([RECORD], 1.0)

    def broken(self: AuditFile, data: bytes = b"") -> None:
        del self
        if data:
            with path.open("ab") as file:
                file.write(data[:100])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(AuditFile, "_write", broken)
        patch.setattr(AuditFile, "_truncate", broken)
        with pytest.raises(AuditFileError, match="Input/output"):
            audit.append([RECORD], 2.0)
    assert audit.refusal() and verify(read_lines(path)).broken_line == 2
    audit.append([RECORD] * 2, 3.0)
    assert audit.refusal() == "" and audit.head.sequence == 3
    audit.close()
    assert verify(read_lines(path)).lines == 3
