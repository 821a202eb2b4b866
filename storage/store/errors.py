"""Errors of a store by the required reaction.

``StoreError`` is a refused request: the store is valid and continues. ``StoreUnverified``: the store must not serve
until it is repaired from a replica. ``StoreFatal`` ends the process: later reads and writes are unreliable.
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
    """Base class of a store's errors."""


class StoreClosed(StoreError):
    """A call on a store after close(); the library underneath would have crashed the interpreter."""


class StoreBusy(StoreError):
    """Another process, or another Store of this one, has the file open."""


class StoreUnavailable(StoreError):
    """The folder or file cannot be created, read or written; the message carries the system's reason."""


class ValueTooLarge(StoreError):
    """A key or value above the limit; ``storage/messages/bodies.py`` divides larger bodies into pieces."""


class StoreFull(StoreError):
    """Free space is below the floor; the batch was not written. Reads, and batches that free space, continue."""

    def __init__(self, free_bytes: int, floor_bytes: int) -> None:
        super().__init__(
            f"store refuses writes: {free_bytes} bytes free, floor {floor_bytes}: free disk space, or lower "
            "storage.free_space_floor_bytes and storage.free_space_floor_percent"
        )
        self.free_bytes = free_bytes
        self.floor_bytes = floor_bytes


class BatchUnknown(StoreError):
    """The library failed inside a transaction; the store was reopened and is valid, with or without the batch.

    Attributes:
        transaction_no: Number the batch would have had; it is in the store if ``Store.transaction_no`` is not below
          it.
    """

    def __init__(self, transaction_no: int, reason: str) -> None:
        super().__init__(f"outcome of commit {transaction_no} is unknown: {reason}")
        self.transaction_no = transaction_no


class StoreUnverified(StoreError):
    """The store lacks acknowledged data or is damaged; rebuild it from a replica, or quarantine it and start empty."""


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
    """The process must end without another acknowledgement."""


class SyncFailed(StoreFatal):
    """A sync returned an error. The kernel may have dropped the pages, so a retry is unreliable."""


class StoreFailed(StoreFatal):
    """The store failed inside a transaction and could not be reopened."""


def damage_in(error: BaseException) -> StoreDamaged | StoreIncomplete | None:
    """Return the damage of a store from an error, the errors of a group, or their causes."""
    if isinstance(error, StoreDamaged | StoreIncomplete):
        return error
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__,)
    return next((found for part in parts if part is not None and (found := damage_in(part)) is not None), None)


@contextlib.contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Translate system errors while opening."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        code = errno.errorcode.get(error.errno or 0, "OSError")
        raise StoreUnavailable(f"store {path}: {reason} ({code})") from error
