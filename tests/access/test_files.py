"""Reads of files that control access: complete, bounded, or one line of error (checks C3, C5)."""

import os
import resource
from pathlib import Path

import pytest

from access.files import AccessFileError, read_access_file, read_secret, text_lines


def test_a_file_is_read_whole_and_through_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"content")
    path.chmod(0o640)
    link.symlink_to(path)
    assert read_access_file(link, 7, secret=True) == b"content"


def test_unusable_files_are_one_line_each(tmp_path: Path) -> None:
    """Missing, a folder, a pipe, a device, a huge one, one with public access, a path with NUL."""
    huge, pipe, open_file, group = (tmp_path / name for name in ("huge", "pipe", "open", "group"))
    huge.touch(mode=0o600)
    os.truncate(huge, 1 << 30)
    os.mkfifo(pipe)
    open_file.touch()
    open_file.chmod(0o644)
    group.touch()
    group.chmod(0o660)
    for path, text in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "is a folder"),
        (pipe, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (huge, "has 1073741824 bytes"),
        (open_file, "open to every user"),
        (group, "written by others"),
        (Path("a\0b"), "null"),
    ):
        with pytest.raises(AccessFileError, match=text) as error:
            read_access_file(path, 1000, secret=True)
        assert error.value.exit_code == 2
        assert "\n" not in error.value.message
    assert read_access_file(open_file, 1000) == b""


def test_a_file_without_a_size_is_bounded_too() -> None:
    """Files of /proc report 0 bytes and contain more."""
    with pytest.raises(AccessFileError, match="longer than 10 bytes"):
        read_access_file(Path("/proc/self/status"), 10)


def test_read_access_file_closes_descriptors(tmp_path: Path) -> None:
    """A reload without descriptors is an error, and the old state stays (CVE-2017-7652)."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(AccessFileError, match="Too many open files"):
            read_access_file(path, 7)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read_access_file(path, 7) == b"content"


def test_lines_end_at_lf_or_crlf_alone() -> None:
    lines = list(text_lines(Path("f"), b"one\r\ntwo\n\nthree\tx"))
    assert lines == [(1, "one"), (2, "two"), (3, ""), (4, "three\tx")]
    assert list(text_lines(Path("f"), b"")) == []


@pytest.mark.parametrize("content", [b"one\r", b"one\ntwo\r", b"\r", b"one\n\r", b"one\rtwo\r"])
def test_a_cr_without_an_lf_ends_no_line(content: bytes) -> None:
    """Also as the last byte of the file."""
    with pytest.raises(AccessFileError, match="control character"):
        list(text_lines(Path("f"), content))


@pytest.mark.parametrize(
    "line", [b"a\0", b"a\rb", b"\x0b", b"\x1b[2J", b"\xff", "\u2028".encode(), b"\xc2\x85", b"\r\r"]
)
def test_control_characters_and_bytes_that_are_no_text(line: bytes) -> None:
    with pytest.raises(AccessFileError, match=r"^f:2: "):
        list(text_lines(Path("f"), b"good\n" + line + b"\ngood"))


def test_a_byte_order_mark() -> None:
    with pytest.raises(AccessFileError, match="byte order mark"):
        list(text_lines(Path("f"), b"\xef\xbb\xbfgood"))


@pytest.mark.parametrize(
    "content", [b"", bytes(32), b"x" * 64, b"\n" * 40, b"# 32 bytes, please\n\n# of noise\n" * 3, b"ab" * 99]
)
def test_read_secret_guessable_content_is_refused(tmp_path: Path, content: bytes) -> None:
    """Zeros after a crash, one letter, comments: refused in one line that does not quote the file."""
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(AccessFileError, match=r"no secret|can be guessed") as error:
        read_secret(path, 4096)
    assert str(path) in error.value.message and "\n" not in error.value.message


@pytest.mark.parametrize("content", [bytes(range(32)), b"#" + bytes(range(200, 232)), b"0123456789abcdef" * 2])
def test_read_secret_returns_any_bytes_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(content)
    assert read_secret(path, 4096) == content
