"""Counts the rows of a stopped node's store: ``stratamq store stats``."""

from pathlib import Path
from typing import Any

from storage.state import keys
from storage.store.quarantine import store_files
from storage.store.settings import StoreSettings
from storage.store.store import Store

__all__ = ["store_stats"]

SCAN_ROWS = 4_000
NAMES = {
    keys.BODY: "bodies",
    keys.FILTER: "standing_filters",
    keys.HANDED: "handed_on",
    keys.INBOUND: "inbound_qos2",
    keys.INFLIGHT: "inflight",
    keys.LOCAL: "copies",
    keys.LOG: "op_log",
    keys.META: "partitions",
    keys.OPENED: "opened_connects",
    keys.ORIGIN: "origins",
    keys.QUEUE: "queued",
    keys.RETAINED: "retained",
    keys.SESSION: "sessions",
    keys.SUBSCRIPTION: "subscriptions",
    keys.WILL: "wills",
}


def store_stats(path: Path) -> dict[str, Any]:
    """Return the identity of the store, its files' bytes, and rows and value bytes by kind.

    Raises:
        StoreError: It is open, damaged, or missing.
    """
    store = Store.open_existing(path, StoreSettings())
    try:
        rows: dict[str, int] = {}
        value_bytes: dict[str, int] = {}
        start = b"\x00"
        while found := store.scan(start, None, SCAN_ROWS):
            for key, value in found:
                name = NAMES.get(key[2:3], "unknown")
                rows[name] = rows.get(name, 0) + 1
                value_bytes[name] = value_bytes.get(name, 0) + len(value)
            start = found[-1][0] + b"\x00"
        identity = store.identity()
    finally:
        store.close()
    files = {file.name: file.stat().st_size for file in store_files(path) if file.exists()}
    return {**identity, "file_bytes": files, "rows": dict(sorted(rows.items())), "value_bytes": value_bytes}
