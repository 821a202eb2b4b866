"""Private folders and files: creation, and checks at start."""

import os
from pathlib import Path

import pytest

from conf.errors import UserError
from conf.private_files import check_private, check_private_folder, make_private_folder


def test_make_private_folder_is_private(tmp_path: Path) -> None:
    """Also created parents."""
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_open_files_are_refused(tmp_path: Path, mode: int) -> None:
    """One line with the remedy."""
    file = tmp_path / "key"
    file.touch()
    file.chmod(0o600)
    check_private(file, "key")
    check_private(tmp_path / "none", "key")  # other code reports a missing file
    file.chmod(mode)
    with pytest.raises(UserError, match=rf"key .*key is open to group or others \(mode {mode:04o}\): chmod 600 "):
        check_private(file, "key")


def test_links_and_foreign_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who can replace the file controls the node."""
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"data folder .*link is a symbolic link: name what it points to"):
        check_private(tmp_path / "link", "data folder")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UserError, match=r"belongs to user \d+, not to user 4711"):
        check_private(tmp_path, "data folder")


def test_the_group_may_read_an_audit_and_nothing_else(tmp_path: Path) -> None:
    """Its mode is 0640; a node with it in its data folder starts again."""
    tmp_path.chmod(0o700)
    for name in ("audit.jsonl", f"audit.jsonl.{7:019}"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o640)
    check_private_folder(tmp_path, "data folder", "file")
    (tmp_path / "audit.jsonl").chmod(0o660)
    with pytest.raises(UserError, match=r"audit\.jsonl is open"):
        check_private_folder(tmp_path, "data folder", "file")
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.key")
    (tmp_path / "audit.key").chmod(0o640)
    with pytest.raises(UserError, match=r"audit\.key is open"):
        check_private_folder(tmp_path, "data folder", "file")


def test_check_private_folder_includes_entries(tmp_path: Path) -> None:
    """Two levels: a router's log has its own folder."""
    check_private_folder(tmp_path / "none", "data folder", "Raft log")
    make_private_folder(tmp_path / "raft")
    log = tmp_path / "raft" / "log-1"
    log.touch()
    log.chmod(0o644)
    with pytest.raises(UserError, match=r"Raft log .*log-1 is open"):
        check_private_folder(tmp_path, "data folder", "Raft log")
    log.chmod(0o600)
    check_private_folder(tmp_path, "data folder", "Raft log")
    tmp_path.chmod(0o755)
    with pytest.raises(UserError, match=r"data folder .* is open to group or others \(mode 0755\): chmod -R go= "):
        check_private_folder(tmp_path, "data folder", "Raft log")
