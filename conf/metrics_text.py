"""Prometheus' text format, written without a client library: a scrape takes the loop for as long as this runs.

Heads and label sets are texts that stay the same from one scrape to the next: they are kept, bounded by what a node
has of them. Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["FamilyText", "number_text"]

KEPT_MAX = 4096  # texts of label sets of one family


def number_text(number: float) -> str:
    """Return a number as a sample has it."""
    if math.isfinite(number):
        return repr(float(number))
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


class FamilyText:
    """One family of the page: its head, and the beginnings of its lines.

    Args:
        name: Whole.
        kind: counter, gauge or histogram.
        text: Of HELP.
        labels: Names.
        read: Returns its numbers, or its Histogram.
    """

    __slots__ = ("_begins", "_buckets", "_head", "_kind", "_labels", "_name", "_read")

    def __init__(self, name: str, kind: str, text: str, labels: tuple[str, ...], read: Callable[[], Any]) -> None:
        told = text.replace("\\", r"\\").replace("\n", r"\n")
        self._head = f"# HELP {name} {told}\n# TYPE {name} {kind}\n"
        self._name, self._kind, self._labels, self._read = name, kind, labels, read
        self._begins: dict[tuple[str, ...], str] = {(): f"{name} "}
        self._buckets: tuple[Any, list[str]] = ((), [])

    def lines(self) -> str:
        """Return its part of the page as it is now."""
        value = self._read()
        if self._kind == "histogram":
            return self._histogram(value)
        series = value.items() if isinstance(value, Mapping) else (((), value),)
        begins = self._begins
        parts = [self._head]
        for key, number in series:
            begin = begins.get(key)
            parts.append(f"{begin if begin is not None else self._begin(key)}{number_text(number)}\n")
        return "".join(parts)

    def _begin(self, key: tuple[str, ...]) -> str:
        told = ",".join(f'{label}="{_escaped(one)}"' for label, one in sorted(zip(self._labels, key, strict=True)))
        begin = f"{self._name}{{{told}}} "
        if len(self._begins) < KEPT_MAX:
            self._begins[key] = begin
        return begin

    def _histogram(self, histogram: Any) -> str:
        bounds, begins = self._buckets
        if bounds != histogram.bounds:
            begins = [f'{self._name}_bucket{{le="{number_text(bound)}"}} ' for bound in (*histogram.bounds, math.inf)]
            self._buckets = histogram.bounds, begins
        running = 0
        parts = [self._head]
        for begin, count in zip(begins, histogram.counts, strict=True):
            running += count
            parts.append(f"{begin}{running}.0\n")
        parts.append(f"{self._name}_count {running}.0\n{self._name}_sum {number_text(histogram.total)}\n")
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
