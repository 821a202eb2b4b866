"""Writes to a gateway's spool, as returned by cores: rows by kind and key.

Plain data. A core returns them with its other effects. Its shell first commits them in one synced transaction
(``gateways/spool.py``), then performs those effects.
"""

from typing import NamedTuple, TypeAlias

__all__ = ["Delete", "Put", "Write"]


class Put(NamedTuple):
    """A row to store; it replaces the one of its kind and key."""

    kind: str
    key: bytes
    value: bytes


class Delete(NamedTuple):
    """A row to delete; a missing row is no error."""

    kind: str
    key: bytes


Write: TypeAlias = Put | Delete
