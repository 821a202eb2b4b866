"""The interface of a resource: a walk over items in cursor order, and columns that are computed from an item.

A walk yields items after a cursor, in cursor order, with a low cost per step: the server stops it after any item. A
column is computed only for returned items and for filters on it.
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
    """A refused query; the text is one line: fault, place, remedy."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class RowScan:
    """The query that a walk receives.

    Attributes:
        where: All filters, those that are not columns included.
        after: Cursor to resume after; "": from the beginning.
        wanted: Columns that are returned; a walk need not prepare others.
        role: Effective role.
        limit: Maximum number of rows.
        now: Seconds, by the node's clock.
    """

    where: Mapping[str, str]
    after: str
    wanted: frozenset[str]
    role: str
    limit: int
    now: float

    def numbers(self, parts: int) -> tuple[int, ...]:
        """Return the cursor as ``parts`` numbers; all -1 at the beginning.

        Raises:
            QueryRefused: It is not a cursor of this node.
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
        """Return the two parts of a cursor that begins with a number; (-1, "") at the beginning.

        Raises:
            QueryRefused: It is not a cursor of this node.
        """
        number, colon, text = self.after.partition(":")
        if not self.after:
            return -1, ""
        if not colon or not number.isdecimal():
            raise QueryRefused(f"{self.after[:64]!r} is no place in this list: begin anew without one", USAGE)
        return int(number), text

    def wants_payload(self) -> bool:
        """Return whether payloads are requested.

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
    """One resource of a tier.

    Attributes:
        walk: Yields (cursor, item), None for a visited item that is not a row; raises QueryRefused before the first.
        columns: By name.
        total: Number of items, if it is known without a walk.
        newest: Cursor of the newest item, for kinds that can wait for new rows.
        note: Sent with each reply.
        whole: Returns, for one query, the factory of a row with all columns, equal to single columns; for kinds with
            many rows.
    """

    walk: Callable[[RowScan], Iterable[tuple[Place, Any]]]
    columns: Columns
    total: Callable[[], int] | None = None
    newest: Callable[[RowScan], int] | None = None
    note: str = ""
    whole: Callable[[], Callable[[Any], msgspec.Struct]] | None = None
