"""The answer of ``/operations``, for the service that writes it and the command line that reads it."""

import msgspec

from admin.http.partial import PartialResult
from admin.operations import RunningCommand

__all__ = ["OperationPage", "OperationRow"]


class OperationRow(msgspec.Struct):
    """One piece of work; ``cancel`` is the verb that ends it, "" where nothing does."""

    id: str
    kind: str
    node: str
    state: str
    done: int | None
    total: int | None
    left: int | None
    unit: str
    eta_s: float | None
    cancel: str
    detail: str

    def operation(self) -> RunningCommand:
        """Return it as the query layer has it."""
        return RunningCommand(**msgspec.structs.asdict(self))


class OperationPage(msgspec.Struct):
    """All of it, and the storage nodes that did not say whether they export."""

    rows: list[OperationRow]
    complete: bool = True
    partial: list[PartialResult] = []
