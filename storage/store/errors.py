"""Errors of a store, by what must be done about each.

``StoreError`` is refused work: the store is whole and goes on. ``StoreUnverified`` is a store that must not serve until
it is repaired from a replica. ``StoreFatal`` ends the process: nothing read or written after it proves anything.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "BatchUnknown",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreFatal",
    "StoreFull",
    "StoreIncomplete",
    "StoreMismatch",
    "StoreUnavailable",
    "StoreUnverified",
    "SyncFailed",
    "ValueTooLarge",
    "damage_in",
    "system_errors",
]


class StoreError(Exception):
    """Root of what a store raises."""


class StoreClosed(StoreError):
    """A call on a store after close(); the library underneath would have crashed the interpreter."""


class StoreBusy(StoreError):
    """Another process, or another Store of this one, has the file open."""


class StoreUnavailable(StoreError):
    """The folder or file cannot be created, read or written; the message carries the system's reason."""


class ValueTooLarge(StoreError):
    """A key or value above the limit; larger bodies are cut into pieces by ``storage/messages/bodies.py``."""


class StoreFull(StoreError):
    """Free space is below the floor; nothing of the batch was written. Reads, and batches that reclaim, go on."""

    def __init__(self, free_bytes: int, floor_bytes: int) -> None:
        super().__init__(
            f"store refuses writes: {free_bytes} bytes free, floor {floor_bytes}: make room, or lower "
            "storage.free_space_floor_bytes and storage.free_space_floor_percent"
        )
        self.free_bytes = free_bytes
        self.floor_bytes = floor_bytes


class BatchUnknown(StoreError):
    """The library failed inside a transaction; the store was reopened and is whole, the batch may be in it or not.

    Attributes:
        transaction_no: Number the batch would have had; it is in the store if ``Store.transaction_no`` is not below it.
    """

    def __init__(self, transaction_no: int, reason: str) -> None:
        super().__init__(f"outcome of commit {transaction_no} is unknown: {reason}")
        self.transaction_no = transaction_no


class StoreUnverified(StoreError):
    """The store is not what was acknowledged; rebuild it from a replica, or quarantine it and start empty."""


class StoreMismatch(StoreUnverified):
    """The store belongs to another cluster or node, or has a format this version does not read."""


class StoreDamaged(StoreUnverified):
    """A record, page, header or marker fails its check; never served.

    Attributes:
        key: The record that failed, None when the damage is not in one record.
    """

    def __init__(self, path: Path, what: str, key: bytes | None = None) -> None:
        where = "" if key is None else f" at key {key.hex()}"
        super().__init__(f"store {path} is damaged{where}: {what}")
        self.path = path
        self.key = key


class StoreIncomplete(StoreUnverified):
    """Recovery ended before the "acknowledged up to" marker: acknowledged commits are missing."""

    def __init__(self, path: Path, transaction_no: int, acked_up_to: int) -> None:
        super().__init__(
            f"store {path} ends at commit {transaction_no}, but commits up to {acked_up_to} were acknowledged"
        )
        self.path = path
        self.transaction_no = transaction_no
        self.acked_up_to = acked_up_to


class StoreFatal(StoreError):
    """The process must end without acknowledging anything more."""


class SyncFailed(StoreFatal):
    """A sync returned an error. The kernel may have dropped the pages: trying again would prove nothing."""


class StoreFailed(StoreFatal):
    """The store failed inside a transaction and could not be reopened."""


def damage_in(error: BaseException) -> StoreDamaged | StoreIncomplete | None:
    """Return what a store lacks, from an error, the errors of a group, or what caused them."""
    if isinstance(error, StoreDamaged | StoreIncomplete):
        return error
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__,)
    return next((found for part in parts if part is not None and (found := damage_in(part)) is not None), None)


@contextlib.contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Translate what the system says while opening."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        code = errno.errorcode.get(error.errno or 0, "OSError")
        raise StoreUnavailable(f"store {path}: {reason} ({code})") from error
