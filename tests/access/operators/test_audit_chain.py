"""The chain of audit lines: a change is found at its line, and no text leaves its line."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.operators.audit_chain import (
    GENESIS,
    LINE_BYTES_MAX,
    AuditRecord,
    Head,
    head_of,
    make_line,
    tail,
    verify,
)


def chain(count: int, head: Head = GENESIS) -> list[bytes]:
    lines = []
    for number in range(count):
        line, head = make_line(AuditRecord("verb", "done", actor="ann", verb="user add", epoch=number), 1.5, head)
        lines.append(line)
    return lines


def test_a_whole_chain_is_whole() -> None:
    """Also in two files, when the second is verified after the first."""
    lines = chain(20)
    verdict = verify(lines)
    assert (verdict.lines, verdict.broken_line, verdict.began) == (20, 0, 1) and verdict.head == head_of(lines[-1])
    first = verify(lines[:7])
    second = verify(lines[7:], first.head)
    assert second.head == verdict.head and not second.broken_line and second.began == 8
    alone = verify(lines[7:])
    assert not alone.broken_line and alone.began == 8  # older files are absent: the caller reports that
    assert verify([]).lines == 0
    assert tail(lines, 3) == lines[-3:] and tail(lines, 0) == [] and tail(lines, 99) == lines


@pytest.mark.parametrize("at", [0, 1, 9, 19])
@pytest.mark.parametrize("kind", ["change", "out", "twice", "swap", "inside", "empty", "foreign", "long"])
def test_the_first_break_is_found_at_its_line(kind: str, at: int) -> None:
    """Each line of twenty, changed in each way; a truncated end is not detectable from the file."""
    lines = chain(20)
    if kind == "change":
        lines[at] = lines[at].replace(b'"actor":"ann"', b'"actor":"bob"')
    elif kind == "out":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "swap":
        other = min(at + 1, 18) if at < 19 else 18
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "inside":
        lines.insert(at, chain(3)[1])
    elif kind == "foreign":
        lines[at] = chain(at + 1, Head(0, "1" * 64))[-1]
    else:
        lines[at] = b"\n" if kind == "empty" else b"x" * (LINE_BYTES_MAX + 1)
    verdict = verify(lines)
    if (kind == "out" and at in (0, 19)) or (kind == "foreign" and at == 0):
        assert verdict.began == 2 or verdict.lines == 19 or verdict.broken_line in (1, 2)
        return
    expected = {"out": at + 1, "twice": at + 2, "swap": min(at, 18) + 1, "inside": at + 1}.get(kind, at + 1)
    if kind == "swap" and at == 0:
        expected = 2  # a file may start with any line
    if kind == "inside" and at in (0, 1):
        expected = {0: 2, 1: 3}[at]
    assert verdict.broken_line == expected and verdict.lines == expected - 1 and verdict.broken


def test_a_line_with_another_number_is_found() -> None:
    """Its writer can compute sums, but skipped a number."""
    first, second = chain(2)
    line, _ = make_line(AuditRecord("verb", "done"), 1.0, Head(7, head_of(second).sum))
    assert verify([first, second, line]).broken_line == 3


@pytest.mark.parametrize("text", ["\x7f", "\x1b[2J", "\r\n", "\x85", "\u2028", "\ud800", "\u202e", '"', "\\"])
def test_no_character_moves_a_terminal(text: str) -> None:
    """Escaped in the line, and unchanged after decoding."""
    line, _ = make_line(AuditRecord("login", "refused", actor=text, arguments={text: text}), 1.0, GENESIS)
    assert all(32 <= byte < 127 for byte in line[:-1]) and line.count(b"\n") == 1
    assert json.loads(line)["actor"] == text and json.loads(line)["arguments"] == {text: text}


def test_every_changed_bit_is_found() -> None:
    """Of one line, each bit of each byte."""
    before, line, after = chain(3)
    for at in range(len(line)):
        for bit in range(8):
            changed = bytearray(line)
            changed[at] ^= 1 << bit
            assert verify([before, bytes(changed), after]).broken_line == 2


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        AuditRecord,
        st.text(max_size=40),
        st.text(max_size=5),
        actor=st.text(st.characters(), max_size=400),
        client_id=st.text(st.characters(), max_size=400),
        arguments=st.dictionaries(st.text(max_size=9), st.one_of(st.text(), st.floats(), st.integers(), st.booleans())),
        epoch=st.integers(),
        count=st.integers(),
    ),
    st.floats(),
)
def test_no_text_leaves_its_line(record: AuditRecord, utc: float) -> None:
    """Line ends, terminal escapes, surrogates, NaN: one line of printable ASCII that is JSON."""
    line, head = make_line(record, utc, GENESIS)
    assert line.endswith(b"\n") and all(32 <= byte < 127 for byte in line[:-1])
    body = json.loads(line)
    assert body["sum"] == head.sum and body["prev"] == GENESIS.sum and len(body.get("actor", "")) < 300
    assert not verify([line]).broken_line


def test_the_longest_line_can_be_read_back() -> None:
    """Each field and each argument at its maximum length, of characters that take twelve bytes."""
    text = "\U0001f600" * 70_000
    arguments: dict[str, str | int | float | bool] = {f"{number}{text}": text for number in range(100)}
    record = AuditRecord(text, text, text, text, text, text, text, text, arguments, text)
    line, _ = make_line(record, math.inf, GENESIS)
    assert len(line) < LINE_BYTES_MAX and not verify([line]).broken_line


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=300), st.sampled_from(chain(4))), max_size=6))
def test_checking_hostile_bytes_never_raises(lines: list[bytes]) -> None:
    """For any content of a file; valid lines are ours."""
    verdict = verify(lines)
    assert verdict.lines <= len(lines) and bool(verdict.broken) == bool(verdict.broken_line)
