"""Lines of keys in a TOML text, for errors that name file and number.

The text is valid TOML: a parser has read it before. Only where a key stands is found here; values are skipped. A key
inside an inline table has the line of that table's key.
"""

import re
import tomllib
from collections.abc import Sequence

__all__ = ["TomlLines"]

TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}'  # strings of several lines
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*|\n|[][{}=.,]|[^][{}=.,\s"\'\#]+',
    re.DOTALL,
)
Key = tuple[str, ...]


class TomlLines:
    """The first line, from 1, of each key of a text.

    Args:
        text: Valid TOML.
    """

    def __init__(self, text: str) -> None:
        self._found: dict[Key, int] = {}
        self._entries: dict[Key, int] = {}  # of a list of tables: entries so far
        self._table: Key = ()
        self._named: Key = ()  # the same entry of a list by its name
        self._line = 1
        self._read(text)

    def of(self, path: Sequence[str | int]) -> int:
        """Return the line of a key or of an entry of its list; of the table above it if the key is not there.

        Args:
            path: Keys from the top; an integer, or its digits, is the place of an entry in a list. An entry of a list
                of tables is found by its ``name`` too.
        Returns:
            0 if not even the first key is there.
        """
        wanted = tuple(str(part) for part in path)
        lengths = (length for length in range(len(wanted), 0, -1) if wanted[:length] in self._found)
        return self._found[wanted[: next(lengths, 0)]] if wanted[:1] in self._found else 0

    def _read(self, text: str) -> None:
        statement: list[str] = []
        began, depth, entry = 1, 0, 0
        key: Key | None = None  # whose value is read
        for token in TOKEN.findall(text):
            if token == "\n" and depth == 0:
                self._header(statement, began)
                statement, key = [], None
            elif token.startswith("#") or token == "\n":
                pass
            elif key is None and token == "=":
                key, entry, statement = self._assigned(statement, began), 0, []
            elif key is None:
                began = began if statement else self._line
                statement.append(token)
            else:
                depth += (token in "[{") - (token in "]}")
                entry = self._value(key, token, depth, entry)
            self._line += token.count("\n")
        self._header(statement, began)

    def _value(self, key: Key, token: str, depth: int, entry: int) -> int:
        """Note the place of an entry of a list, and the name of a table; return the number of the next entry."""
        if depth == 0 and key == (*self._table, "name") and self._table[-1:] and self._table[-1].isdigit():
            self._named = (*self._table[:-1], _plain(token))
            self._found.setdefault(self._named, self._found[self._table])
            for known, line in list(self._found.items()):  # keys that stand before the name
                if known[: len(self._table)] == self._table:
                    self._found.setdefault((*self._named, *known[len(self._table) :]), line)
        if depth == 1 and token == ",":
            return entry + 1
        if depth >= 1 and token not in "[{]},":
            self._found.setdefault((*key, str(entry)), self._line)
        return entry

    def _assigned(self, tokens: list[str], line: int) -> Key:
        key = tuple(_plain(token) for token in tokens if token != ".")
        for table in {self._table, self._named or self._table}:
            for length in range(1, len(key) + 1):
                self._found.setdefault((*table, *key[:length]), line)
        return (*self._table, *key)

    def _header(self, tokens: list[str], line: int) -> None:
        if not tokens or tokens[0] != "[":
            return
        key = tuple(_plain(token) for token in tokens if token not in ("[", "]", "."))
        self._named = ()
        if tokens[1:2] == ["["]:
            place = self._entries[key] = self._entries.get(key, -1) + 1
            self._found.setdefault(key, line)
            key = (*key, str(place))
        self._table = key
        for length in range(1, len(key) + 1):
            self._found.setdefault(key[:length], line)


def _plain(token: str) -> str:
    """Return a key or a string without its quotes."""
    if token[:1] not in ('"', "'"):
        return token
    return str(tomllib.loads(f"x = {token}")["x"])
