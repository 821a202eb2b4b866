"""Strict JSON for untrusted input: unambiguous, within bounds."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.identity.attributes import read_attributes
from access.identity.strict_json import is_integer, is_number, read_json


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"1" * 500,
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":1,"\\u0061":2}',
        b'["\\ud800"]',
        b'{"\\udfff":1}',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b'"\n"',
        b'"\0"',
        b"{} {}",
        b"{'a':1}",
        b"[[[[[1]]]]]",
        b'{"a":{"a":{"a":{"a":{}}}}}',
        b"[" * 1000,
        b"[" * 1000 + b"]" * 1000,
        b'{"a":' * 1000,
        b'"' + b"x" * 2000 + b'"',
        b'"' + b"[" * 1000,
        b'"\\"' + b"[" * 1000,
    ],
)
def test_texts_that_are_refused(text: bytes) -> None:
    """Ambiguous, invalid, too deep or too long."""
    with pytest.raises(ValueError, match="JSON"):
        read_json(text, 2000, 4)


def test_read_json_brackets_in_strings_are_not_counted() -> None:
    assert read_json(b'{"a":"[[[[[[[[\\"{{{{","b":[1,2.5,true,null,"\\ud83d\\ude00"]}', 2000, 2) == {
        "a": '[[[[[[[["{{{{',
        "b": [1, 2.5, True, None, "😀"],
    }


TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=9), below, max_size=3),
    max_leaves=12,
)


def _depth(value: object) -> int:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)


@settings(max_examples=300, deadline=None)
@given(TREE, st.booleans())
def test_read_json_round_trip(tree: object, plain: bool) -> None:
    """The bound of nesting is exact."""
    text = json.dumps(tree, ensure_ascii=plain).encode()
    assert read_json(text, 1 << 20, max(1, _depth(tree))) == tree
    if _depth(tree):
        with pytest.raises(ValueError, match="nested"):
            read_json(text, 1 << 20, _depth(tree) - 1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(['"', "\\", "[", "]", "{", "}", ":", ",", "1", "a", "\\u", "d800"]), max_size=60))
def test_a_hostile_text_is_one_error(pieces: list[str]) -> None:
    text = "".join(pieces).encode()
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match="JSON"):
            read_json(text, 1000, 60)
        return
    try:
        assert read_json(text, 1000, 60) == expected
    except ValueError as error:
        assert "JSON" in str(error)


def test_true_is_no_number() -> None:
    assert [is_integer(each) for each in (0, 1 << 70, True, 1.0, "1", None)] == [True, True, False, False, False, False]
    assert [is_number(each) for each in (0, 1.5, False, float("inf"), "1")] == [True, True, False, False, False]


def test_attributes_are_small_maps_of_text() -> None:
    assert read_attributes({"site": "a/b", "x_1-Y": ""}) == {"site": "a/b", "x_1-Y": ""}
    bad: list[object] = [None, [], "x", {"a": 1}, {"a": None}, {"": "x"}, {"a.b": "x"}, {"a" * 65: "x"}, {"ä": "x"}]
    bad += [{"a": "x" * 257}, {"a": "\0"}, {"a": "e\u0301"}, {str(number): "" for number in range(33)}, {1: "x"}]
    for value in bad:
        with pytest.raises(ValueError, match="client_attrs"):
            read_attributes(value)
