"""Prometheus' text format, written without a client library: rendering blocks the event loop.

The text of a family is cached between scrapes: only the lines of changed numbers are rendered again. The cache is
bounded by the node's label sets. Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["FamilyText", "number_text"]

KEPT_MAX = 4096  # lines of one family


def number_text(number: float) -> str:
    """Return a number in the format of a sample."""
    if math.isfinite(number):
        return repr(float(number))
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


class FamilyText:
    """One family of the page.

    Args:
        name: Full name.
        kind: counter, gauge or histogram.
        text: Of HELP.
        labels: Names.
        read: Returns its numbers, or its Histogram.
    """

    __slots__ = ("_begins", "_bounds", "_head", "_kind", "_labels", "_lines", "_name", "_read", "_seen", "_text")

    def __init__(self, name: str, kind: str, text: str, labels: tuple[str, ...], read: Callable[[], Any]) -> None:
        escaped = text.replace("\\", r"\\").replace("\n", r"\n")
        self._head = f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"
        self._name, self._kind, self._labels, self._read = name, kind, labels, read
        self._lines: dict[tuple[str, ...], tuple[float, str, str]] = {}  # number, prefix of the line, the line
        self._bounds: object = ()
        self._begins: list[str] = []  # of the lines of buckets
        self._seen: object = self  # content of the text; none yet
        self._text = b""

    def lines(self) -> bytes:
        """Return the current text of the family."""
        value = self._read()
        if self._kind == "histogram":
            seen: object = (value.bounds, tuple(value.counts), value.total)
            if seen != self._seen:
                self._seen, self._text = seen, self._histogram(value).encode()
        elif value != self._seen:
            one = not isinstance(value, Mapping)
            self._seen = value if one else dict(value)
            self._text = self._series({(): value} if one else value).encode()
        return self._text

    def _series(self, series: Mapping[tuple[str, ...], float]) -> str:
        lines = self._lines
        parts = [self._head]
        for key, number in series.items():
            kept = lines.get(key)
            if kept is None or kept[0] != number:
                kept = self._line(key, number, kept[1] if kept is not None else self._begin(key))
            parts.append(kept[2])
        return "".join(parts)

    def _line(self, key: tuple[str, ...], number: float, begin: str) -> tuple[float, str, str]:
        made = number, begin, f"{begin}{number_text(number)}\n"
        if key in self._lines or len(self._lines) < KEPT_MAX:
            self._lines[key] = made
        return made

    def _begin(self, key: tuple[str, ...]) -> str:
        if not key:
            return f"{self._name} "
        escaped = ",".join(f'{label}="{_escaped(one)}"' for label, one in sorted(zip(self._labels, key, strict=True)))
        return f"{self._name}{{{escaped}}} "

    def _histogram(self, histogram: Any) -> str:
        name = self._name
        if self._bounds != histogram.bounds:
            self._bounds = histogram.bounds
            self._begins = [f'{name}_bucket{{le="{number_text(bound)}"}} ' for bound in (*histogram.bounds, math.inf)]
        running = 0
        parts = [self._head]
        for begin, count in zip(self._begins, histogram.counts, strict=True):
            running += count
            parts.append(f"{begin}{running}.0\n")
        parts.append(f"{name}_count {running}.0\n{name}_sum {number_text(histogram.total)}\n")
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
