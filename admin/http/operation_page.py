"""The response of ``/operations``, shared by the service and the command line."""

import msgspec

from admin.http.partial import PartialResult
from admin.operations import RunningCommand

__all__ = ["OperationPage", "OperationRow"]


class OperationRow(msgspec.Struct):
    """One operation; ``cancel`` is the verb that ends it, "" if none does."""

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
        """Return it as a query result."""
        return RunningCommand(**msgspec.structs.asdict(self))


class OperationPage(msgspec.Struct):
    """All operations, and the storage nodes whose exports are unknown."""

    rows: list[OperationRow]
    complete: bool = True
    partial: list[PartialResult] = []
