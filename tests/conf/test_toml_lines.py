"""Lines of keys in TOML: an error names the line of the mistake."""

import pytest

from conf.toml_lines import TomlLines

TEXT = '''\
# [roles.a]
[roles.a]
publish = ["x", "y",  # z
  "a,b",
  "[q]"]
"qos max" = 1
text = """
[roles.b]
publish = 1
"""
[roles.b] # more
share.of = {
publish = ["not"] }
[roles."c.d"]
deny = []

[[list]]
kind = 1
name = "first"
port = 2
[[list]]
name = 'second'
port = 3'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("roles",), 2),
        (("roles", "a"), 2),
        (("roles", "a", "publish"), 3),
        (("roles", "a", "publish", 0), 3),
        (("roles", "a", "publish", 2), 4),
        (("roles", "a", "publish", "3"), 5),
        (("roles", "a", "qos max"), 6),
        (("roles", "b"), 11),
        (("roles", "b", "publish"), 11),
        (("roles", "b", "share", "of", "publish"), 12),
        (("roles", "c.d", "deny"), 15),
        (("list", "first"), 17),
        (("list", "first", "kind"), 18),
        (("list", 0, "port"), 20),
        (("list", "first", "port"), 20),
        (("list", "second", "port"), 23),
        (("list", 1, "port"), 23),
        (("nothing",), 0),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_of_a_key(path: tuple[str | int, ...], line: int, end: str) -> None:
    assert TomlLines(TEXT.replace("\n", end)).of(path) == line


def test_a_large_text_takes_no_time() -> None:
    text = "".join(f'[roles.r{number}]\npublish = ["a/b", "c"]\n' for number in range(20_000))
    assert TomlLines(text).of(("roles", "r19999", "publish")) == 40_000
