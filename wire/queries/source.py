"""The shape of what a tier shows: a walk over things, each with its place, and columns that are read from a thing.

A walk yields things behind a place, in the order of their places, and stays cheap per step: the desk stops it
after any of them. A column is computed for those things that are shown, and where a condition names it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from wire.messages.hello import OPERATOR_ROLES
from wire.messages.query_kinds import lower_role

__all__ = ["FAILED", "USAGE", "Columns", "Place", "QueryRefused", "RowScan", "RowSource"]

_, OPERATOR, _ = OPERATOR_ROLES
USAGE = 2  # as exit codes of the command line
FAILED = 1

Place: TypeAlias = int | str | tuple[int | str, ...]
Columns: TypeAlias = Mapping[str, Callable[[Any], object]]


class QueryRefused(Exception):
    """A question that is not answered; the text is one line: what, where, what to do."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class RowScan:
    """A question as a walk sees it.

    Attributes:
        where: All its conditions, those that are no columns among them.
        after: Place behind which it goes on; "": from the beginning.
        wanted: Columns that are shown; a walk need not prepare others.
        role: That counts.
        limit: Rows at most.
        now: Seconds, as the node counts them.
    """

    where: Mapping[str, str]
    after: str
    wanted: frozenset[str]
    role: str
    limit: int
    now: float

    def numbers(self, parts: int) -> tuple[int, ...]:
        """Return the numbers of a place, of so many parts; all -1 at the beginning.

        Raises:
            QueryRefused: It is no place of this node.
        """
        if not self.after:
            return (-1,) * parts
        try:
            found = tuple(int(part) for part in self.after.split(":"))
        except ValueError:
            found = ()
        if len(found) != parts:
            raise QueryRefused(f"{self.after[:64]!r} is no place in this list: begin anew without one", USAGE)
        return found

    def number_and_text(self) -> tuple[int, str]:
        """Return the two parts of a place that begins with a number; (-1, "") at the beginning.

        Raises:
            QueryRefused: It is no place of this node.
        """
        number, colon, text = self.after.partition(":")
        if not self.after:
            return -1, ""
        if not colon or not number.isdecimal():
            raise QueryRefused(f"{self.after[:64]!r} is no place in this list: begin anew without one", USAGE)
        return int(number), text

    def wants_payload(self) -> bool:
        """Return whether payloads are asked for.

        Raises:
            QueryRefused: The role does not suffice.
        """
        if self.where.get("payload", "none") == "none":
            return False
        if not self.may_read_payloads():
            raise QueryRefused("payloads want the role operator")
        return True

    def may_read_payloads(self) -> bool:
        """Return whether the role suffices for payloads."""
        return lower_role(self.role, OPERATOR) == OPERATOR


@dataclass(frozen=True, slots=True)
class RowSource:
    """One kind as a tier shows it.

    Attributes:
        walk: Yields (place, thing), None for one that was visited and is no row; raises QueryRefused before the first.
        columns: By name.
        total: How many things there are, where that is counted anyway.
        newest: Place of the newest thing; for kinds that may wait for news.
        note: Goes with each answer.
        whole: Returns, for one look, what makes the row of all columns at once, equal to that of the columns; for kinds
            with many rows.
    """

    walk: Callable[[RowScan], Iterable[tuple[Place, Any]]]
    columns: Columns
    total: Callable[[], int] | None = None
    newest: Callable[[RowScan], int] | None = None
    note: str = ""
    whole: Callable[[], Callable[[Any], msgspec.Struct]] | None = None
