"""Cursors: round trip, and refusal of all others."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.cursors import CURSOR_MAX, CursorRefused, Position, digest_of, read_cursor, write_cursor

DIGEST = digest_of("clients", {"user": "ann"})
HERE = Position("edge-1", 7, "4711")


@given(st.text(max_size=300), st.integers(0, 1 << 60))
def test_cursor_round_trip(after: str, incarnation: int) -> None:
    """For any position; the text is valid in a URL."""
    after = after.encode("utf-8", "replace").decode()
    position = Position("edge-1", incarnation, after)
    text = write_cursor("c1", "clients", DIGEST, position)
    assert read_cursor(text, "c1", "clients", DIGEST) == position
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_digest_depends_on_query_only() -> None:
    """It does not depend on the order of the filters."""
    assert digest_of("clients", {"a": "1", "b": "2"}, ["x", "y"]) == digest_of(
        "clients", {"b": "2", "a": "1"}, ["y", "x"]
    )
    others = [digest_of("clients", {"a": "1"}), digest_of("clients", {"a": "2"}), digest_of("sessions", {"a": "1"})]
    assert len({*others, digest_of("clients", {"a": "1"}, ["x"])}) == 4


@pytest.mark.parametrize(
    ("cluster", "what", "digest", "why"),
    [
        ("c2", "clients", DIGEST, "cluster 'c1', this is cluster 'c2'"),
        ("c1", "sessions", DIGEST, "another query"),
        ("c1", "clients", digest_of("clients", {}), "other filters"),
    ],
)
def test_read_cursor_of_other_query_is_refused(cluster: str, what: str, digest: bytes, why: str) -> None:
    """Its rows would differ."""
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
def test_read_cursor_invalid_text_is_refused(text: str) -> None:
    """In one line."""
    with pytest.raises(CursorRefused) as refused:
        read_cursor(text, "c1", "clients", DIGEST)
    assert (
        refused.value.code == "stale_cursor" and "\n" not in refused.value.message and len(refused.value.message) < 200
    )


@given(st.binary(max_size=200))
def test_read_cursor_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """No other exception is raised."""
    text = base64.urlsafe_b64encode(data).decode().rstrip("=")
    with pytest.raises(CursorRefused):
        read_cursor(text, "c1", "clients", DIGEST)
