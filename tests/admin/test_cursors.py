"""Cursors: what comes back is what was given, and nothing else is followed."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.cursors import CURSOR_MAX, CursorRefused, Position, digest_of, read_cursor, write_cursor

DIGEST = digest_of("clients", {"user": "ann"})
HERE = Position("edge-1", 7, "4711")


@given(st.text(max_size=300), st.integers(0, 1 << 60))
def test_a_cursor_is_read_as_it_was_written(after: str, incarnation: int) -> None:
    """Whatever a node's position looks like; the text is fit for an address."""
    after = after.encode("utf-8", "replace").decode()
    position = Position("edge-1", incarnation, after)
    text = write_cursor("c1", "clients", DIGEST, position)
    assert read_cursor(text, "c1", "clients", DIGEST) == position
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_a_digest_is_of_the_question_alone() -> None:
    """Not of the order in which somebody wrote it."""
    assert digest_of("clients", {"a": "1", "b": "2"}, ["x", "y"]) == digest_of(
        "clients", {"b": "2", "a": "1"}, ["y", "x"]
    )
    others = [digest_of("clients", {"a": "1"}), digest_of("clients", {"a": "2"}), digest_of("sessions", {"a": "1"})]
    assert len({*others, digest_of("clients", {"a": "1"}, ["x"])}) == 4


@pytest.mark.parametrize(
    ("cluster", "what", "digest", "why"),
    [
        ("c2", "clients", DIGEST, "of cluster 'c1', this one is 'c2'"),
        ("c1", "sessions", DIGEST, "of another question"),
        ("c1", "clients", digest_of("clients", {}), "of other filters"),
    ],
)
def test_a_foreign_cursor_is_refused(cluster: str, what: str, digest: bytes, why: str) -> None:
    """It would begin somewhere in other rows."""
    with pytest.raises(CursorRefused, match=why):
        read_cursor(write_cursor("c1", "clients", DIGEST, HERE), cluster, what, digest)


def _text(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "é",
        "A" * (CURSOR_MAX + 1),
        "AAAA",
        write_cursor("c1", "clients", DIGEST, HERE)[:-4],
        write_cursor("c1", "clients", DIGEST, HERE) + "AAAA",
        _text(["clients", DIGEST, "c1", "edge-1", -1, ""]),
        _text(["clients", DIGEST, "c1", "", 1, ""]),
        _text(["clients", DIGEST, "c1", "edge-1", 1, "", "more"]),
        _text({"what": "clients"}),
        base64.urlsafe_b64encode(b"\x91" * 3000).decode().rstrip("="),
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """In one line, whatever it is."""
    with pytest.raises(CursorRefused) as refused:
        read_cursor(text, "c1", "clients", DIGEST)
    assert (
        refused.value.code == "stale_cursor" and "\n" not in refused.value.message and len(refused.value.message) < 200
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing else is raised."""
    text = base64.urlsafe_b64encode(data).decode().rstrip("=")
    with pytest.raises(CursorRefused):
        read_cursor(text, "c1", "clients", DIGEST)
